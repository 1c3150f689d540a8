//! An actor in a process of its own, which can really be stopped and killed.
//!
//! The process is this program again. It reads one JSON object per line, an address and a command, and
//! writes the answer as one JSON text per line.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use stocklock_servers::signals;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use crate::actor::{Line, Order};
use crate::session::{Address, LOST, Session};

/// What the process is asked.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    address: Address,
    command: String,
}

/// A running process. Dropping this kills it.
#[derive(Debug)]
pub(crate) struct ActorProcess {
    child: Child,
    requests: mpsc::Sender<(Request, oneshot::Sender<String>)>,
    _task: AbortOnDropHandle<()>,
}

impl ActorProcess {
    /// Starts `program failures --actor`.
    pub(crate) fn start(program: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["failures", "--actor"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.kill_on_drop(true).spawn();
        let mut child = child.context("cannot start a process")?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the process has no input or output");
        };
        let (requests, received) = mpsc::channel(1);
        let task = tokio::spawn(ask(input, BufReader::new(output).lines(), received));
        Ok(Self {
            child,
            requests,
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// Opens a connection from that process.
    pub(crate) async fn line(&self, address: &Address) -> Result<Line> {
        let (orders, mut received) = mpsc::channel::<Order>(1);
        let (requests, to) = (self.requests.clone(), address.clone());
        let task = tokio::spawn(async move {
            while let Some((command, answer)) = received.recv().await {
                let address = to.clone();
                // If the process has ended, the answer's channel is closed, which says so.
                let _ = requests.send((Request { address, command }, answer)).await;
            }
        });
        let line = Line::new(orders, address.clone(), AbortOnDropHandle::new(task));
        // An id opens the connection, as a command does.
        line.with_id().await
    }

    fn id(&self) -> Result<Pid> {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        let id = id.and_then(Pid::from_raw);
        id.context("the process has ended")
    }

    /// Stops it, and returns once none of its threads is running.
    pub(crate) async fn stop(&self) -> Result<()> {
        signals::stop(self.id()?).await;
        Ok(())
    }

    /// Continues it.
    pub(crate) fn resume(&self) -> Result<()> {
        signals::resume(self.id()?);
        Ok(())
    }

    /// Kills it, and returns once it is dead.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        let killed = self.child.kill().await;
        killed.context("cannot kill a process")
    }
}

/// Passes requests to the process one after the other.
async fn ask(
    mut input: ChildStdin,
    mut output: Lines<BufReader<ChildStdout>>,
    mut requests: mpsc::Receiver<(Request, oneshot::Sender<String>)>,
) {
    while let Some((request, answer)) = requests.recv().await {
        let mut line = serde_json::to_string(&request).expect("a request is JSON");
        line.push('\n');
        let written = input.write_all(line.as_bytes()).await;
        let read = match written {
            Ok(()) => output.next_line().await.ok().flatten(),
            Err(_) => None,
        };
        let text = read.and_then(|line| serde_json::from_str(&line).ok());
        // The receiver is gone if the variant has failed.
        let _ = answer.send(text.unwrap_or_else(|| LOST.to_owned()));
    }
}

/// Runs the commands of one actor until standard input closes.
///
/// # Errors
/// If standard input or output fails, or a request is not one.
pub(crate) async fn serve_actor() -> Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut output = tokio::io::stdout();
    let mut sessions: HashMap<String, Session> = HashMap::new();
    while let Some(line) = lines.next_line().await? {
        let Request { address, command } = serde_json::from_str(&line)?;
        if !sessions.contains_key(&address.url) {
            let opened = Session::open(&address).await?;
            sessions.insert(address.url.clone(), opened);
        }
        let answer = match sessions.get_mut(&address.url) {
            Some(session) => session.run(&command).await,
            None => LOST.to_owned(),
        };
        let mut answer = serde_json::to_string(&answer)?;
        answer.push('\n');
        output.write_all(answer.as_bytes()).await?;
        output.flush().await?;
    }
    Ok(())
}

//! Private Redis and ZooKeeper servers; they end, with their data, when their owner does.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::ports::free_port;
use stocklock_testkit::services::supervisor::{Supervisor, create_directory, unprivileged};

const READY_WITHIN: Duration = Duration::from_mins(1);

/// A server process of one test's own.
pub(crate) struct Server {
    port: u16,
    kind: Kind,
    supervisor: Mutex<Supervisor>,
}

#[derive(Clone, Copy)]
enum Kind {
    Redis,
    ZooKeeper,
}

impl Kind {
    /// A question, and the answer of a server that is ready.
    fn probe(self) -> (&'static [u8], &'static [u8]) {
        match self {
            Self::Redis => (b"PING\r\n", b"+PONG"),
            Self::ZooKeeper => (b"srvr", b"Zookeeper version"),
        }
    }
}

impl Server {
    /// A Redis that keeps nothing on disk unless told.
    pub(crate) async fn redis() -> Self {
        Self::redis_with("").await
    }

    /// The same with more settings on its command line.
    pub(crate) async fn redis_with(more: &str) -> Self {
        let (port, directory) = (free_port(), create_directory("redis").expect("a directory"));
        let mut line = unprivileged("redis-server".into());
        let settings = format!("--port {port} --bind 127.0.0.1 --appendonly no {more} --dir");
        line.extend(settings.split_whitespace().map(OsString::from));
        line.extend([directory.clone().into(), "--save".into(), "".into()]);
        Self::start(Kind::Redis, port, &directory, &line).await
    }

    /// A ZooKeeper with ticks of 100 ms, so that sessions may be as short as 200 ms, and containers
    /// that go soon after they are empty.
    pub(crate) async fn zookeeper() -> Self {
        let (port, directory) = (
            free_port(),
            create_directory("zookeeper").expect("a directory"),
        );
        let settings = format!(
            "tickTime=100\nminSessionTimeout=200\nmaxSessionTimeout=60000\ndataDir={}\n\
             clientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n\
             maxClientCnxns=0\n4lw.commands.whitelist=*\n",
            directory.join("data").display(),
        );
        let file = directory.join("zoo.cfg");
        fs::write(&file, settings).expect("the directory can be written to");
        let mut line = unprivileged("java".into());
        // Syncing each transaction to a shared disk is not what is tested here.
        let options = "-Xmx128m -Xss256k -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
                       -Dzookeeper.forceSync=no -Dznode.container.checkIntervalMs=200 \
                       -Dznode.container.maxPerMinute=1000000 -cp /usr/share/java/zookeeper.jar \
                       org.apache.zookeeper.server.ZooKeeperServerMain";
        line.extend(options.split_whitespace().map(OsString::from));
        line.push(file.into());
        Self::start(Kind::ZooKeeper, port, &directory, &line).await
    }

    async fn start(kind: Kind, port: u16, directory: &Path, line: &[OsString]) -> Self {
        let supervisor = Supervisor::new(directory.to_owned(), "KILL", line).expect("sh runs");
        let server = Self {
            port,
            kind,
            supervisor: Mutex::new(supervisor),
        };
        server.bring_up().await;
        server
    }

    /// Where it keeps its data.
    pub(crate) fn directory(&self) -> PathBuf {
        self.supervisor.lock().unwrap().directory().to_owned()
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Ends it as a loss of power would.
    pub(crate) fn kill9(&self) {
        self.supervisor
            .lock()
            .unwrap()
            .kill9()
            .expect("it is killed");
    }

    /// Starts it, and waits until it answers.
    pub(crate) async fn bring_up(&self) {
        self.supervisor.lock().unwrap().start().expect("it starts");
        let end = Instant::now() + READY_WITHIN;
        let (question, answer) = self.kind.probe();
        while !self
            .ask(question)
            .await
            .is_ok_and(|said| said.starts_with(answer))
        {
            let log = self.supervisor.lock().unwrap().log_tail();
            assert!(Instant::now() < end, "it does not answer:\n{log}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asks on a connection of its own, and reads one piece, or all that a word of four letters is
    /// answered with.
    pub(crate) async fn ask(&self, question: &[u8]) -> Result<Vec<u8>> {
        let conversation = async {
            let mut stream = TcpStream::connect(self.address()).await?;
            stream.write_all(question).await?;
            let mut said = vec![0; 4_096];
            let length = stream.read(&mut said).await?;
            said.truncate(length);
            if matches!(self.kind, Kind::ZooKeeper) {
                stream.read_to_end(&mut said).await?;
            }
            Ok(said)
        };
        timeout(Duration::from_secs(5), conversation)
            .await
            .context("no answer")?
    }
}

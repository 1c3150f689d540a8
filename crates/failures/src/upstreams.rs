//! The HTTP servers behind nginx: the actors that a story names as `upstreams`. A request stays open
//! until its actor answers it, or `machine` breaks its connection.

use std::collections::HashMap;
use std::io;

use anyhow::{Context as _, Result, bail};
use stocklock_servers::ports::free_port;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::actor::PATIENCE;

/// The listeners and the open requests, by the names of the actors.
#[derive(Debug, Default)]
pub(crate) struct Upstreams {
    listeners: HashMap<&'static str, TcpListener>,
    open: HashMap<&'static str, TcpStream>,
}

impl Upstreams {
    /// Listens for an actor. Returns `host:port`.
    pub(crate) async fn listen(&mut self, actor: &'static str) -> Result<String> {
        let listener = TcpListener::bind(("127.0.0.1", free_port())).await;
        let listener = listener.context("HTTP")?;
        let address = listener.local_addr().context("HTTP")?;
        self.listeners.insert(actor, listener);
        Ok(address.to_string())
    }

    /// Carries out `receive` or `answer STATUS TEXT`.
    pub(crate) async fn run(&mut self, actor: &'static str, command: &str) -> Result<String> {
        let words: Vec<_> = command.splitn(3, ' ').collect();
        match *words.as_slice() {
            ["receive"] => {
                let listener = self.listeners.get(actor);
                let listener = listener.context("it is not an upstream")?;
                let received = timeout(PATIENCE, receive(listener)).await;
                let received = received.ok().context("nginx sent no request")?;
                let (request, stream) = received.context("HTTP")?;
                self.open.insert(actor, stream);
                Ok(request)
            }
            ["answer", status, text] => {
                let stream = self.open.remove(actor);
                let mut stream = stream.context("no request is open")?;
                let length = text.len();
                let answer = format!(
                    "HTTP/1.1 {status} OK\r\nContent-Type: text/plain\r\n\
                     Content-Length: {length}\r\nConnection: close\r\n\r\n{text}"
                );
                let sent = stream.write_all(answer.as_bytes()).await;
                sent.context("HTTP")?;
                Ok("ok".to_owned())
            }
            _ => bail!("unknown command of an upstream: {command}"),
        }
    }

    /// Closes the open request of an actor, if there is one, without an answer.
    pub(crate) fn disconnect(&mut self, actor: &str) {
        self.open.remove(actor);
    }
}

/// The next request, as its method, its path and its idempotency key; and its connection.
async fn receive(listener: &TcpListener) -> io::Result<(String, TcpStream)> {
    let (mut stream, _) = listener.accept().await?;
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let byte = stream.read_u8().await?;
        head.push(byte.into());
    }
    let (request, headers) = head.split_once(" HTTP/").unwrap_or((&head, ""));
    let key = headers
        .lines()
        .find(|line| line.starts_with("Idempotency-Key: "));
    let key = key.map_or_else(String::new, |key| format!(" {key}"));
    Ok((format!("{request}{key}"), stream))
}

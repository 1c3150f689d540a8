//! HTTP requests: `METHOD PATH`, or `METHOD PATH HEADER: VALUE`. Each has its own connection.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Address, LOST};

/// A client of a server.
pub(crate) struct HttpSession {
    address: String,
}

impl HttpSession {
    pub(super) fn new(address: &Address) -> Self {
        Self {
            address: address.url.clone(),
        }
    }

    /// The answer is the status, and the text if the server sends one: `200 sold`.
    pub(super) async fn run(&mut self, command: &str) -> String {
        match self.send(command).await {
            Ok(answer) => text(&answer).unwrap_or_else(|| LOST.to_owned()),
            Err(_) => LOST.to_owned(),
        }
    }

    async fn send(&self, command: &str) -> io::Result<String> {
        let mut words = command.splitn(3, ' ');
        let method = words.next().unwrap_or_default();
        let path = words.next().unwrap_or("/");
        let header = words
            .next()
            .map_or_else(String::new, |it| format!("{it}\r\n"));
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nContent-Length: 0\r\n\
             {header}\r\n"
        );
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

/// `None` if it is not an answer of HTTP.
fn text(answer: &str) -> Option<String> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.lines().next()?.strip_prefix("HTTP/1.1 ")?;
    let (code, reason) = status.split_once(' ')?;
    // An error page of nginx is HTML.
    let is_text = head.to_lowercase().contains("content-type: text/plain");
    let words = if is_text { body.trim() } else { reason };
    Some(format!("{code} {words}"))
}

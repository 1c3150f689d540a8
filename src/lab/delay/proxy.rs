//! Delaying proxies: each listens on loopback before one server, and makes it seem a network away.
//!
//! They run on a thread of their own, so that what the replicas and the buyers of this process
//! compute does not lengthen the delay more than it must.

use std::io;
use std::net::SocketAddr;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::line::{carry, until};
use crate::lab::loopback;

/// How long to wait after a connection could not be accepted: for want of a file descriptor, most
/// likely, which somebody has to give back first.
const ACCEPT_AGAIN: Duration = Duration::from_millis(10);

/// What measuring may take beside the round trips themselves.
const MEASURED_WITHIN: Duration = Duration::from_secs(10);

/// The thread that the proxies run on. When it has been dropped, their ports and connections are
/// closed.
#[derive(Debug)]
pub(super) struct Proxies {
    rtt: Duration,
    runtime: Handle,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Proxies {
    /// Proxies that add `rtt` to each round trip, half of it in each direction.
    ///
    /// # Errors
    /// One line, when the system has no thread for them.
    pub(super) fn start(rtt: Duration) -> Result<Self, String> {
        let failed = |error: io::Error| format!("no thread for the delaying proxies: {error}");
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let handle = runtime.handle().clone();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        // The runtime is dropped with the thread, and every task and socket of it too.
        let thread = thread::Builder::new()
            .name("delay".to_owned())
            .spawn(move || runtime.block_on(stopped.cancelled()))
            .map_err(failed)?;
        Ok(Self {
            rtt,
            runtime: handle,
            stop,
            thread: Some(thread),
        })
    }

    /// Starts a proxy before the server at `host:port`, and tells where it listens.
    ///
    /// # Errors
    /// One line, when there is no port for it.
    pub(super) async fn before(&self, server: String) -> Result<SocketAddr, String> {
        let (listener, address) = self.listen().await?;
        self.runtime.spawn(accept(listener, server, self.rtt));
        Ok(address)
    }

    /// How long a byte takes there and back through a proxy before a server that answers at once:
    /// the median of up to 21 round trips.
    ///
    /// # Errors
    /// One line, when that does not work.
    pub(super) async fn measure(&self) -> Result<Duration, String> {
        let (listener, address) = self.listen().await?;
        let echo = self.runtime.spawn(echo(listener));
        let proxy = self.before(address.to_string()).await?;
        let rounds = rounds(self.rtt);
        let limit = MEASURED_WITHIN + self.rtt * 2 * (rounds + 2);
        let measured = match timeout(limit, round_trips(proxy, rounds)).await {
            Ok(measured) => measured.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {} s", limit.as_secs())),
        };
        echo.abort();
        let mut times =
            measured.map_err(|why| format!("the round trip cannot be measured: {why}"))?;
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }

    /// A port that belongs to the proxies' thread.
    async fn listen(&self) -> Result<(TcpListener, SocketAddr), String> {
        let listening = self.runtime.spawn(loopback::listen());
        listening.await.map_err(|error| error.to_string())?
    }
}

impl Drop for Proxies {
    fn drop(&mut self) {
        self.stop.cancel();
        // It waits for nothing but this. A panic there has been printed, and is no reason for one
        // here.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// As many round trips as a second has, within reason.
fn rounds(rtt: Duration) -> u32 {
    let in_a_second = Duration::from_secs(1).as_nanos() / rtt.as_nanos().max(1);
    u32::try_from(in_a_second).unwrap_or(u32::MAX).clamp(3, 21)
}

async fn round_trips(proxy: SocketAddr, rounds: u32) -> io::Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(proxy).await?;
    stream.set_nodelay(true)?;
    let mut times = Vec::new();
    // The first one has the opening of the connection in it.
    for round in 0..=rounds {
        let begin = Instant::now();
        stream.write_all(b"?").await?;
        stream.read_exact(&mut [0]).await?;
        if round > 0 {
            times.push(begin.elapsed());
        }
    }
    Ok(times)
}

/// Sends whatever one client sends back to it.
async fn echo(listener: TcpListener) -> io::Result<()> {
    let (mut client, _) = listener.accept().await?;
    client.set_nodelay(true)?;
    let (mut from, mut to) = client.split();
    tokio::io::copy(&mut from, &mut to).await?;
    Ok(())
}

async fn accept(listener: TcpListener, server: String, rtt: Duration) {
    loop {
        match listener.accept().await {
            Ok((client, _)) => drop(tokio::spawn(pass(client, server.clone(), rtt))),
            Err(error) => {
                tracing::warn!(%server, %error, "the delaying proxy cannot accept a connection");
                until(Instant::now() + ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn pass(client: TcpStream, server: String, rtt: Duration) {
    // Nothing of a connection arrives before its opening has been there and back.
    until(Instant::now() + rtt).await;
    match TcpStream::connect(&server).await {
        Ok(upstream) => {
            if let Err(error) = connect(client, upstream, rtt / 2).await {
                // Either end may break off, and both then know of it, which is all that a cable
                // tells.
                tracing::debug!(%server, %error, "a delayed connection broke");
            }
        }
        Err(error) => {
            tracing::warn!(%server, %error, "the delaying proxy cannot reach its server");
        }
    }
}

/// Carries one connection until both directions have ended, or one of them is broken.
async fn connect(mut client: TcpStream, mut server: TcpStream, delay: Duration) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::try_join!(
        carry(from_client, to_server, delay),
        carry(from_server, to_client, delay),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(20);

    /// A server with one connection, through a proxy, and both its ends.
    async fn connected(proxies: &Proxies) -> (TcpStream, TcpStream) {
        let (listener, server) = loopback::listen().await.unwrap();
        let proxy = proxies.before(server.to_string()).await.unwrap();
        let client = TcpStream::connect(proxy).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        (client, server)
    }

    #[tokio::test]
    async fn a_round_trip_takes_at_least_what_it_shall() {
        for rtt in [Duration::from_micros(300), RTT] {
            let measured = Proxies::start(rtt).unwrap().measure().await.unwrap();
            assert!(measured >= rtt, "{measured:?} for {rtt:?}");
        }
    }

    #[tokio::test]
    async fn a_side_that_has_said_all_can_still_be_answered() {
        let proxies = Proxies::start(RTT).unwrap();
        let (mut client, mut server) = connected(&proxies).await;
        client.write_all(b"all that I have to say").await.unwrap();
        client.shutdown().await.unwrap();
        let mut said = String::new();
        server.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "all that I have to say");
        server.write_all(b"so be it").await.unwrap();
        drop(server);
        let mut answered = String::new();
        client.read_to_string(&mut answered).await.unwrap();
        assert_eq!(answered, "so be it");
    }

    #[tokio::test]
    async fn a_side_that_breaks_off_ends_the_other() {
        let proxies = Proxies::start(RTT).unwrap();
        let (client, mut server) = connected(&proxies).await;
        client.set_zero_linger().unwrap();
        drop(client);
        let ended = server.read(&mut [0]).await;
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    }

    #[tokio::test]
    async fn a_server_that_does_not_listen_closes_the_connection() {
        let proxies = Proxies::start(RTT).unwrap();
        let (listener, server) = loopback::listen().await.unwrap();
        drop(listener);
        let proxy = proxies.before(server.to_string()).await.unwrap();
        let mut client = TcpStream::connect(proxy).await.unwrap();
        let ended = client.read(&mut [0]).await;
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    }

    #[tokio::test]
    async fn dropped_proxies_close_what_they_had_open() {
        let proxies = Proxies::start(RTT).unwrap();
        let (mut client, mut server) = connected(&proxies).await;
        let proxy = client.peer_addr().unwrap();
        drop(proxies);
        assert!(TcpStream::connect(proxy).await.is_err(), "it still listens");
        for end in [&mut client, &mut server] {
            let ended = end.read(&mut [0]).await;
            assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        }
    }
}

//! Delaying proxies: each one listens on loopback and forwards to one server.
//!
//! They run on a separate thread, so that busy buyers do not lengthen the delay.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::line::{carry, until};

/// Pause after a failed `accept`. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Time limit of a measurement, in addition to the round trips themselves.
const MEASURE_LIMIT: Duration = Duration::from_secs(10);

/// The thread of the proxies. Dropping it closes their ports and connections.
#[derive(Debug)]
pub(super) struct Proxies {
    rtt: Duration,
    runtime: Handle,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Proxies {
    /// Starts the thread. Each proxy will add `rtt` to a round trip, half of it in each direction.
    ///
    /// # Errors
    /// One line, if the thread cannot be started.
    pub(super) fn start(rtt: Duration) -> Result<Self, String> {
        let failed = |error: io::Error| format!("cannot start the thread of the proxies: {error}");
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let handle = runtime.handle().clone();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        // The thread owns the runtime. When it ends, all tasks and sockets are dropped.
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

    /// Starts a proxy for the server at `host:port` and returns the proxy's address.
    ///
    /// # Errors
    /// One line, if no port is free.
    pub(super) async fn add(&self, server: String) -> Result<SocketAddr, String> {
        let (listener, address) = self.listen().await?;
        self.runtime.spawn(accept(listener, server, self.rtt));
        Ok(address)
    }

    /// Measures the round trip of one byte through a proxy to a server that echoes it: the median
    /// of up to 21 round trips.
    ///
    /// # Errors
    /// One line, if the measurement fails.
    pub(super) async fn measure(&self) -> Result<Duration, String> {
        let (listener, address) = self.listen().await?;
        let echo = self.runtime.spawn(echo(listener));
        let proxy = self.add(address.to_string()).await?;
        let rounds = rounds(self.rtt);
        let limit = MEASURE_LIMIT + self.rtt * 2 * (rounds + 2);
        let measured = match timeout(limit, round_trips(proxy, rounds)).await {
            Ok(measured) => measured.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {} s", limit.as_secs())),
        };
        echo.abort();
        let mut times =
            measured.map_err(|reason| format!("cannot measure the round trip: {reason}"))?;
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }

    /// Opens a port that the proxies' runtime polls.
    async fn listen(&self) -> Result<(TcpListener, SocketAddr), String> {
        let listening = self.runtime.spawn(listen()).await;
        let listening = listening.map_err(io::Error::other).flatten();
        listening.map_err(|error| format!("a proxy cannot listen on loopback: {error}"))
    }
}

impl Drop for Proxies {
    fn drop(&mut self) {
        self.stop.cancel();
        // A panic of the thread has been printed already; `drop` must not panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The number of round trips that take about a second, at least 3 and at most 21.
fn rounds(rtt: Duration) -> u32 {
    let in_a_second = Duration::from_secs(1).as_nanos() / rtt.as_nanos().max(1);
    u32::try_from(in_a_second).unwrap_or(u32::MAX).clamp(3, 21)
}

async fn round_trips(proxy: SocketAddr, rounds: u32) -> io::Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(proxy).await?;
    stream.set_nodelay(true)?;
    let mut times = Vec::new();
    // The first round trip is not counted: it includes the delay of opening the connection.
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

async fn listen() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Sends the bytes of one client back to it.
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
            Ok((client, _)) => drop(tokio::spawn(forward(client, server.clone(), rtt))),
            Err(error) => {
                tracing::warn!(%server, %error, "a proxy of --rtt cannot accept a connection");
                until(Instant::now() + ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn forward(client: TcpStream, server: String, rtt: Duration) {
    // Opening a TCP connection takes one round trip.
    until(Instant::now() + rtt).await;
    match TcpStream::connect(&server).await {
        Ok(upstream) => {
            if let Err(error) = connect(client, upstream, rtt / 2).await {
                // Either side may close. Both connections are then closed.
                tracing::debug!(%server, %error, "a delayed connection broke");
            }
        }
        Err(error) => {
            tracing::warn!(%server, %error, "a proxy of --rtt cannot reach its server");
        }
    }
}

/// Forwards one connection until both directions have ended or one of them fails.
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

    /// Both ends of a connection through a proxy.
    async fn connected(proxies: &Proxies) -> (TcpStream, TcpStream) {
        let (listener, server) = listen().await.unwrap();
        let proxy = proxies.add(server.to_string()).await.unwrap();
        let client = TcpStream::connect(proxy).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        (client, server)
    }

    #[tokio::test]
    async fn round_trip_takes_at_least_the_rtt() {
        for rtt in [Duration::from_micros(300), RTT] {
            let measured = Proxies::start(rtt).unwrap().measure().await.unwrap();
            assert!(measured >= rtt, "{measured:?} for {rtt:?}");
        }
    }

    #[tokio::test]
    async fn half_closed_connection_still_carries_the_answer() {
        let proxies = Proxies::start(RTT).unwrap();
        let (mut client, mut server) = connected(&proxies).await;
        client.write_all(b"request").await.unwrap();
        client.shutdown().await.unwrap();
        let mut request = String::new();
        server.read_to_string(&mut request).await.unwrap();
        assert_eq!(request, "request");
        server.write_all(b"answer").await.unwrap();
        drop(server);
        let mut answered = String::new();
        client.read_to_string(&mut answered).await.unwrap();
        assert_eq!(answered, "answer");
    }

    #[tokio::test]
    async fn reset_of_one_side_ends_the_other() {
        let proxies = Proxies::start(RTT).unwrap();
        let (client, mut server) = connected(&proxies).await;
        client.set_zero_linger().unwrap();
        drop(client);
        let ended = server.read(&mut [0]).await;
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    }

    #[tokio::test]
    async fn unreachable_server_closes_the_connection() {
        let proxies = Proxies::start(RTT).unwrap();
        let (listener, server) = listen().await.unwrap();
        drop(listener);
        let proxy = proxies.add(server.to_string()).await.unwrap();
        let mut client = TcpStream::connect(proxy).await.unwrap();
        let ended = client.read(&mut [0]).await;
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    }

    #[tokio::test]
    async fn dropping_the_proxies_closes_their_connections() {
        let proxies = Proxies::start(RTT).unwrap();
        let (mut client, mut server) = connected(&proxies).await;
        let proxy = client.peer_addr().unwrap();
        drop(proxies);
        assert!(
            TcpStream::connect(proxy).await.is_err(),
            "the proxy still listens"
        );
        for end in [&mut client, &mut server] {
            let ended = end.read(&mut [0]).await;
            assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        }
    }
}

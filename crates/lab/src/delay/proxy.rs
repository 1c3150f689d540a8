//! Delaying proxies: each one listens on loopback and forwards to one server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::line::{carry, sleep_until};

/// Pause after a failed `accept`. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Time limit of a measurement, in addition to the round trips themselves.
const MEASURE_LIMIT: Duration = Duration::from_secs(10);

/// The number of measured round trips: at most a second at the largest `--rtt`.
const ROUNDS: u32 = 9;

/// Running proxies. Dropping this value closes their ports and connections.
#[derive(Debug)]
pub(super) struct Proxies {
    rtt: Duration,
    tasks: JoinSet<()>,
}

impl Proxies {
    /// No proxies yet. Each one will add `rtt` to a round trip, half of it in each direction.
    pub(super) fn new(rtt: Duration) -> Self {
        Self {
            rtt,
            tasks: JoinSet::new(),
        }
    }

    /// Starts a proxy for the server at `host:port` and returns the proxy's address.
    ///
    /// # Errors
    /// One line, if no port is free.
    pub(super) async fn add(&mut self, server: String) -> Result<SocketAddr, String> {
        let listening = listen().await;
        let (listener, address) =
            listening.map_err(|error| format!("a proxy cannot listen on loopback: {error}"))?;
        self.tasks.spawn(accept(listener, server, self.rtt));
        Ok(address)
    }

    /// Measures the round trip of one byte through a proxy to a server that echoes it: the median
    /// of [`ROUNDS`].
    ///
    /// # Errors
    /// One line, if the measurement fails.
    pub(super) async fn measure(&mut self) -> Result<Duration, String> {
        let failed = |error: io::Error| format!("cannot measure the round trip: {error}");
        let (listener, address) = listen().await.map_err(failed)?;
        let _echo = AbortOnDropHandle::new(tokio::spawn(echo(listener)));
        let proxy = self.add(address.to_string()).await?;
        let limit = MEASURE_LIMIT + self.rtt * 4 * ROUNDS;
        let median = timeout(limit, median_round_trip(proxy)).await;
        median
            .unwrap_or_else(|late| Err(late.into()))
            .map_err(failed)
    }
}

async fn median_round_trip(proxy: SocketAddr) -> io::Result<Duration> {
    let mut stream = TcpStream::connect(proxy).await?;
    stream.set_nodelay(true)?;
    let mut times = Vec::new();
    // The first round trip is not counted: it includes the delay of opening the connection.
    for _ in 0..=ROUNDS {
        let begin = Instant::now();
        stream.write_all(b"?").await?;
        stream.read_exact(&mut [0]).await?;
        times.push(begin.elapsed());
    }
    let times = &mut times[1..];
    times.sort_unstable();
    Ok(times[times.len() / 2])
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

/// Accepts connections until it is dropped, which closes them.
async fn accept(listener: TcpListener, server: String, rtt: Duration) {
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((client, _)) => drop(connections.spawn(forward(client, server.clone(), rtt))),
            Err(error) => {
                tracing::warn!(%server, %error, "a proxy of --rtt cannot accept a connection");
                sleep_until(Instant::now() + ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn forward(client: TcpStream, server: String, rtt: Duration) {
    // Opening a TCP connection takes one round trip.
    sleep_until(Instant::now() + rtt).await;
    match TcpStream::connect(&server).await {
        Ok(upstream) => {
            if let Err(error) = connect(client, upstream, rtt / 2).await {
                // Either side may close. Both connections are then closed.
                tracing::debug!(%server, %error, "a delayed connection broke");
            }
        }
        Err(error) => tracing::warn!(%server, %error, "a proxy of --rtt cannot reach its server"),
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
    async fn connected(proxies: &mut Proxies) -> (TcpStream, TcpStream) {
        let (listener, server) = listen().await.unwrap();
        let proxy = proxies.add(server.to_string()).await.unwrap();
        let client = TcpStream::connect(proxy).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        (client, server)
    }

    async fn assert_closed(end: &mut TcpStream) {
        let read = end.read(&mut [0]).await;
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }

    #[tokio::test]
    async fn round_trip_takes_at_least_the_rtt() {
        for rtt in [Duration::from_micros(300), RTT] {
            let measured = Proxies::new(rtt).measure().await.unwrap();
            assert!(measured >= rtt, "{measured:?} for {rtt:?}");
        }
    }

    #[tokio::test]
    async fn half_closed_connection_still_carries_the_answer() {
        let mut proxies = Proxies::new(RTT);
        let (mut client, mut server) = connected(&mut proxies).await;
        client.write_all(b"request").await.unwrap();
        client.shutdown().await.unwrap();
        let mut request = String::new();
        server.read_to_string(&mut request).await.unwrap();
        server.write_all(b"answer").await.unwrap();
        drop(server);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!((&*request, &*answer), ("request", "answer"));
    }

    #[tokio::test]
    async fn reset_and_drop_close_both_ends() {
        let mut proxies = Proxies::new(RTT);
        let (client, mut server) = connected(&mut proxies).await;
        client.set_zero_linger().unwrap();
        drop(client);
        assert_closed(&mut server).await;
        let (mut client, mut server) = connected(&mut proxies).await;
        drop(proxies);
        assert_closed(&mut client).await;
        assert_closed(&mut server).await;
    }
}

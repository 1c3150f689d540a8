//! Delaying proxies: each one listens on loopback and forwards to one server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

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

    /// Starts a proxy for the server at `host:port` and returns the proxy's address. An error is one
    /// line.
    pub(super) async fn add(&mut self, server: String) -> Result<SocketAddr, String> {
        let listening = listen().await;
        let (listener, address) =
            listening.map_err(|error| format!("a proxy cannot listen on loopback: {error}"))?;
        self.tasks.spawn(accept(listener, server, self.rtt));
        Ok(address)
    }

    /// Measures the round trip of one byte through a proxy: the median of [`ROUNDS`]. An error is
    /// one line.
    pub(super) async fn measure(&mut self) -> Result<Duration, String> {
        let limit = MEASURE_LIMIT + self.rtt * 4 * ROUNDS;
        let median = timeout(limit, self.median_round_trip()).await;
        let median = median.unwrap_or_else(|late| Err(late.into()));
        median.map_err(|error| format!("cannot measure the round trip: {error}"))
    }

    async fn median_round_trip(&mut self) -> io::Result<Duration> {
        let (mut client, mut server) = self.connect().await?;
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            client.write_all(b"?").await?;
            server.read_exact(&mut [0]).await?;
            server.write_all(b"!").await?;
            client.read_exact(&mut [0]).await?;
            times.push(begin.elapsed());
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }

    /// Both ends of a connection through a new proxy.
    async fn connect(&mut self) -> io::Result<(TcpStream, TcpStream)> {
        let (listener, address) = listen().await?;
        let proxy = self.add(address.to_string()).await;
        let client = TcpStream::connect(proxy.map_err(io::Error::other)?).await?;
        let (server, _) = listener.accept().await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        Ok((client, server))
    }
}

async fn listen() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
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

/// Forwards one connection until both directions have ended or one of them fails. Both connections
/// are then closed.
async fn forward(mut client: TcpStream, server: String, rtt: Duration) {
    // Opening a TCP connection takes one round trip.
    sleep_until(Instant::now() + rtt).await;
    let mut upstream = match TcpStream::connect(&server).await {
        Ok(upstream) => upstream,
        Err(error) => {
            tracing::warn!(%server, %error, "a proxy of --rtt cannot reach its server");
            return;
        }
    };
    let forwarded = async {
        client.set_nodelay(true)?;
        upstream.set_nodelay(true)?;
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = upstream.split();
        tokio::try_join!(
            carry(from_client, to_server, rtt / 2),
            carry(from_server, to_client, rtt / 2),
        )
    };
    if let Err(error) = forwarded.await {
        tracing::debug!(%server, %error, "a delayed connection broke");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(20);

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
        let (mut client, mut server) = proxies.connect().await.unwrap();
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
        let (client, mut server) = proxies.connect().await.unwrap();
        client.set_zero_linger().unwrap();
        drop(client);
        assert_closed(&mut server).await;
        let (mut client, mut server) = proxies.connect().await.unwrap();
        drop(proxies);
        assert_closed(&mut client).await;
        assert_closed(&mut server).await;
    }
}

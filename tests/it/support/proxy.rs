//! A TCP proxy that breaks what passes through it: all of it, or at one message of a protocol.
//!
//! It knows bytes only. A trigger is given the bytes of the message to look for, in the direction
//! from client to server; with them a connection can be lost just before or just after a `COMMIT`.
//! A connection that is encrypted shows it nothing.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::Url;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::ports::free_port;

/// How much is read at once.
const BUFFER: usize = 16 * 1024;
/// The longest pattern that a trigger may look for.
const LONGEST_PATTERN: usize = 64;

/// What happens to all that passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It passes.
    Pass,
    /// Connections are closed, and new ones refused.
    Refuse,
    /// Connections stay open and nothing passes, as if the cable were out; what is on its way
    /// arrives when another mode is set.
    Blackhole,
    /// Connections that are open now are dead from now on, for ever and without a sign to either
    /// side; new ones pass.
    Strand,
    /// It passes, each piece so much later in each direction.
    Delay(Duration),
}

/// The moment at which a trigger closes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// Before the server has seen the message.
    Before,
    /// When the server has carried it out and begins to answer; the client sees no answer.
    After,
}

/// A message to wait for, armed for a number of times.
#[derive(Debug)]
pub(crate) struct Trigger {
    pattern: Vec<u8>,
    moment: Moment,
    left: AtomicU32,
    fired: AtomicU32,
}

impl Trigger {
    /// How many connections it has closed.
    pub(crate) fn fired(&self) -> u32 {
        self.fired.load(Ordering::SeqCst)
    }

    /// Closes no connection any more.
    pub(crate) fn disarm(&self) {
        self.left.store(0, Ordering::SeqCst);
    }

    fn is_spent(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }

    /// Whether the pattern ends in the last `new` bytes of `seen`, and the trigger is still armed.
    fn takes(&self, seen: &[u8], new: usize) -> bool {
        // What lies wholly in the bytes before has been looked at when they came.
        let start = seen.len().saturating_sub(new + self.pattern.len() - 1);
        seen[start..]
            .windows(self.pattern.len())
            .any(|window| window == self.pattern)
            && self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(1)
                })
                .is_ok()
    }

    fn count(&self) {
        self.fired.fetch_add(1, Ordering::SeqCst);
    }
}

/// A proxy before one server; dropping it closes everything.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    orders: mpsc::Sender<(Mode, oneshot::Sender<()>)>,
    triggers: Arc<Triggers>,
    _acceptor: AbortOnDropHandle<()>,
}

type Triggers = Mutex<Vec<Arc<Trigger>>>;

impl Proxy {
    /// Starts a proxy before the server that listens at `upstream` (host and port).
    pub(crate) async fn to(upstream: impl Into<String>) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let listener = TcpListener::bind(address).await.expect("the port is free");
        let triggers = Arc::default();
        let (orders, inbox) = mpsc::channel(1);
        let acceptor = Acceptor {
            address,
            upstream: upstream.into(),
            mode: watch::Sender::new(Mode::Pass),
            stranded: Vec::new(),
            triggers: Arc::clone(&triggers),
            connections: JoinSet::new(),
        };
        Self {
            address,
            orders,
            triggers,
            _acceptor: AbortOnDropHandle::new(tokio::spawn(acceptor.run(listener, inbox))),
        }
    }

    /// Starts a proxy before the server of a URL, and gives the URL that leads through it.
    pub(crate) async fn before(url: &str) -> (Self, String) {
        let mut url = Url::parse(url).expect("a URL");
        let host = url.host_str().expect("a URL with a host");
        let port = url
            .port_or_known_default()
            .unwrap_or_else(|| match url.scheme() {
                "mysql" | "mariadb" => 3306,
                "postgres" | "postgresql" => 5432,
                scheme => panic!("a {scheme} URL has to name a port"),
            });
        let proxy = Self::to(format!("{host}:{port}")).await;
        url.set_host(Some("127.0.0.1")).expect("it has a host");
        url.set_port(Some(proxy.address.port()))
            .expect("it has a host");
        (proxy, url.into())
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what happens from now on, and returns when it is so.
    pub(crate) async fn set(&self, mode: Mode) {
        let (done, is_done) = oneshot::channel();
        let sent = self.orders.send((mode, done)).await;
        sent.expect("the proxy runs");
        is_done.await.expect("the proxy runs");
    }

    /// Closes the next `times` connections on which a client sends `pattern`; the server sees
    /// neither that nor what came in one piece with it.
    pub(crate) fn cut_before(&self, pattern: &[u8], times: u32) -> Arc<Trigger> {
        self.arm(pattern, Moment::Before, times)
    }

    /// Closes the next `times` connections on which a client sends `pattern`, once the server has
    /// answered it; the client does not see the answer.
    pub(crate) fn cut_after(&self, pattern: &[u8], times: u32) -> Arc<Trigger> {
        self.arm(pattern, Moment::After, times)
    }

    fn arm(&self, pattern: &[u8], moment: Moment, times: u32) -> Arc<Trigger> {
        assert!((1..=LONGEST_PATTERN).contains(&pattern.len()));
        let trigger = Arc::new(Trigger {
            pattern: pattern.to_vec(),
            moment,
            left: AtomicU32::new(times),
            fired: AtomicU32::new(0),
        });
        let mut triggers = lock(&self.triggers);
        triggers.retain(|trigger| !trigger.is_spent());
        triggers.push(Arc::clone(&trigger));
        drop(triggers);
        trigger
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Owns the listener and every connection.
struct Acceptor {
    address: SocketAddr,
    upstream: String,
    mode: watch::Sender<Mode>,
    /// What dead connections wait for in vain.
    stranded: Vec<watch::Sender<Mode>>,
    triggers: Arc<Triggers>,
    connections: JoinSet<()>,
}

impl Acceptor {
    async fn run(
        mut self,
        listener: TcpListener,
        mut orders: mpsc::Receiver<(Mode, oneshot::Sender<()>)>,
    ) {
        let mut listener = Some(listener);
        loop {
            tokio::select! {
                Some(client) = accept(listener.as_ref()) => self.connect(client),
                Some(_) = self.connections.join_next() => {}
                order = orders.recv() => {
                    let Some((mode, done)) = order else { return };
                    self.mode.send_replace(mode);
                    if mode == Mode::Strand {
                        let passes = watch::Sender::new(Mode::Pass);
                        self.stranded.push(std::mem::replace(&mut self.mode, passes));
                    }
                    if mode == Mode::Refuse {
                        listener = None;
                        self.connections.shutdown().await;
                    } else if listener.is_none() {
                        let bound = TcpListener::bind(self.address).await;
                        listener = Some(bound.expect("the proxy's port is still its own"));
                    }
                    // Nobody waits any more when the test was cancelled.
                    let _ = done.send(());
                }
            }
        }
    }

    fn connect(&mut self, client: TcpStream) {
        let upstream = self.upstream.clone();
        let mode = self.mode.subscribe();
        let triggers = Arc::clone(&self.triggers);
        self.connections.spawn(async move {
            // An error of either side ends both, which is all that a proxy can tell of it.
            let _ = pass_through(client, &upstream, mode, &triggers).await;
        });
    }
}

/// The next client, or none while there is no listener or it cannot accept.
async fn accept(listener: Option<&TcpListener>) -> Option<TcpStream> {
    let (client, _) = listener?.accept().await.ok()?;
    Some(client)
}

/// Carries one connection until either side ends it or a trigger does.
async fn pass_through(
    mut client: TcpStream,
    upstream: &str,
    mut mode: watch::Receiver<Mode>,
    triggers: &Triggers,
) -> io::Result<()> {
    passing(&mut mode).await;
    let mut server = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let answered = Mutex::new(None);
        tokio::select! {
            _ = requests(from_client, to_server, mode.clone(), triggers, &answered) => {}
            _ = answers(from_server, to_client, mode, &answered) => {}
        }
    }
    // Explicitly: a server that is not told keeps the transaction, and its locks, open.
    let _ = server.shutdown().await;
    client.shutdown().await
}

/// The trigger that closes the connection when the server answers.
type Answered = Mutex<Option<Arc<Trigger>>>;

/// Carries what the client sends, and looks for the triggers' patterns in it.
async fn requests(
    mut client: ReadHalf<'_>,
    mut server: WriteHalf<'_>,
    mut mode: watch::Receiver<Mode>,
    triggers: &Triggers,
    answered: &Answered,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    // The end of what came before, since a pattern may lie across two reads.
    let mut seen = Vec::new();
    loop {
        let length = client.read(&mut buffer).await?;
        passing(&mut mode).await;
        if length == 0 {
            return Ok(());
        }
        let piece = &buffer[..length];
        seen.extend_from_slice(piece);
        let trigger = lock(triggers)
            .iter()
            .find(|trigger| trigger.takes(&seen, length))
            .cloned();
        seen.drain(..seen.len().saturating_sub(LONGEST_PATTERN));
        if let Some(trigger) = trigger {
            match trigger.moment {
                Moment::Before => {
                    trigger.count();
                    return Ok(());
                }
                Moment::After => *lock(answered) = Some(trigger),
            }
        }
        server.write_all(piece).await?;
    }
}

/// Carries what the server answers, unless a trigger waits for just that.
async fn answers(
    mut server: ReadHalf<'_>,
    mut client: WriteHalf<'_>,
    mut mode: watch::Receiver<Mode>,
    answered: &Answered,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = server.read(&mut buffer).await?;
        passing(&mut mode).await;
        if length == 0 {
            return Ok(());
        }
        if let Some(trigger) = lock(answered).take() {
            trigger.count();
            return Ok(());
        }
        client.write_all(&buffer[..length]).await?;
    }
}

/// Returns when the mode lets the next piece pass.
async fn passing(mode: &mut watch::Receiver<Mode>) {
    loop {
        let now = *mode.borrow_and_update();
        match now {
            Mode::Pass => return,
            Mode::Delay(by) => return tokio::time::sleep(by).await,
            // In a blackhole until it ends; else until the acceptor ends this task.
            Mode::Blackhole | Mode::Strand | Mode::Refuse => {
                if mode.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

//! A TCP proxy that breaks what passes through it: every byte, or one message of a protocol.
//!
//! It understands bytes only. A trigger looks for the bytes of one message. With triggers a test can
//! cut a connection just before or just after a `COMMIT`, or hold a message on its way. The
//! connection must not be encrypted.
//!
//! Drivers send the text of a statement once for each connection, and later only its parameters. A
//! pattern that is a parameter is found at each execution, a word of SQL only at the first.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use url::Url;

use crate::ports::free_port;

mod trigger;

use trigger::{Action, Side, Triggers, Watcher, lock};
pub use trigger::{Hold, Trigger};

/// How many bytes are read at once.
const BUFFER: usize = 16 * 1024;

/// What the proxy does with all bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Forwards them.
    Pass,
    /// Closes open connections and refuses new ones.
    Refuse,
    /// Keeps connections open and forwards nothing, like a broken cable. Bytes sent meanwhile arrive
    /// when the mode is `Pass` again.
    Blackhole,
    /// Forwards nothing, indefinitely, on connections that are open now; neither side notices. New
    /// connections pass.
    Strand,
}

/// A proxy in front of one server. Dropping it closes every connection.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    modes: mpsc::Sender<(Mode, oneshot::Sender<()>)>,
    triggers: Arc<Triggers>,
    connections: Arc<AtomicU64>,
    _acceptor: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of the server at `upstream` (`host:port`).
    pub async fn to(upstream: impl Into<String>) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        Self::listen(address, upstream.into()).await
    }

    /// Starts a proxy in front of the server at a port of 127.0.0.1. It listens at the same port of
    /// 127.0.0.2, for servers that tell their clients the ports of others but not their hosts.
    pub async fn beside(port: u16) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 2], port));
        Self::listen(address, format!("127.0.0.1:{port}")).await
    }

    async fn listen(address: SocketAddr, upstream: String) -> Self {
        let listener = TcpListener::bind(address).await.expect("the port is free");
        let triggers = Arc::<Triggers>::default();
        let connections = Arc::<AtomicU64>::default();
        let (modes, new_modes) = mpsc::channel(1);
        let acceptor = Acceptor {
            address,
            upstream: upstream.into(),
            mode: watch::Sender::new(Mode::Pass),
            stranded: Vec::new(),
            triggers: Arc::clone(&triggers),
            accepted: Arc::clone(&connections),
            connections: JoinSet::new(),
        };
        Self {
            address,
            modes,
            triggers,
            connections,
            _acceptor: AbortOnDropHandle::new(tokio::spawn(acceptor.run(listener, new_modes))),
        }
    }

    /// Starts a proxy in front of the server of a URL. Returns it with the same URL through it.
    pub async fn before(url: &str) -> (Self, String) {
        let mut url = Url::parse(url).expect("a URL");
        let host = url.host_str().expect("a URL with a host");
        let port = url.port().unwrap_or_else(|| match url.scheme() {
            "mysql" | "mariadb" => 3306,
            "postgres" | "postgresql" => 5432,
            "redis" => 6379,
            scheme => panic!("a {scheme} URL must contain a port"),
        });
        let proxy = Self::to(format!("{host}:{port}")).await;
        url.set_host(Some("127.0.0.1")).expect("it has a host");
        url.set_port(Some(proxy.address.port()))
            .expect("it has a host");
        (proxy, url.into())
    }

    /// Starts a proxy in front of the only server of a ZooKeeper connect string. Returns it with the
    /// same connect string through it.
    pub async fn before_zookeeper(connect: &str) -> (Self, String) {
        assert!(!connect.contains(','), "{connect} names several servers");
        let (server, chroot) = connect.split_at(connect.find('/').unwrap_or(connect.len()));
        let proxy = Self::to(server).await;
        let through = format!("{}{chroot}", proxy.address);
        (proxy, through)
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections it has accepted.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }

    /// Changes the mode, and returns once it is in effect.
    pub async fn set(&self, mode: Mode) {
        let (done, is_done) = oneshot::channel();
        let sent = self.modes.send((mode, done)).await;
        sent.expect("the proxy is running");
        is_done.await.expect("the proxy is running");
    }

    /// Closes the next `times` connections on which a client sends `pattern`. The server does not
    /// receive what was read together with the end of the pattern.
    pub fn cut_before(&self, pattern: &[u8], times: u32) -> Arc<Trigger> {
        self.triggers
            .arm(Side::Client, pattern, Action::CutBefore, times)
    }

    /// Closes the next `times` connections on which a client sends `pattern`, once the server has
    /// answered. The client does not receive the answer.
    pub fn cut_after(&self, pattern: &[u8], times: u32) -> Arc<Trigger> {
        self.triggers
            .arm(Side::Client, pattern, Action::CutAfter, times)
    }

    /// Holds the next piece with `pattern` that a client sends. It arrives when the hold is dropped,
    /// even if the client has disconnected: the server learns of the disconnect only then.
    pub fn hold_request(&self, pattern: &[u8]) -> Hold {
        self.triggers.arm_hold(Side::Client, pattern, Action::Hold)
    }

    /// Holds the next piece with `pattern` that a client sends, and closes the connection to that
    /// client. The server learns of the disconnect after it has answered the piece.
    pub fn hold_and_cut(&self, pattern: &[u8]) -> Hold {
        self.triggers
            .arm_hold(Side::Client, pattern, Action::HoldAndCut)
    }

    /// Holds the next piece with `pattern` that a server sends. The client can still send.
    pub fn hold_answer(&self, pattern: &[u8]) -> Hold {
        self.triggers.arm_hold(Side::Server, pattern, Action::Hold)
    }
}

/// The task that owns the listener and every connection.
struct Acceptor {
    address: SocketAddr,
    upstream: Arc<str>,
    /// The mode of the connections that are not stranded.
    mode: watch::Sender<Mode>,
    /// The modes of stranded connections, which never change.
    stranded: Vec<watch::Sender<Mode>>,
    triggers: Arc<Triggers>,
    accepted: Arc<AtomicU64>,
    connections: JoinSet<()>,
}

impl Acceptor {
    async fn run(
        mut self,
        listener: TcpListener,
        mut modes: mpsc::Receiver<(Mode, oneshot::Sender<()>)>,
    ) {
        let mut listener = Some(listener);
        loop {
            tokio::select! {
                Some(client) = accept(listener.as_ref()) => self.connect(client),
                Some(_) = self.connections.join_next() => {}
                order = modes.recv() => {
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
                        let mut bound = TcpListener::bind(self.address).await;
                        // A process that is being started has the old listener until its `exec`.
                        let limit = Instant::now() + Duration::from_secs(10);
                        while bound.is_err() && Instant::now() < limit {
                            sleep(Duration::from_millis(10)).await;
                            bound = TcpListener::bind(self.address).await;
                        }
                        listener = Some(bound.expect("no other program took the port"));
                    }
                    // Fails if the test was cancelled.
                    let _ = done.send(());
                }
            }
        }
    }

    fn connect(&mut self, client: TcpStream) {
        self.accepted.fetch_add(1, Ordering::SeqCst);
        let upstream = Arc::clone(&self.upstream);
        let mode = self.mode.subscribe();
        let triggers = Arc::clone(&self.triggers);
        self.connections.spawn(async move {
            // An error on either side closes both, which is all that a proxy can report.
            let _ = pass_through(client, &upstream, mode, &triggers).await;
        });
    }
}

/// The next client; `None` if there is no listener or it cannot accept.
async fn accept(listener: Option<&TcpListener>) -> Option<TcpStream> {
    let (client, _) = listener?.accept().await.ok()?;
    Some(client)
}

/// Forwards one connection until one side or a trigger ends it.
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
        let cut = Mutex::new(None);
        let client_cut = CancellationToken::new();
        let forward = |side| Forward {
            side,
            mode: mode.clone(),
            watcher: Watcher::new(triggers, side),
            cut_at_answer: &cut,
            client_cut: &client_cut,
        };
        tokio::select! {
            _ = forward(Side::Client).run(from_client, to_server) => {}
            _ = forward(Side::Server).run(from_server, to_client) => {}
        }
    }
    // Without it the server would keep the transaction and its locks open.
    let _ = server.shutdown().await;
    client.shutdown().await
}

/// Forwards what one side of a connection sends.
struct Forward<'a> {
    side: Side,
    mode: watch::Receiver<Mode>,
    watcher: Watcher<'a>,
    /// The trigger that closes the connection when the server answers next.
    cut_at_answer: &'a Mutex<Option<Arc<Trigger>>>,
    /// Cancelled when the connection to the client is closed before the one to the server.
    client_cut: &'a CancellationToken,
}

impl Forward<'_> {
    async fn run(mut self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        let mut cut = false;
        loop {
            let length = tokio::select! {
                length = from.read(&mut buffer) => length?,
                () = self.client_cut.cancelled(), if !cut && self.side == Side::Server => {
                    to.shutdown().await?;
                    cut = true;
                    continue;
                }
            };
            passing(&mut self.mode).await;
            if length == 0 {
                return Ok(());
            }
            if self.side == Side::Server
                && let Some(trigger) = lock(self.cut_at_answer).take()
            {
                trigger.count();
                return Ok(());
            }
            let piece = &buffer[..length];
            if let Some(trigger) = self.watcher.look(piece) {
                match &trigger.action {
                    Action::CutBefore => {
                        trigger.count();
                        return Ok(());
                    }
                    Action::CutAfter => *lock(self.cut_at_answer) = Some(trigger),
                    Action::Hold(released) => {
                        trigger.count();
                        released.cancelled().await;
                        passing(&mut self.mode).await;
                    }
                    Action::HoldAndCut(released) => {
                        trigger.count();
                        self.client_cut.cancel();
                        released.cancelled().await;
                        passing(&mut self.mode).await;
                        *lock(self.cut_at_answer) = Some(Arc::clone(&trigger));
                        to.write_all(piece).await?;
                        // The other direction ends the connection when the server answers.
                        return std::future::pending().await;
                    }
                }
            }
            to.write_all(piece).await?;
        }
    }
}

/// Returns when the mode lets the next piece pass.
async fn passing(mode: &mut watch::Receiver<Mode>) {
    loop {
        let now = *mode.borrow_and_update();
        match now {
            Mode::Pass => return,
            // In Strand and Refuse, until the acceptor ends this task.
            Mode::Blackhole | Mode::Strand | Mode::Refuse => {
                if mode.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

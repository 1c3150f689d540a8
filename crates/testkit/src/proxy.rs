//! A TCP proxy that breaks what passes through it: all of it, or at one message of a protocol.
//!
//! It knows bytes only. A trigger is given the bytes of the message to look for: with them a
//! connection can be lost just before or just after a `COMMIT`, and a message can be held on its
//! way. A connection that is encrypted shows it nothing.
//!
//! Drivers send the text of a statement once for each connection, and later only its parameters: a
//! value that is the test's own is found in each execution, a word of SQL in the first.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use url::Url;

use super::ports::free_port;

mod trigger;

use trigger::{Act, Side, Triggers, Watcher, lock};
pub use trigger::{Hold, Trigger};

/// How much is read at once.
const BUFFER: usize = 16 * 1024;

/// What happens to all that passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
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

/// A proxy before one server; dropping it closes everything.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    orders: mpsc::Sender<(Mode, oneshot::Sender<()>)>,
    triggers: Arc<Triggers>,
    _acceptor: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Starts a proxy before the server that listens at `upstream` (host and port).
    pub async fn to(upstream: impl Into<String>) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let listener = TcpListener::bind(address).await.expect("the port is free");
        let triggers = Arc::<Triggers>::default();
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
    pub async fn before(url: &str) -> (Self, String) {
        let mut url = Url::parse(url).expect("a URL");
        let host = url.host_str().expect("a URL with a host");
        let port = url
            .port_or_known_default()
            .unwrap_or_else(|| match url.scheme() {
                "mysql" | "mariadb" => 3306,
                "postgres" | "postgresql" => 5432,
                "redis" => 6379,
                scheme => panic!("a {scheme} URL has to name a port"),
            });
        let proxy = Self::to(format!("{host}:{port}")).await;
        url.set_host(Some("127.0.0.1")).expect("it has a host");
        url.set_port(Some(proxy.address.port()))
            .expect("it has a host");
        (proxy, url.into())
    }

    /// Starts a proxy before the one server of a ZooKeeper connect string, and gives the connect
    /// string that leads through it.
    pub async fn before_zookeeper(connect: &str) -> (Self, String) {
        assert!(!connect.contains(','), "{connect} names several servers");
        let path = connect.find('/').unwrap_or(connect.len());
        let (server, chroot) = connect.split_at(path);
        let proxy = Self::to(server).await;
        let through = format!("{}{chroot}", proxy.address);
        (proxy, through)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what happens from now on, and returns when it is so.
    pub async fn set(&self, mode: Mode) {
        let (done, is_done) = oneshot::channel();
        let sent = self.orders.send((mode, done)).await;
        sent.expect("the proxy runs");
        is_done.await.expect("the proxy runs");
    }

    /// Closes the next `times` connections on which a client sends `pattern`; the server sees
    /// neither that nor what came in one piece with it.
    pub fn cut_before(&self, pattern: &[u8], times: u32) -> Arc<Trigger> {
        self.triggers
            .arm(Side::Client, pattern, Act::CutBefore, times)
    }

    /// Closes the next `times` connections on which a client sends `pattern`, once the server has
    /// answered it; the client does not see the answer.
    pub fn cut_after(&self, pattern: &[u8], times: u32) -> Arc<Trigger> {
        self.triggers
            .arm(Side::Client, pattern, Act::CutAfter, times)
    }

    /// Closes the next `times` connections on which a server sends `pattern`, which the client does
    /// not see.
    pub fn cut_answer(&self, pattern: &[u8], times: u32) -> Arc<Trigger> {
        self.triggers
            .arm(Side::Server, pattern, Act::CutBefore, times)
    }

    /// Holds the next piece with `pattern` that a client sends. It arrives when it is let go, even
    /// if the client has gone meanwhile: only then does the server learn of that.
    pub fn hold_request(&self, pattern: &[u8]) -> Hold {
        self.triggers.arm_hold(Side::Client, pattern)
    }

    /// Holds the next piece with `pattern` that a server sends; the client may send more meanwhile.
    pub fn hold_answer(&self, pattern: &[u8]) -> Hold {
        self.triggers.arm_hold(Side::Server, pattern)
    }
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
            _ = answers(from_server, to_client, mode, triggers, &answered) => {}
        }
    }
    // Explicitly: a server that is not told keeps the transaction, and its locks, open.
    let _ = server.shutdown().await;
    client.shutdown().await
}

/// The trigger that closes the connection when the server answers.
type Answered = Mutex<Option<Arc<Trigger>>>;

/// Carries what the client sends.
async fn requests(
    mut client: ReadHalf<'_>,
    mut server: WriteHalf<'_>,
    mut mode: watch::Receiver<Mode>,
    triggers: &Triggers,
    answered: &Answered,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    let mut watcher = Watcher::new(triggers, Side::Client);
    loop {
        let length = client.read(&mut buffer).await?;
        passing(&mut mode).await;
        if length == 0 {
            return Ok(());
        }
        let piece = &buffer[..length];
        if let Some(trigger) = watcher.look(piece) {
            match &trigger.act {
                Act::CutBefore => {
                    trigger.count();
                    return Ok(());
                }
                Act::CutAfter => *lock(answered) = Some(trigger),
                Act::Hold(over) => hold(&trigger, over, &mut mode).await,
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
    triggers: &Triggers,
    answered: &Answered,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    let mut watcher = Watcher::new(triggers, Side::Server);
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
        let piece = &buffer[..length];
        if let Some(trigger) = watcher.look(piece) {
            match &trigger.act {
                Act::Hold(over) => hold(&trigger, over, &mut mode).await,
                Act::CutBefore | Act::CutAfter => {
                    trigger.count();
                    return Ok(());
                }
            }
        }
        client.write_all(piece).await?;
    }
}

/// Returns when the piece that a trigger has found is let go.
async fn hold(trigger: &Trigger, over: &CancellationToken, mode: &mut watch::Receiver<Mode>) {
    trigger.count();
    over.cancelled().await;
    passing(mode).await;
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

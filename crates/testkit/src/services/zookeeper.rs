//! ZooKeeper: how it is started, and a root of a test's own on the one that the tests share.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use async_trait::async_trait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zookeeper_client::{Acls, Client, CreateMode, Error};

use super::program::{Program, find};
use super::shared::{Cell, shared};
use super::supervisor::{Supervisor, create_directory, unprivileged};
use super::{random_name, without_runtime};

/// The second is there so that the log says why a server ended; a jar that is missing is ignored.
const JARS: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar";

/// A ZooKeeper server of one node. Its ticks are of 100 ms, so that sessions may be as short as
/// 200 ms, and containers go soon after they are empty.
#[derive(Debug, Clone, Copy)]
pub(super) struct ZooKeeper;

#[async_trait]
impl Program for ZooKeeper {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn variable(&self) -> &'static str {
        "TEST_ZOOKEEPER_CONNECT"
    }

    fn url(&self, port: u16) -> String {
        format!("127.0.0.1:{port}")
    }

    async fn prepare(&self, port: u16) -> Result<Supervisor> {
        let directory = create_directory(self.name())?;
        let settings = format!(
            "tickTime=100\nminSessionTimeout=200\nmaxSessionTimeout=60000\ndataDir={}\n\
             clientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n\
             maxClientCnxns=0\n4lw.commands.whitelist=conf,srvr\n",
            directory.join("data").display(),
        );
        let file = directory.join("zoo.cfg");
        fs::write(&file, settings)?;
        let mut line = unprivileged(find("java")?);
        // What a killed process has written the system still has, synchronised or not.
        let options = format!(
            "-Xmx128m -Xss256k -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
             -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dzookeeper.forceSync=no \
             -Dznode.container.checkIntervalMs=200 -Dznode.container.maxPerMinute=1000000 \
             -cp {JARS} org.apache.zookeeper.server.ZooKeeperServerMain"
        );
        line.extend(options.split_whitespace().map(OsString::from));
        line.push(file.into());
        Supervisor::new(directory, "KILL", &line)
    }

    async fn version(&self, url: &str) -> Result<String> {
        told(url, "srvr", "Zookeeper version: ").await
    }

    async fn data_directory(&self, url: &str) -> Result<PathBuf> {
        // Refused until it serves clients.
        told(url, "conf", "dataDir=").await.map(PathBuf::from)
    }
}

/// What stands after `label`, up to a comma, in the answer of the first server of a connect string
/// to a word of four letters.
async fn told(connect: &str, word: &str, label: &str) -> Result<String> {
    let server = connect.split([',', '/']).next().unwrap_or(connect);
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(word.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let found = answer.lines().find_map(|line| line.strip_prefix(label));
    let found = found.with_context(|| format!("to \"{word}\" it says: {answer}"))?;
    Ok(found.split(',').next().unwrap_or(found).to_owned())
}

/// A root of one test's own, empty at first, on the ZooKeeper that the tests share.
#[derive(Debug)]
pub struct TestZooKeeper {
    /// Where it is, as `ZOOKEEPER_CONNECT` would say: the root is the path at its end.
    pub connect: String,
    /// The server and the root's name, if the server stays when the tests have ended.
    remains: Option<(String, String)>,
}

/// Creates an empty root for one test.
///
/// # Panics
/// When there is no ZooKeeper, and none can be started.
pub async fn fresh_zookeeper() -> TestZooKeeper {
    static SHARED: Cell = Cell::const_new();
    let shared = shared(&SHARED, ZooKeeper).await;
    let created = TestZooKeeper::create(&shared.url, shared.stays()).await;
    created.expect("the shared ZooKeeper lets a test in")
}

impl TestZooKeeper {
    /// Creates an empty root on the server of a connect string.
    pub async fn create(server: &str, stays: bool) -> Result<Self> {
        let root = format!("/{}", random_name());
        let client = Client::connect(server).await?;
        // A chroot has to be there before anything can be created in it.
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.create(&root, b"", &options).await?;
        Ok(Self {
            connect: format!("{server}{root}"),
            remains: stays.then(|| (server.to_owned(), root)),
        })
    }
}

/// Removes a node with all that is below it.
async fn remove(server: &str, root: &str) -> Result<()> {
    let client = Client::connect(server).await?;
    let mut nodes = vec![root.to_owned()];
    // Each node comes before those below it.
    for index in 0.. {
        let Some(node) = nodes.get(index) else { break };
        let children = match client.list_children(node).await {
            Err(Error::NoNode) => Vec::new(),
            children => children?,
        };
        let children: Vec<_> = children
            .iter()
            .map(|name| format!("{node}/{name}"))
            .collect();
        nodes.extend(children);
    }
    for node in nodes.iter().rev() {
        match client.delete(node, None).await {
            // An ephemeral node may end by itself.
            Ok(()) | Err(Error::NoNode) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl Drop for TestZooKeeper {
    fn drop(&mut self) {
        let Some((server, root)) = &self.remains else {
            return;
        };
        if let Err(error) = without_runtime(remove(server, root)) {
            eprintln!("a test's ZooKeeper root stays behind: {error:#}");
        }
    }
}

//! ZooKeeper: its command line, and roots for tests.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use zookeeper_client::{Acls, Client, CreateMode, Error};

use crate::ask;
use crate::installed::server_command;
use crate::supervisor::write_file;

/// The second writes the log; without it the server runs and logs nothing.
const JARS: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar";

/// The command line of a server of one node.
pub fn command(directory: &Path, port: u16, is_test: bool) -> Result<Command> {
    // Sessions last at least two ticks.
    let tick = if is_test { 100 } else { 2_000 };
    let settings = format!("tickTime={tick}\n");
    java(directory, &directory.join("data"), port, &settings, is_test)
}

/// The command line of a server of several. `settings` name all of them; the file `myid` in the
/// directory says which one it is.
pub fn ensemble_command(directory: &Path, port: u16, settings: &str) -> Result<Command> {
    java(directory, directory, port, settings, true)
}

fn java(
    directory: &Path,
    data: &Path,
    port: u16,
    settings: &str,
    is_test: bool,
) -> Result<Command> {
    let settings = format!(
        "{settings}maxSessionTimeout=60000\ndataDir={}\nclientPort={port}\n\
         clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n\
         4lw.commands.whitelist=*\n",
        data.display(),
    );
    let file = write_file(directory, "zoo.cfg", &settings)?;
    let mut command = server_command("java")?;
    let options = "-Xmx128m -Xss256k -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
                   -Dorg.slf4j.simpleLogger.defaultLogLevel=warn";
    command.args(options.split(' '));
    if is_test {
        // The system keeps what a killed process wrote, even if it was not synchronised. Empty
        // containers are removed soon. A server repeats its vote every second, not after up to a
        // minute.
        let options = "-Dzookeeper.forceSync=no -Dznode.container.checkIntervalMs=200 \
                       -Dznode.container.maxPerMinute=1000000 \
                       -Dzookeeper.fastleader.maxNotificationInterval=1000";
        command.args(options.split(' '));
    }
    command.args([
        "-cp",
        JARS,
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
    ]);
    command.arg(file);
    Ok(command)
}

/// The version and the data directory of the first server of a connect string.
pub async fn probe(connect: &str) -> Result<(String, String)> {
    let server = connect.split([',', '/']).next().unwrap_or(connect);
    let field = async |word, label| {
        let answer = ask(server, word).await?;
        let value = answer.lines().find_map(|line| line.strip_prefix(label));
        // The version is followed by a comma and the date of the build.
        let value = value.and_then(|value| value.split(',').next());
        let value = value.with_context(|| format!("answer to `{word}`: {answer}"))?;
        anyhow::Ok(value.to_owned())
    };
    // Refused until the server is ready.
    let data_directory = field("conf", "dataDir=").await?;
    Ok((field("srvr", "Zookeeper version: ").await?, data_directory))
}

/// Creates a node.
pub async fn create(server: &str, path: &str) -> Result<()> {
    let client = Client::connect(server).await?;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create(path, b"", &options).await?;
    Ok(())
}

/// Removes a node and everything below it.
pub async fn remove(server: &str, path: &str) -> Result<()> {
    let client = Client::connect(server).await?;
    let mut nodes = vec![path.to_owned()];
    // Each node is followed by the nodes below it.
    for index in 0.. {
        let Some(node) = nodes.get(index).cloned() else {
            break;
        };
        match client.list_children(&node).await {
            Err(Error::NoNode) => {}
            children => nodes.extend(children?.iter().map(|name| format!("{node}/{name}"))),
        }
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

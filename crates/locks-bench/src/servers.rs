//! Private servers, started by `testkit up`. They end with this process.

use std::process::Stdio;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

/// The servers.
pub(crate) struct Servers {
    /// The address.
    pub(crate) redis: String,
    /// The address.
    pub(crate) zookeeper: String,
    _process: Child,
    /// The servers end when this closes.
    _input: Option<ChildStdin>,
}

impl Servers {
    pub(crate) async fn start(testkit: &str) -> Result<Self> {
        let mut command = Command::new(testkit);
        command.args(["up", "--json", "--only", "redis,zookeeper"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let process = command.spawn();
        let mut process = process.with_context(|| format!("cannot run {testkit}"))?;
        let output = process.stdout.take().context("testkit has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).await?;
        let found: Value = serde_json::from_str(&line).context("the output of testkit")?;
        let field = |server: &str, name: &str| {
            let value = found[server][name].as_str().map(str::to_owned);
            value.with_context(|| format!("testkit started no {server}"))
        };
        Ok(Self {
            redis: field("redis", "url")?,
            zookeeper: field("zookeeper", "connect")?,
            _input: process.stdin.take(),
            _process: process,
        })
    }
}

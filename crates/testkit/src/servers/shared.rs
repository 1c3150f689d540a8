//! The servers that tests share.

use anyhow::{Context, Result};
use clap::ValueEnum;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::sql::create_templates;
use super::{PrivateServer, Program, RedisCluster, Settings, cluster, masters};
use crate::run::{announce, variable};

/// A server that tests share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) url: String,
    /// Whether the server outlives the tests, which must then remove what they created.
    pub(super) stays: bool,
    /// A private server, which ends when this is dropped; `None` if a variable names the server.
    _private: Option<PrivateServer>,
}

impl Shared {
    /// The server of a program. It is found or started at the first call.
    ///
    /// # Panics
    /// If there is none and none can be started. Later calls panic at once, with the same message.
    pub(super) async fn server(program: Program) -> &'static Self {
        type Cell = OnceCell<Result<Shared, String>>;
        static CELLS: [Cell; 4] = [const { Cell::const_new() }; 4];
        let found = CELLS[program as usize].get_or_init(async || {
            let found = Self::find_or_start(program).await;
            found.map_err(|error| format!("no {} for the tests: {error:#}", program.name()))
        });
        let found = found.await.as_ref();
        found.unwrap_or_else(|message| panic!("{message}"))
    }

    async fn find_or_start(program: Program) -> Result<Self> {
        let begin = Instant::now();
        let (url, private, origin) = if let Some(url) = variable(program.variable()) {
            let origin = format!("the server that {} names", program.variable());
            (url, None, origin)
        } else {
            let private = PrivateServer::launch(program, &Settings::Shared, &[]).await?;
            let origin = format!("a private server, ready in {:.1?}", begin.elapsed());
            (private.url().to_owned(), Some(private), origin)
        };
        let started = variable("TEST_STARTED").unwrap_or_default();
        let ends = started.split(' ').any(|name| name == program.name());
        let probe = program.probe(&url).await;
        let version = probe
            .with_context(|| format!("cannot use {origin}"))?
            .version;
        announce(format_args!(
            "the tests use {} {version}: {origin}",
            program.name()
        ));
        Ok(Self {
            url,
            stays: private.is_none() && !ends,
            _private: private,
        })
    }
}

/// Finds or starts everything that tests share, and returns the variables that name it for other
/// processes. What was started ends with this process.
///
/// # Panics
/// If a server is missing and cannot be started.
pub async fn share() -> Result<Vec<(&'static str, String)>> {
    let programs = async {
        let mut found = Vec::new();
        for &program in Program::value_variants() {
            found.push((program, Shared::server(program).await));
        }
        found
    };
    let (programs, masters, cluster, templates) = tokio::join!(
        Box::pin(programs),
        Box::pin(masters::masters()),
        RedisCluster::shared(),
        create_templates(),
    );
    let mut started = Vec::new();
    let mut variables = vec![
        ("TEST_TEMPLATES", templates?.display().to_string()),
        (masters::VARIABLE, masters.join(",")),
        (cluster::VARIABLE, cluster.addresses().join(",")),
    ];
    for (program, server) in programs {
        variables.push((program.variable(), server.url.clone()));
        if !server.stays {
            started.push(program.name());
        }
    }
    variables.push(("TEST_STARTED", started.join(" ")));
    Ok(variables)
}

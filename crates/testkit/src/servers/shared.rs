//! The servers that the tests of this process share.

use anyhow::{Context, Result};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::{PrivateServer, Program, Settings};
use crate::run::{announce, variable};

/// A server that the tests of this process share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) url: String,
    /// A private server, which ends when this is dropped; `None` if a variable names the server.
    private: Option<PrivateServer>,
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
        let (found, origin) = if let Some(url) = variable(program.variable()) {
            let origin = format!("the server that {} names", program.variable());
            (Self { url, private: None }, origin)
        } else {
            let private = PrivateServer::launch(program, &Settings::Test, &[]).await?;
            let url = private.url().to_owned();
            let private = Some(private);
            let origin = format!("a private server, ready in {:.1?}", begin.elapsed());
            (Self { url, private }, origin)
        };
        let probe = program.probe(&found.url).await;
        let version = probe
            .with_context(|| format!("cannot use {origin}"))?
            .version;
        announce(format_args!(
            "the tests use {} {version}: {origin}",
            program.name()
        ));
        Ok(found)
    }

    /// Whether the server outlives the tests, which must then remove what they created.
    pub(super) fn stays(&self) -> bool {
        self.private.is_none()
    }
}

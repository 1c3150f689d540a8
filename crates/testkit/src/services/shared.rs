//! The servers that the tests share: each is looked for, or started, once for the run.

use std::io::Write;

use anyhow::{Context, Result};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::program::Program;
use super::{PrivateServer, environment};

/// A server that the tests share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) url: String,
    /// Ours; kept because dropping it ends the server.
    process: Option<PrivateServer>,
}

impl Shared {
    /// Whether it stays when the tests have ended, and so must be left as it was.
    pub(super) fn stays(&self) -> bool {
        self.process.is_none()
    }
}

/// The failure is kept too, so that each test says why at once instead of trying again.
pub(super) type Cell = OnceCell<Result<Shared, String>>;

/// What is in the cell; at first, the server that the environment names, or one of our own.
///
/// # Panics
/// When there is none, and none can be started.
pub(super) async fn shared(
    cell: &'static Cell,
    program: impl Program + Clone + 'static,
) -> &'static Shared {
    let name = program.name();
    let found = cell
        .get_or_init(|| async {
            find_or_start(program)
                .await
                .map_err(|error| format!("{error:#}"))
        })
        .await;
    match found {
        Ok(shared) => shared,
        Err(message) => panic!("no {name} for the tests: {message}"),
    }
}

async fn find_or_start(program: impl Program + Clone + 'static) -> Result<Shared> {
    let begin = Instant::now();
    let (found, origin) = if let Some(url) = environment(program.variable()) {
        let origin = format!("the server that {} names", program.variable());
        (Shared { url, process: None }, origin)
    } else {
        let process = PrivateServer::try_start(program.clone()).await?;
        let url = process.url().to_owned();
        let process = Some(process);
        let origin = format!("a server of their own, up in {:.1?}", begin.elapsed());
        (Shared { url, process }, origin)
    };
    let version = program
        .version(&found.url)
        .await
        .with_context(|| format!("{origin} cannot be used"))?;
    // Written past the test harness, which keeps what `eprintln!` says of a test that passes.
    writeln!(
        std::io::stderr(),
        "the tests use {} {version}: {origin}",
        program.name()
    )?;
    Ok(found)
}

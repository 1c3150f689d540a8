//! `stocklock lab --replica N`: a replica that `stocklock race` starts as a child process.
//!
//! It prints its address as one line of JSON and stops when its standard input is closed, so it
//! never outlives the race. The race has migrated the database.

use std::io;
use std::thread;

use serde_json::json;

use super::serve::{listen, stop_on_signal};
use super::{Failure, print_output, start_logging};
use crate::app::Replica;
use crate::config::{Config, Mode};
use crate::descriptors::allow_connections;

/// Serves until standard input is closed or a signal arrives.
pub(super) async fn run(config: &Config, number: u32) -> Result<(), Failure> {
    start_logging(&config.log)?;
    allow_connections(config.connections());
    let replica = Replica::build(config, Mode::Lab).map_err(Failure::Setting)?;
    let (listener, address) = listen("LISTEN", config.listen(Mode::Lab))?;
    stop_on_signal(&replica)?;
    stop_with_stdin(&replica);
    // The replicas of a race share their servers: one warning is enough.
    if number == 1 {
        replica.warn_of_unsafe_settings().await;
    }
    let announcement = json!({"listening": format!("http://{address}")});
    print_output(&format!("{announcement}\n"))?;
    replica.run(listener, None).await;
    Ok(())
}

/// Stops the replica at the end of standard input. This needs its own thread: a read that tokio
/// started would keep the process alive after a signal.
fn stop_with_stdin(replica: &Replica) {
    let shutdown = replica.shutdown_token();
    thread::spawn(move || {
        // An error means the same as the end: the race cannot be reached.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        shutdown.cancel();
    });
}

//! `stocklock journal`: what is in the journals of the stock in Redis.

use clap::{Args, Subcommand};
use serde_json::json;

use super::Failure;
use super::servers::ServerArgs;
use stocklock_store::RejectedEntry;

/// Inspect the journals of the stock in Redis
#[derive(Debug, Subcommand)]
pub enum JournalCommand {
    /// List the entries that the SQL ledger refuses, one line of JSON for each
    Rejected(RejectedArgs),
}

/// The servers to ask.
#[derive(Debug, Args)]
pub struct RejectedArgs {
    /// The servers.
    #[command(flatten)]
    servers: ServerArgs,
}

impl JournalCommand {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let Self::Rejected(args) = self;
        let stores = args.servers.open_with_redis("the journals are in Redis")?;
        let found = stores.rejected_entries().await;
        stores.store.close().await;
        let found = found.map_err(|error| Failure::Other(format!("cannot list: {error}")))?;
        for entry in &found {
            println!("{}", line(entry));
        }
        Ok(())
    }
}

fn line(entry: &RejectedEntry) -> serde_json::Value {
    let movements = entry.movements.iter().map(|movement| {
        json!({
            "id": movement.operation.to_string(),
            "sku": movement.sku.as_str(),
            "warehouse": movement.warehouse.as_str(),
            "kind": movement.kind.as_str(),
            "delta": movement.delta,
        })
    });
    json!({
        "entry": entry.id,
        "level": entry.level,
        "reason": entry.reason,
        "movements": movements.collect::<Vec<_>>(),
    })
}

//! `stocklock repair`: corrects stock in Redis that is too high because Redis has lost sales that SQL
//! has.

use clap::Args;

use super::Failure;
use super::audit::sku;
use super::servers::ServerArgs;
use stocklock_core::stock::Sku;
use stocklock_store::{Repair, Repaired, Stores};

/// Correct stock in Redis that the ledger shows to be sold
#[derive(Debug, Args)]
pub struct RepairArgs {
    /// The SKU whose levels are corrected, in all warehouses
    #[arg(long, value_name = "SKU", value_parser = sku)]
    sku: Sku,

    /// The servers.
    #[command(flatten)]
    servers: ServerArgs,
}

/// Repairs, and prints what it did in each warehouse.
pub(super) async fn repair(args: RepairArgs) -> Result<(), Failure> {
    let stores = args.servers.open()?;
    let repaired = repair_sku(&stores, &args.sku).await;
    stores.store.close().await;
    repaired
}

async fn repair_sku(stores: &Stores, sku: &Sku) -> Result<(), Failure> {
    let repaired = stores.store.repair(sku).await;
    let repairs = repaired
        .map_err(|error| Failure::Other(format!("cannot repair: {error}; run the command again")))?
        .ok_or_else(|| Failure::Other(format!("the stock of {sku} is in SQL, not in Redis")))?;
    if repairs.is_empty() {
        return Err(Failure::Other(format!("there is no SKU {sku}")));
    }
    let mut failed = false;
    for repair in repairs {
        println!("{sku} {}: {}", repair.warehouse, result(&repair));
        failed |= !matches!(repair.result, Repaired::NotNeeded | Repaired::Corrected);
    }
    if failed {
        return Err(Failure::Other(
            "not all levels could be corrected".to_owned(),
        ));
    }
    Ok(())
}

fn result(repair: &Repair) -> String {
    let Repair { drift, on_hand, .. } = repair;
    match repair.result {
        Repaired::NotNeeded => format!("nothing to do, {on_hand} on hand"),
        Repaired::Corrected => format!("{drift} units too high; corrected to {on_hand} on hand"),
        Repaired::TooLow => format!(
            "{} units too low; nothing was changed, because SQL does not have all sales",
            drift.abs()
        ),
        Repaired::UnreadableEntries => {
            "nothing was changed, because the journal has entries that cannot be read".to_owned()
        }
    }
}

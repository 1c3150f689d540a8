//! `stocklock audit`: compares levels with the ledger, and prints one line of JSON per SKU.

use std::sync::Arc;

use clap::Args;

use super::{Failure, print_output, start_logging};
use crate::app::open_store;
use crate::config::{DatabaseConfig, Limits, LogConfig};
use crate::http::audit_line;
use stocklock_core::ports::StoreError;
use stocklock_core::stock::{Audit, Sku};
use stocklock_store::{AllAudits, Store};

/// Compare levels with the ledger
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// The SKUs to audit
    #[arg(value_name = "SKU", required_unless_present = "all", value_parser = sku)]
    skus: Vec<Sku>,

    /// Audit every SKU
    #[arg(long, conflicts_with = "skus")]
    all: bool,

    /// Exit with code 1 if a level differs from its ledger, or more was sold than was there.
    /// Without it, too, the code is 3 if a SKU cannot be audited
    #[arg(long)]
    fail_on_drift: bool,

    /// The database.
    #[command(flatten)]
    database: DatabaseConfig,
    /// The limits.
    #[command(flatten)]
    limits: Limits,
    /// The log.
    #[command(flatten)]
    log: LogConfig,
}

fn sku(text: &str) -> Result<Sku, String> {
    Sku::parse(text).map_err(|error| error.to_string())
}

/// Audits, and prints what it finds.
pub(super) async fn audit(args: AuditArgs) -> Result<(), Failure> {
    start_logging(&args.log)?;
    let store = open_store(&args.database, &args.limits).map_err(Failure::Setting)?;
    let wrong = print_audits(&args, &store).await;
    store.close().await;
    let found = wrong?;
    match (found.wrong_levels, found.not_audited) {
        (levels @ 1.., _) if args.fail_on_drift => Err(Failure::Drift(levels)),
        (_, skus @ 1..) => Err(Failure::NotAudited(format!("{skus} SKUs have an `error`"))),
        _ => Ok(()),
    }
}

/// What the audits found.
#[derive(Debug, Default)]
struct Found {
    /// How many levels have drift or are oversold.
    wrong_levels: usize,
    /// How many SKUs could not be audited.
    not_audited: usize,
}

async fn print_audits(args: &AuditArgs, store: &Arc<dyn Store>) -> Result<Found, Failure> {
    let failed = |error: StoreError| Failure::NotAudited(error.to_string());
    let mut found = Found::default();
    if args.all {
        let mut all = AllAudits::of(store);
        while let Some((sku, audits)) = all.next().await.map_err(failed)? {
            found.print(sku, audits)?;
        }
    }
    for sku in &args.skus {
        let audits = store.audit(sku).await.map_err(failed)?;
        if audits.is_empty() {
            return Err(Failure::NotAudited(format!("there is no SKU {sku}")));
        }
        found.print(sku.clone(), Ok(audits))?;
    }
    Ok(found)
}

impl Found {
    /// Prints the audits of a SKU, and counts what they show.
    fn print(&mut self, sku: Sku, audits: Result<Vec<Audit>, StoreError>) -> Result<(), Failure> {
        let is_wrong = |audit: &&Audit| !audit.consistent();
        match &audits {
            Ok(audits) => self.wrong_levels += audits.iter().filter(is_wrong).count(),
            Err(_) => self.not_audited += 1,
        }
        print_output(&audit_line(sku, audits))
    }
}

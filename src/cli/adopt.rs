//! `stocklock adopt`: makes the configured Redis the one that has the stock of the ledger.

use clap::Args;

use super::servers::ServerArgs;
use super::{Failure, migrate};

/// Use the stock in this Redis from now on
#[derive(Debug, Args)]
pub struct AdoptArgs {
    /// Do it; without this, only print what would happen
    #[arg(long)]
    yes: bool,

    /// The servers.
    #[command(flatten)]
    servers: ServerArgs,
}

const WHAT_HAPPENS: &str = "\
The stock of this ledger will be sold in the Redis that REDIS_URL names, and in no other.
- Replicas that use another Redis stop to sell within a second. Stop them first, to lose no sale.
- Each level is loaded again, from the journal in this Redis or from SQL, whichever is later.
- Sales that only another Redis has are lost: their units are for sale again.
- For 24 hours, each new Idempotency-Key costs one query in SQL.";

/// Adopts, or prints what that means.
pub(super) async fn adopt(args: AdoptArgs) -> Result<(), Failure> {
    let stores = args
        .servers
        .open_with_redis("adopt needs the Redis that will have the stock")?;
    println!("{WHAT_HAPPENS}");
    if !args.yes {
        let why = "nothing was changed; run `stocklock adopt --yes` to do this";
        return Err(Failure::Other(why.to_owned()));
    }
    migrate(&args.servers.database).await?;
    let adopted = stores.store.adopt_redis().await;
    stores.store.close().await;
    match adopted {
        Ok(true) => println!("Done: this Redis has the stock now."),
        Ok(false) => println!("Nothing to do: this Redis already has the stock."),
        Err(error) => {
            let problem = format!("cannot adopt this Redis: {error}; run the command again");
            return Err(Failure::Other(problem));
        }
    }
    Ok(())
}

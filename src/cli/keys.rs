//! `stocklock keys`: creates, lists and revokes API keys. There is no HTTP for that: who manages keys has
//! access to the database.

use std::sync::Arc;

use clap::{Args, Subcommand};
use serde_json::json;

use super::{Failure, migrate, print_output, start_logging};
use crate::app::open_store;
use crate::config::{DatabaseConfig, Limits, LogConfig};
use crate::http::time;
use stocklock_core::access::{ApiKey, RateLimit, Scope, SecretHash, Token};
use stocklock_core::ports::StoreError;
use stocklock_core::stock::Caller;
use stocklock_store::Store;

/// The maximum number of valid keys, because each replica has all of them in memory.
const MAX_KEYS: usize = 10_000;

const MS_PER_DAY: i64 = 24 * 60 * 60 * 1_000;

/// Create, list and revoke API keys
#[derive(Debug, Args)]
pub struct KeysArgs {
    #[command(subcommand)]
    action: Action,

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

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a key, and print it. It is not stored, so this is the only time
    Create(NewKey),
    /// Print one line of JSON for each key, without its secret
    List,
    /// Refuse a key from now on; replicas know after 5 s
    Revoke {
        /// The id of the key: what is between `slk_` and the next `_`
        id: String,
    },
}

#[derive(Debug, Args)]
struct NewKey {
    /// What the key is for
    #[arg(long, value_parser = name)]
    name: String,

    /// Who owns the idempotency keys and references of its requests; the next key of the same caller can
    /// repeat them. `anonymous` owns those of a service without keys
    #[arg(long, value_parser = Caller::parse)]
    caller: Caller,

    /// What the key allows: read, sell, stock, events, admin, with commas between them
    #[arg(long, required = true, value_delimiter = ',', value_parser = scope)]
    scopes: Vec<Scope>,

    /// Number of days after which the key is refused
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    expires_in_days: Option<u16>,

    /// Maximum number of lines per second that each replica accepts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,

    /// Maximum number of lines at once, after a pause [default: the rate]
    #[arg(long, value_name = "N", requires = "rate",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    burst: Option<u32>,
}

fn name(text: &str) -> Result<String, &'static str> {
    let is_valid = (1..=64).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    is_valid
        .then(|| text.to_owned())
        .ok_or("expected 1 to 64 characters")
}

fn scope(text: &str) -> Result<Scope, String> {
    let names = || Scope::ALL.map(Scope::as_str).join(", ");
    Scope::parse(text).ok_or_else(|| format!("expected some of {}", names()))
}

/// Carries out the command.
pub(super) async fn keys(args: KeysArgs) -> Result<(), Failure> {
    start_logging(&args.log)?;
    let store = open_store(&args.database, &args.limits).map_err(Failure::Setting)?;
    // The first key is created before the first replica starts.
    migrate(&args.database).await?;
    let done = match args.action {
        Action::Create(new) => create(&store, new).await,
        Action::List => list(&store).await,
        Action::Revoke { id } => revoke(&store, &id).await,
    };
    store.close().await;
    done
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn failed(error: StoreError) -> Failure {
    Failure::Other(format!("cannot use the database: {error}"))
}

async fn create(store: &Arc<dyn Store>, new: NewKey) -> Result<(), Failure> {
    let list = store.valid_api_keys().await.map_err(failed)?;
    if list.keys.len() >= MAX_KEYS {
        let problem = format!("there are {MAX_KEYS} valid keys; revoke some");
        return Err(Failure::Other(problem));
    }
    let random = || getrandom::u64().map_err(|error| Failure::Other(error.to_string()));
    let secret = [random()?, random()?, random()?, random()?];
    let (key, id) = Token::mint(random()?, secret);
    let token = Token::parse(&key).expect("it was just made");
    let created_at = list.now;
    let days = new.expires_in_days.map(i64::from);
    let stored = ApiKey {
        id,
        name: new.name,
        caller: new.caller,
        secret_hash: SecretHash::of(token.secret),
        scopes: new.scopes,
        limit: new.rate.map(|rate| RateLimit {
            rate,
            burst: new.burst.unwrap_or(rate),
        }),
        created_at,
        expires_at: days.map(|days| created_at + days * MS_PER_DAY),
        revoked_at: None,
    };
    store.add_api_key(&stored).await.map_err(failed)?;
    print_output(&format!("{key}\n"))
}

async fn list(store: &Arc<dyn Store>) -> Result<(), Failure> {
    let list = store.api_keys().await.map_err(failed)?;
    for key in list.keys {
        let line = json!({
            "id": key.id,
            "name": key.name,
            "caller": key.caller.as_str(),
            "scopes": key.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>(),
            "rate": key.limit.map(|limit| limit.rate),
            "burst": key.limit.map(|limit| limit.burst),
            "created_at": time(key.created_at),
            "expires_at": key.expires_at.map(time),
            "revoked_at": key.revoked_at.map(time),
            "valid": key.is_valid(list.now),
        });
        print_output(&format!("{line}\n"))?;
    }
    Ok(())
}

async fn revoke(store: &Arc<dyn Store>, id: &str) -> Result<(), Failure> {
    // Who has only the whole key may pass that.
    let id = Token::parse(id).map_or(id, |key| key.id);
    let list = store.api_keys().await.map_err(failed)?;
    if !list.keys.iter().any(|key| key.id == id) {
        // Without what was passed: it may be a secret.
        let problem = "there is no key with this id; `stocklock keys list` shows the ids";
        return Err(Failure::Other(problem.to_owned()));
    }
    store.revoke_api_key(id).await.map_err(failed)
}

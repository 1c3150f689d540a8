//! Redis is killed during sales, and restarted.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::path::PathBuf;

use futures_util::future::join_all;
use serde_json::json;

use super::{applied_audit, command, create};
use crate::faults::buyers::{Buyers, Keys, PLENTY};
use crate::faults::{Ledger, until};
use crate::support::app::TestApp;
use crate::support::services::{Backend, PrivateServer};

const STRATEGIES: [&str; 2] = ["redis-lua", "redis-watch"];
/// Concurrent buyers per strategy.
const BUYERS: usize = 18;
/// Minimum sales of each strategy before, between and after the kills.
const SALES: usize = 30;
const KILLS: usize = 3;

/// Buyers send orders to two replicas, under the two strategies that need stock in Redis. The SKU
/// of each strategy has the strategy's name.
struct Scene {
    server: PrivateServer,
    app: TestApp,
    ledger: Ledger,
    buyers: Vec<Buyers>,
}

impl Scene {
    async fn open(appendfsync: &str, keys: Keys) -> Self {
        let log = ["--appendonly", "yes", "--appendfsync", appendfsync];
        let server = PrivateServer::redis(&log).await;
        let flags = ["--redis-url", server.url()];
        let app = TestApp::with_flags(Backend::Postgres, 2, &flags).await;
        let mut buyers = Vec::new();
        for strategy in STRATEGIES {
            create(&app, strategy, PLENTY).await;
            let order = |number| app.deduct(number, strategy, &json!({ "sku": strategy }));
            let orders = (0..BUYERS).map(order);
            buyers.push(Buyers::start(strategy, keys, orders, |_, _| ()));
        }
        Self {
            ledger: Ledger::at(&app.database_url),
            server,
            app,
            buyers,
        }
    }

    async fn sell(&self) {
        join_all(self.buyers.iter().map(|buyers| buyers.sell(SALES))).await;
    }

    /// Kills the server. Returns when each strategy has refused as many orders as it has buyers.
    async fn kill(&mut self) {
        self.server.kill9();
        join_all(self.buyers.iter().map(|buyers| buyers.are_refused(BUYERS))).await;
    }

    /// The level in Redis, read without the service.
    async fn on_hand(&self, sku: &str) -> i64 {
        let url = self.server.url();
        let keys: Vec<String> = command(url, &["KEYS", &format!("stock:*:{sku}:main")]).await;
        command(url, &["HGET", &keys[0], "units"]).await
    }

    /// The file of the append-only log that Redis currently writes to.
    async fn log(&self) -> PathBuf {
        let config = ["CONFIG", "GET", "dir"];
        let (_, directory): (String, String) = command(self.server.url(), &config).await;
        let files = fs::read_dir(PathBuf::from(directory).join("appendonlydir"));
        let files = files.expect("Redis keeps a log");
        let mut files = files.map(|file| file.expect("the directory can be read").path());
        let changes = files.find(|path| path.to_string_lossy().ends_with(".incr.aof"));
        changes.expect("Redis appends to a file")
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).expect("the number fits into an i64")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_killed_with_fsync_always_loses_and_doubles_nothing() {
    let mut scene = Scene::open("always", Keys::Half).await;
    for _ in 0..KILLS {
        scene.sell().await;
        scene.kill().await;
        scene.server.restart().await;
    }
    scene.sell().await;
    for (sku, buyers) in STRATEGIES.into_iter().zip(scene.buyers) {
        let purchases = buyers.stop().await;
        let audit = applied_audit(&scene.app, sku).await;
        let sold = audit["sold"].as_i64().expect("a number");
        assert_eq!(audit["on_hand"], PLENTY - sold, "{sku}: {audit}");
        assert_eq!(audit["consistent"], true, "{sku}: {audit}");
        purchases.assert_exact(&scene.ledger).await;
    }
    scene.app.stop().await;
}

/// Goal: if Redis loses sales under `appendfsync everysec`, those that SQL has are not sold again. The
/// audit shows as drift what SQL got later. No request is answered with 500.
///
/// Method: the test kills Redis and cuts off the end of its log, as a crash of the machine would.
/// Some of the sales in the lost part are already in SQL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_sales_that_sql_lacks_are_sold_again_after_a_crash() {
    // With a key, each sale is one unit, so the test can count units by counting sales.
    let mut scene = Scene::open("everysec", Keys::All).await;
    scene.sell().await;
    let log = scene.log().await;
    let on_disk = fs::metadata(&log).expect("the log exists").len();
    // Up to `2 * BUYERS` sales were in flight when the size was read, and may be in the kept part.
    let before: usize = scene.buyers.iter().map(Buyers::sales).sum();
    let goal = before + 2 * BUYERS + 2 * SALES;
    until("SQL has sales that are not on disk", || async {
        let recorded = STRATEGIES.map(|sku| scene.ledger.sold(sku));
        join_all(recorded).await.concat().len() >= goal
    })
    .await;
    let mut in_sql = Vec::new();
    for sku in STRATEGIES {
        in_sql.push(count(scene.ledger.sold(sku).await.len()));
    }
    scene.kill().await;
    let file = OpenOptions::new().write(true).open(&log);
    let cut = file.expect("the log can be opened").set_len(on_disk);
    cut.expect("the log can be cut");
    scene.server.restart().await;
    scene.sell().await;

    for ((sku, buyers), in_sql) in STRATEGIES
        .into_iter()
        .zip(std::mem::take(&mut scene.buyers))
        .zip(in_sql)
    {
        let sold = PLENTY - scene.on_hand(sku).await;
        assert!(
            sold >= in_sql + count(SALES),
            "{sku}: {in_sql}, then {sold}"
        );
        let acknowledged = buyers.stop().await.acknowledged;
        let audit = applied_audit(&scene.app, sku).await;
        let recorded: BTreeSet<_> = scene.ledger.sold(sku).await.into_iter().collect();
        let sold = count(recorded.len());
        let counted = PLENTY - scene.on_hand(sku).await;
        assert_eq!(audit["sold"], sold, "{sku}: {audit}");
        assert_eq!(audit["drift"], sold - counted, "{sku}: {audit}");
        assert_eq!(audit["consistent"], sold == counted, "{sku}: {audit}");
        // SQL may miss only sales that Redis itself lost. No sale may be lost between Redis and
        // SQL.
        let missing = acknowledged.keys().filter(|id| !recorded.contains(*id));
        let forgotten = count(acknowledged.len()) - counted;
        let missing = count(missing.count());
        assert!(missing <= forgotten, "{sku}: {missing} of {forgotten}");
    }
    scene.app.stop().await;
}

//! A Redis that refuses to write, as clients see it while the journal consumer runs: the answer is
//! 503 with `Retry-After`, and afterwards everything resumes by itself.

use reqwest::header::IF_MATCH;
use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::json;

use super::{applied_audit, create, line, try_line};
use crate::faults::{KEY, new_key, send, until};
use crate::support::app::TestApp;
use crate::support::services::{Backend, PrivateServer};

const SKU: &str = "a";
const STOCK: i64 = 10_000;

/// Every kind of request that changes a level in Redis.
fn changes(app: &TestApp, replica: usize) -> Vec<RequestBuilder> {
    let deduct = |strategy: &str| app.deduct(replica, strategy, &json!({"sku": SKU}));
    let adjust = app.request(replica, Method::POST, &format!("/stock/{SKU}/adjust"));
    let put = app.request(replica, Method::PUT, &format!("/stock/{SKU}"));
    vec![
        deduct("redis-lua"),
        deduct("redis-lua").header(KEY, new_key()),
        deduct("redis-watch"),
        deduct("no-lock"),
        deduct("redis-lock"),
        adjust.json(&json!({"delta": 1, "reason": "count"})),
        put.json(&json!({"on_hand": STOCK + 1}))
            .header(IF_MATCH, "*"),
    ]
}

struct Scene {
    redis: PrivateServer,
    app: TestApp,
}

impl Scene {
    async fn open() -> Self {
        let redis = PrivateServer::redis(&["--enable-protected-configs", "yes"]).await;
        let app = TestApp::with_flags(Backend::Sqlite, 2, &["--redis-url", redis.url()]).await;
        create(&app, SKU, STOCK).await;
        Self { redis, app }
    }

    async fn sell(&self, replica: usize) {
        let sold = send(self.app.deduct(replica, "redis-lua", &json!({"sku": SKU}))).await;
        assert_eq!(sold.status, 200, "{sold:?}");
    }

    async fn run_all(&self, lines: &[&str]) {
        for one in lines {
            line(self.redis.url(), one).await;
        }
    }

    /// What the server answers to the write of another client.
    async fn refusal(&self) -> String {
        let answer = try_line(self.redis.url(), "SET foreign 1").await;
        answer.map_or_else(|error| error.to_string().to_uppercase(), |()| String::new())
    }

    async fn assert_all_refused(&self) {
        for replica in 0..2 {
            for change in changes(&self.app, replica) {
                let answer = send(change).await;
                assert_eq!(answer.status, 503, "{answer:?}");
                assert!(answer.retry_after, "{answer:?}");
            }
        }
    }

    /// The four sales before and the twenty units sold here reach the ledger, and nothing else.
    async fn assert_resumes(self) {
        for replica in 0..2 {
            until("sales resume", || async {
                let ten = json!({"sku": SKU, "quantity": 10});
                let sale = send(self.app.deduct(replica, "redis-lua", &ten)).await;
                sale.status == 200
            })
            .await;
        }
        let audit = applied_audit(&self.app, SKU).await;
        assert_eq!(audit["on_hand"], STOCK - 24, "{audit}");
        assert_eq!(audit["consistent"], true, "{audit}");
        self.app.stop().await;
    }
}

#[rstest]
#[case::replica_since_failover(&["REPLICAOF 127.0.0.1 1"], &["REPLICAOF NO ONE"], "READONLY")]
#[case::out_of_memory(&["CONFIG SET maxmemory 1"], &["CONFIG SET maxmemory 0"], "OOM")]
// A directory in which no file can be created.
#[case::unable_to_save(
    &["CONFIG SET dir /proc", "CONFIG SET save 3600_1", "BGSAVE"],
    &["CONFIG SET save _"],
    "MISCONF"
)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_get_503_while_redis_refuses_writes(
    #[case] refuse: &[&str],
    #[case] accept: &[&str],
    #[case] code: &str,
) {
    let scene = Scene::open().await;
    for replica in [0, 1, 0, 1] {
        scene.sell(replica).await;
    }
    scene.run_all(refuse).await;
    until("Redis refuses", async || {
        scene.refusal().await.contains(code)
    })
    .await;
    scene.assert_all_refused().await;
    scene.run_all(accept).await;
    scene.assert_resumes().await;
}

/// After a restart, a failover or a `SCRIPT FLUSH`, Redis knows no script. Clients do not notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_do_not_notice_that_redis_has_lost_the_scripts() {
    let scene = Scene::open().await;
    for replica in [0, 1, 0, 1] {
        scene.run_all(&["SCRIPT FLUSH"]).await;
        scene.sell(replica).await;
    }
    scene.run_all(&["SCRIPT FLUSH"]).await;
    scene.assert_resumes().await;
}

//! What callers are told while a Redis will not work, with the follower at work beside them: 503 and
//! when to come again, and afterwards everything goes on by itself.

use redis::RedisResult;
use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::json;

use super::requests::{create, settled};
use crate::faults::{KEY, SOON, new_key, send, until};
use crate::support::app::TestApp;
use crate::support::services::{Backend, PrivateServer};

const SKU: &str = "a";
const STOCK: i64 = 10_000;

/// Carries out one line, in which `_` stands for a space within a word, or for an empty one.
async fn tell(server: &PrivateServer, line: &str) -> RedisResult<()> {
    let client = redis::Client::open(server.url()).expect("its URL is one");
    let connection = client.get_multiplexed_async_connection().await;
    let mut connection = connection.expect("it lets the test in");
    let mut words = line
        .split(' ')
        .map(|word| word.replace('_', " ").trim().to_owned());
    let mut command = redis::cmd(&words.next().expect("a word"));
    let command = command.arg(words.collect::<Vec<_>>());
    command.exec_async(&mut connection).await
}

/// Every way in which a level is changed there.
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
        put.json(&json!({"on_hand": STOCK + 1})),
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
        let sold = sold.expect("it answers");
        assert_eq!(sold.status, 200, "{sold:?}");
    }

    async fn tell_all(&self, lines: &[&str]) {
        for line in lines {
            let told = tell(&self.redis, line).await;
            told.unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    /// What it says to a write of somebody else's.
    async fn refusal(&self) -> String {
        let answer = tell(&self.redis, "SET foreign 1").await;
        answer.map_or_else(|error| error.to_string().to_uppercase(), |()| String::new())
    }

    async fn assert_all_refused(&self) {
        for replica in 0..2 {
            for change in changes(&self.app, replica) {
                let told = send(change).await.expect("it answers");
                assert_eq!(told.status, 503, "{told:?}");
                assert!(told.retry_after, "{told:?}");
            }
        }
    }

    /// All that was sold before and after reaches the ledger, and nothing else.
    async fn assert_goes_on(self) {
        for replica in 0..2 {
            until("it sells again", SOON, || async {
                let ten = json!({"sku": SKU, "quantity": 10});
                let answer = send(self.app.deduct(replica, "redis-lua", &ten)).await;
                answer.expect("it answers").status == 200
            })
            .await;
        }
        let audit = settled(&self.app, SKU).await;
        assert_eq!(audit["on_hand"], STOCK - 24, "{audit}");
        assert_eq!(audit["consistent"], true, "{audit}");
        self.app.stop().await;
    }
}

#[rstest]
#[case::a_replica_since_the_failover(
    &["REPLICAOF 127.0.0.1 1"], &["REPLICAOF NO ONE"], "READONLY"
)]
#[case::out_of_memory(&["CONFIG SET maxmemory 1"], &["CONFIG SET maxmemory 0"], "OOM")]
// A directory where no file can be created.
#[case::unable_to_save(
    &["CONFIG SET dir /proc", "CONFIG SET save 3600_1", "BGSAVE"],
    &["CONFIG SET save _"],
    "MISCONF"
)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_are_told_to_come_again_while_redis_refuses(
    #[case] refuse: &[&str],
    #[case] serve: &[&str],
    #[case] code: &str,
) {
    let scene = Scene::open().await;
    for replica in [0, 1, 0, 1] {
        scene.sell(replica).await;
    }
    scene.tell_all(refuse).await;
    until("it refuses", SOON, || async {
        scene.refusal().await.contains(code)
    })
    .await;
    scene.assert_all_refused().await;
    scene.tell_all(serve).await;
    scene.assert_goes_on().await;
}

/// After a restart, a failover or a `SCRIPT FLUSH` no script is known: callers do not notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_do_not_notice_that_redis_has_forgotten_the_scripts() {
    let scene = Scene::open().await;
    for replica in [0, 1, 0, 1] {
        scene.tell_all(&["SCRIPT FLUSH"]).await;
        scene.sell(replica).await;
    }
    scene.tell_all(&["SCRIPT FLUSH"]).await;
    scene.assert_goes_on().await;
}

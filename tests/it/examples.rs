//! The clients in `examples/` sell each order once, although proxies between them and a replica refuse, lose
//! answers and break connections.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use reqwest::Client;
use reqwest::header::AUTHORIZATION;
use rstest::rstest;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::deploy::{program, run};
use crate::faults::{KEY, until};
use crate::support::app::{counted, send};
use crate::support::client::client;
use crate::support::process::Process;
use crate::support::proxy::Proxy;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn python(_: &Path) -> Command {
    let mut command = program("python3");
    command.arg("-B").arg(format!("{ROOT}/examples/sell.py"));
    command
}

fn typescript(directory: &Path) -> Command {
    let mut compiler = program("tsc");
    compiler.args([
        "--strict",
        "--target",
        "es2022",
        "--module",
        "es2022",
        "--lib",
        "es2022,dom",
    ]);
    compiler
        .arg("--outDir")
        .arg(directory)
        .arg(format!("{ROOT}/examples/sell.mts"));
    let (success, errors, _) = run(&mut compiler);
    assert!(success, "{errors}");
    let mut command = program("node");
    command.arg(directory.join("sell.mjs"));
    command
}

fn rust(_: &Path) -> Command {
    // Cargo builds examples with the tests.
    let built = PathBuf::from(env!("CARGO_BIN_EXE_stocklock"));
    Command::new(built.with_file_name("examples").join("sell"))
}

/// A proxy that answers itself, or loses what the replica has answered.
struct Gateway {
    replica: String,
    client: Client,
    keys: Mutex<Vec<String>>,
}

async fn forward(State(gateway): State<Arc<Gateway>>, headers: HeaderMap, body: Bytes) -> Response {
    let number = {
        let mut keys = gateway.keys.lock().expect("no panic");
        keys.push(headers[KEY].to_str().expect("a text").to_owned());
        keys.len()
    };
    match number {
        2 => return StatusCode::BAD_GATEWAY.into_response(),
        3 => {
            let retry_after = [(header::RETRY_AFTER, "1")];
            return (StatusCode::SERVICE_UNAVAILABLE, retry_after).into_response();
        }
        _ => {}
    }
    let request = gateway.client.post(&gateway.replica).body(body);
    let headers = [
        AUTHORIZATION,
        header::CONTENT_TYPE,
        KEY.parse().expect("a name"),
    ]
    .map(|name| (name.clone(), headers[name].clone()));
    let answer = request.headers(headers.into_iter().collect()).send().await;
    let answer = answer.expect("the replica answers");
    match number {
        4 => return StatusCode::GATEWAY_TIMEOUT.into_response(),
        5 => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        _ => {}
    }
    let status = answer.status();
    let content_type = answer.headers()[header::CONTENT_TYPE].clone();
    let body = answer.bytes().await.expect("a body");
    (status, [(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// A replica with `units` of tea, and a key for it.
async fn shop(directory: &TempDir, units: u32) -> (Process, String) {
    let database = format!("sqlite://{}/stock.db", directory.path().display());
    let variables = [("DATABASE_URL", &*database), ("AUTH", "keys")];
    let create = [
        "keys",
        "create",
        "--name=a",
        "--caller=shop",
        "--scopes=sell,stock,read,admin",
    ];
    let key = Process::run(&create, &variables).await.stdout;
    let key = key.trim().to_owned();
    let replica = Process::serving(&["serve"], &variables).await;
    let level = client()
        .put(replica.url("/stock/tea"))
        .json(&json!({"on_hand": units}));
    assert_eq!(send(level.bearer_auth(&key)).await.status, 201);
    (replica, key)
}

/// Goal: a refusal is not taken for final while an earlier request that had no answer may still be made.
///
/// Method: the first request is lost, the second is refused. Then there are units.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_asks_again_after_a_refusal_that_is_not_final(
    #[values(python, typescript, rust)] client_of: fn(&Path) -> Command,
) {
    let directory = TempDir::new().expect("a directory");
    let (replica, key) = shop(&directory, 0).await;
    let address = replica.url("").trim_start_matches("http://").to_owned();
    let proxy = Proxy::to(address.trim_end_matches('/')).await;
    let lost = proxy.cut_before(b"order-7", 1);
    let sold = tokio::task::spawn_blocking(client_with(client_of, &directory, &proxy, &key));
    let refused =
        "stock_deductions_total{strategy=\"group-commit\",outcome=\"insufficient-stock\"}";
    until("it is refused", async || {
        let metrics = client().get(replica.url("/metrics")).bearer_auth(&key);
        counted(send(metrics).await.text(), refused) == 1
    })
    .await;
    let delivery = client()
        .post(replica.url("/stock/tea/adjust"))
        .json(&json!({"delta": 5, "reason": "delivery"}));
    send(delivery.bearer_auth(&key)).await.ok();
    let (success, stdout, stderr) = sold.await.expect("no panic");
    assert!(success, "{stdout}{stderr}");
    let answer: Value = serde_json::from_str(&stdout).expect("it prints the answer");
    assert_eq!((lost.fired(), &answer["remaining"]), (1, &json!(3)));
}

/// Runs a client that orders two units through the proxy.
fn client_with(
    client_of: fn(&Path) -> Command,
    directory: &TempDir,
    proxy: &Proxy,
    key: &str,
) -> impl FnOnce() -> (bool, String, String) + use<> {
    let mut sell = client_of(directory.path());
    sell.arg(format!("http://{}", proxy.address()));
    sell.args(["tea", "2", "order-7"]).env("STOCKLOCK_KEY", key);
    move || run(&mut sell)
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_sells_each_order_once(
    #[values(python, typescript, rust)] client_of: fn(&Path) -> Command,
) {
    let directory = TempDir::new().expect("a directory");
    let (replica, key) = shop(&directory, 5).await;
    let gateway = Arc::new(Gateway {
        replica: replica.url("/stock/deduct"),
        client: client(),
        keys: Mutex::default(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let routes = Router::new().route("/stock/deduct", post(forward));
    let server = axum::serve(listener, routes.with_state(Arc::clone(&gateway)));
    let _server = AbortOnDropHandle::new(tokio::spawn(async move {
        server.await.expect("it serves");
    }));
    let proxy = Proxy::to(address.to_string()).await;
    // The first request is lost, then the answer to the second.
    let before = proxy.cut_before(b"order-7", 1);
    let after = proxy.cut_after(b"order-7", 1);

    let sold = tokio::task::spawn_blocking(client_with(client_of, &directory, &proxy, &key)).await;
    let (success, stdout, stderr) = sold.expect("no panic");
    assert!(success, "{stdout}{stderr}");
    let answer: Value = serde_json::from_str(&stdout).expect("it prints the answer");
    assert_eq!(answer["remaining"], 3);
    assert_eq!((before.fired(), after.fired()), (1, 1));
    // Sold, then 502, 503, 504, 500, and the first answer again.
    assert_eq!(*gateway.keys.lock().expect("no panic"), ["order-7"; 6]);
    assert!(!stdout.contains("slk_") && !stderr.contains("slk_"));
}

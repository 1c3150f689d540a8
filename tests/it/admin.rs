//! `ADMIN_LISTEN` and `stocklock ping`.

use reqwest::Client;
use stocklock_testkit::eventually;
use stocklock_testkit::ports::free_port;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::faults::SOON;
use crate::support::process::Process;

#[tokio::test]
async fn metrics_and_probes_move_and_need_no_key_there() {
    let (directory, admin) = (tempfile::tempdir().expect("a directory"), free_port());
    let database = format!("sqlite://{}/stock.db", directory.path().display());
    let address = format!("127.0.0.1:{admin}");
    let variables = [
        ("DATABASE_URL", &*database),
        ("AUTH", "keys"),
        ("ADMIN_LISTEN", &*address),
    ];
    let key = Process::run(
        &[
            "keys",
            "create",
            "--name=a",
            "--caller=a",
            "--scopes=read,sell",
        ],
        &variables[..1],
    );
    let key = key.await.stdout;

    let mut replica = Process::start(&["serve"], &variables);
    let (client, url) = (Client::new(), format!("http://{address}"));
    let status = async |path: &str| {
        let answer = client.get(format!("{url}{path}")).send().await;
        answer.map_or(0, |answer| answer.status().as_u16())
    };
    replica
        .wait_until(async || status("/readyz").await == 200)
        .await;
    let ping = async || {
        let listen = replica.address();
        let variables = [("LISTEN", &*listen), ("ADMIN_LISTEN", &*address)];
        Process::run(&["ping"], &variables).await
    };
    assert_eq!(ping().await.code, Some(0));
    for path in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(status(path).await, 200, "{path}");
        let moved = replica
            .request(reqwest::Method::GET, path)
            .bearer_auth(key.trim());
        let moved = moved.send().await.expect("it answers").status();
        assert_eq!(moved, 404, "{path}");
    }
    // The callers' routes are not there.
    assert_eq!(status("/stock").await, 404);
    assert_eq!(replica.get("/stock").await.status, 401);

    // A request that is not complete lets the stop wait.
    let mut open = TcpStream::connect(replica.address())
        .await
        .expect("it listens");
    let head = format!(
        "POST /stock/deduct HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\nContent-Type: \
         application/json\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n",
        key.trim()
    );
    open.write_all(head.as_bytes()).await.expect("it reads");
    let mut answer = [0; 12];
    open.read_exact(&mut answer)
        .await
        .expect("it waits for the body");
    assert_eq!(&answer, b"HTTP/1.1 100");
    replica.terminate();
    let is_draining = async || status("/readyz").await == 503;
    eventually("the replica stops", SOON, is_draining).await;
    assert_eq!(status("/metrics").await, 200);
    assert_eq!(ping().await.code, Some(1));
    drop(open);
    replica.ended().await;
    assert_eq!(status("/healthz").await, 0);
    let gone = Process::run(&["ping"], &[("ADMIN_LISTEN", &*address)]).await;
    assert_eq!(gone.code, Some(1), "{}", gone.stderr);
    assert!(gone.stderr.contains(&address), "{}", gone.stderr);
}

//! `ADMIN_LISTEN` and `stocklock ping`.

use reqwest::Client;
use stocklock_testkit::ports::free_port;

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
        &["keys", "create", "--name=a", "--caller=a", "--scopes=read"],
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
        assert_eq!(
            moved.send().await.expect("it answers").status(),
            404,
            "{path}"
        );
    }
    // The callers' routes are not there.
    assert_eq!(status("/stock").await, 404);
    assert_eq!(replica.get("/stock").await.status, 401);

    replica.terminate();
    replica.ended().await;
    let gone = Process::run(&["ping"], &[("ADMIN_LISTEN", &*address)]).await;
    assert_eq!(gone.code, Some(1), "{}", gone.stderr);
    assert!(gone.stderr.contains(&address), "{}", gone.stderr);
}

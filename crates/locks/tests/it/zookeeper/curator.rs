//! The mutex of Apache Curator and a lock of this crate exclude each other.

use std::path::Path;
use std::time::Duration;

use stocklock_locks::{LockManager, ReleaseOutcome};
use stocklock_testkit::assert_matches;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::rig::eventually;
use crate::rig::zookeeper::ZooKeeperRig;

const ADDITIONS: u32 = 200;

const LIMIT: Duration = Duration::from_secs(90);
const SESSION: Duration = Duration::from_secs(20);

const JARS: [&str; 7] = [
    "bsh",
    "curator-recipes",
    "curator-framework",
    "curator-client",
    "zookeeper",
    "guava",
    "slf4j-nop",
];

fn number(file: &Path) -> u32 {
    std::fs::read_to_string(file).unwrap().parse().unwrap()
}

/// Adds one to the number in the file, not atomically.
async fn add(locks: &LockManager, file: &Path) {
    let lock = locks.lock("shared").wait(LIMIT);
    let added = lock.run(async |_| {
        let read = number(file);
        sleep(Duration::from_millis(1)).await;
        std::fs::write(file, (read + 1).to_string()).unwrap();
    });
    let release = added.await.unwrap().release;
    assert_matches!(release, ReleaseOutcome::Released { .. });
}

#[tokio::test]
async fn curator_mutex_and_lock_exclude_each_other() {
    let rig = ZooKeeperRig::start_private().await;
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("number");
    std::fs::write(&file, "0").unwrap();
    let jars = JARS
        .map(|jar| format!("/usr/share/java/{jar}.jar"))
        .join(":");
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/it/zookeeper/curator.bsh"
    );
    let mutex = format!("{}/shared", rig.root);
    let mut curator = Command::new("java");
    curator
        .args(["-cp", &jars, "bsh.Interpreter", script])
        .args([&rig.address, &mutex])
        .arg(&file)
        .arg(ADDITIONS.to_string())
        .kill_on_drop(true);
    let curator = tokio::spawn(async move { curator.output().await });
    eventually("Curator has the mutex", LIMIT, async || {
        std::fs::read_to_string(&file).is_ok_and(|text| !text.is_empty() && text != "0")
    })
    .await;
    // Sessions that outlive the pauses of a busy machine.
    let settings = rig.settings(&rig.address).session_timeout(SESSION);
    let locks = LockManager::new(settings.response_limit(SESSION / 2).build().unwrap());
    for _ in 0..ADDITIONS {
        add(&locks, &file).await;
    }
    let ended = timeout(LIMIT, curator).await.expect("Curator ends");
    let output = ended.unwrap().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{stderr}");
    assert_eq!(number(&file), 2 * ADDITIONS, "{stdout}{stderr}");
    locks.shutdown().await;
}

//! Three ways to hold a lock, without a server:
//! `cargo run -p stocklock-locks --example quick_start`.

use std::error::Error;
use std::time::Duration;

use stocklock_locks::local::LocalBackend;
use stocklock_locks::{LockManager, ReleaseOutcome};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let locks = LockManager::new(LocalBackend::new());

    // 1. Wait for the lock, and keep its guard.
    let guard = locks
        .lock("sku:42")
        .wait(Duration::from_secs(2))
        .acquire()
        .await?;
    println!(
        "acquired {guard:?}, valid for at least {:?}",
        guard.remaining()
    );

    // 2. Acquire the lock only if it is free.
    assert!(locks.lock("sku:42").try_acquire().await?.is_none());
    match guard.release().await {
        ReleaseOutcome::Released { held_for } => println!("released after {held_for:?}"),
        outcome => println!("not released: {outcome:?}"),
    }

    // 3. Run a future under the lock. It is dropped if the lock is lost.
    let ran = locks
        .lock("sku:42")
        .run(|guard| async move { guard.token() })
        .await?;
    println!("the next holder had token {}", ran.output);

    locks.shutdown().await;
    Ok(())
}

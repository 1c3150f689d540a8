//! Three ways to hold a lock, in this process alone: `cargo run -p stocklock-locks --example quick_start`.

use std::error::Error;
use std::time::Duration;

use stocklock_locks::local::LocalBackend;
use stocklock_locks::{LockManager, ReleaseOutcome};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let locks = LockManager::new(LocalBackend::new());

    // With a guard.
    let guard = locks
        .lock("sku:42")
        .wait(Duration::from_secs(2))
        .acquire()
        .await?;
    println!(
        "held: {guard:?}, for certain another {:?}",
        guard.remaining()
    );

    // Only if it is free.
    assert!(locks.lock("sku:42").try_acquire().await?.is_none());
    match guard.release().await {
        ReleaseOutcome::Released { held_for } => println!("held for {held_for:?}"),
        other => println!("{other:?}"),
    }

    // Around a future, which is dropped if the lock is lost.
    let token = locks
        .lock("sku:42")
        .run(|guard| async move { guard.token() })
        .await?;
    println!("the next token: {token}");

    locks.shutdown().await;
    Ok(())
}

//! Shows why a guarded write checks both a fencing token and a version.
//!
//! The server forgets the lock of a first holder, and a second holder acquires it. Both then write.
//! The version detects that the first holder wrote before the second one. The token detects that it
//! writes again later. The lock server is an in-memory model, so nothing must be installed:
//! `cargo run -p stocklock-locks --example fencing`.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stocklock_locks::clock::TokioClock;
use stocklock_locks::memory::MemoryServer;
use stocklock_locks::{LockGuard, LockManager, Token};

/// The protected value, with the version and token that each write must check.
#[derive(Default)]
struct Row {
    value: &'static str,
    /// Grows with every write.
    version: u64,
    /// The token of the last writer, and its source. Tokens of different sources cannot be
    /// compared.
    fence: Option<(Token, Arc<str>)>,
}

/// A resource that checks each write atomically, like one conditional `UPDATE` of a database.
#[derive(Default)]
struct Register(Mutex<Row>);

impl Register {
    /// Returns the version. A write that depends on this read passes it to `write`.
    fn read(&self) -> u64 {
        self.row().version
    }

    fn write(&self, guard: &LockGuard, read: u64, value: &'static str) -> Result<(), String> {
        let mut row = self.row();
        let source = guard.source();
        if let Some((newest, issuer)) = &row.fence
            && **issuer == *source
            && *newest > guard.token()
        {
            let token = guard.token();
            return Err(format!(
                "refused {value:?}: its token {token} is older than {newest}"
            ));
        }
        if row.version != read {
            let version = row.version;
            return Err(format!(
                "refused {value:?}: it read version {read}, but the current version is {version}"
            ));
        }
        *row = Row {
            value,
            version: read + 1,
            fence: Some((guard.token(), source.into())),
        };
        Ok(())
    }

    fn row(&self) -> std::sync::MutexGuard<'_, Row> {
        self.0
            .lock()
            .expect("no thread panics while it holds this mutex")
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = MemoryServer::new(TokioClock::new());
    let [first_process, second_process] = [(); 2].map(|()| LockManager::new(server.client()));
    let register = Register::default();

    let lease = Duration::from_secs(1);
    let first = first_process
        .lock("register")
        .lease(lease)
        .acquire()
        .await?;
    let read_by_first = register.read();

    // The server forgets the lock, as in a failover. The first holder cannot know this yet.
    server.forget_all();
    let second = second_process.lock("register").acquire().await?;
    let read_by_second = register.read();

    // The first holder writes before the second one, so its token is the newest so far. Only the
    // version stops the second holder from overwriting this value on the basis of its old read.
    register.write(&first, read_by_first, "from the first")?;
    let outdated = register.write(&second, read_by_second, "from the second");
    println!("{}", outdated.expect_err("its version is outdated"));
    register.write(&second, register.read(), "from the second")?;

    // A current version is not enough either: the token shows that the lock itself was lost.
    let late = register.write(&first, register.read(), "from the first, late");
    println!("{}", late.expect_err("its token is outdated"));
    println!("the register contains the value {:?}", register.row().value);

    println!("the first holder lost its lock: {}", first.lost().await);
    second.release().await;
    Ok(())
}

//! Why a guard has a token, and why the token is not enough: a holder is cut off, another one takes
//! over, and what the first one writes late is refused, whoever comes first. On a model of a lock
//! server, so that nothing has to be installed: `cargo run -p stocklock-locks --example fencing`.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stocklock_locks::clock::TokioClock;
use stocklock_locks::memory::MemoryServer;
use stocklock_locks::{LockGuard, LockManager, Token};

/// What the lock is to protect, with what its writes are conditional on.
#[derive(Default)]
struct Row {
    value: &'static str,
    /// Grows with every write.
    version: u64,
    /// The last writer's token, and who minted it: tokens of two sources do not compare.
    fence: Option<(Token, Arc<str>)>,
}

/// A resource that checks by itself, in the write, as one statement of a database would.
#[derive(Default)]
struct Register(Mutex<Row>);

impl Register {
    /// The version, for the write that follows from this read.
    fn read(&self) -> u64 {
        self.row().version
    }

    fn write(&self, guard: &LockGuard, read: u64, value: &'static str) -> Result<(), String> {
        let mut row = self.row();
        let source = guard.source();
        if let Some((newest, minted_by)) = &row.fence
            && **minted_by == *source
            && *newest > guard.token()
        {
            let token = guard.token();
            return Err(format!(
                "refused {value:?}: token {token} is older than {newest}"
            ));
        }
        if row.version != read {
            let version = row.version;
            return Err(format!(
                "refused {value:?}: it read version {read} of {version}"
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
        self.0.lock().expect("nothing panics while it is locked")
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = MemoryServer::new(TokioClock::new());
    let [one, other] = [(); 2].map(|()| LockManager::new(server.client()));
    let register = Register::default();

    let lease = Duration::from_secs(1);
    let first = one.lock("register").lease(lease).acquire().await?;
    let read_by_first = register.read();

    // The server forgets the lock, as a failover may; the first holder cannot know yet.
    server.forget_all();
    let second = other.lock("register").acquire().await?;
    let read_by_second = register.read();

    // The first one's write comes before the second one's: its token is the newest so far, and only
    // the version keeps the second one from overwriting it with what follows from an earlier read.
    register.write(&first, read_by_first, "from the first")?;
    let overtaken = register.write(&second, read_by_second, "from the second");
    println!("{}", overtaken.expect_err("it was written since"));
    register.write(&second, register.read(), "from the second")?;

    // And now the token tells a lost lock from a lost race.
    let late = register.write(&first, register.read(), "from the first, late");
    println!("{}", late.expect_err("the token is older"));
    println!("the register has what came {}", register.row().value);

    println!("and the first learns: {}", first.lost().await);
    second.release().await;
    Ok(())
}

//! Why a guard has a token: a holder is cut off, another one takes over, and the first one's late
//! write is refused. On a model of a lock server, so that nothing has to be installed:
//! `cargo run -p stocklock-locks --example fencing`.

use std::error::Error;
use std::sync::Mutex;
use std::time::Duration;

use stocklock_locks::clock::TokioClock;
use stocklock_locks::memory::MemoryServer;
use stocklock_locks::{LockGuard, LockManager, Token};

/// What the lock is to protect. The check is the resource's own, in the write itself.
#[derive(Default)]
struct Register(Mutex<Option<(Token, &'static str)>>);

impl Register {
    fn write(&self, guard: &LockGuard, value: &'static str) -> Result<(), String> {
        let mut register = self.0.lock().expect("nothing panics while it is locked");
        match *register {
            Some((newest, _)) if newest > guard.token() => Err(format!(
                "refused {value:?}: token {} is older than {newest}",
                guard.token()
            )),
            _ => {
                *register = Some((guard.token(), value));
                Ok(())
            }
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = MemoryServer::new(TokioClock::new());
    let [one, other] = [(); 2].map(|()| LockManager::new(server.client()));
    let register = Register::default();

    let first = one
        .lock("register")
        .lease(Duration::from_secs(1))
        .acquire()
        .await?;
    register.write(&first, "from the first")?;

    // The server forgets the lock, as a failover may; the first holder cannot know yet.
    server.forget_all();
    let second = other.lock("register").acquire().await?;
    register.write(&second, "from the second")?;

    let late = register.write(&first, "from the first, late");
    println!("{}", late.expect_err("the token is older"));

    println!("and the first learns: {}", first.lost().await);
    second.release().await;
    Ok(())
}

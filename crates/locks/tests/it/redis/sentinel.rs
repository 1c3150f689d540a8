//! Redis Sentinel.

use std::time::Duration;

use stocklock_locks::LockManager;
use stocklock_locks::redis::RedisBackend;
use stocklock_testkit::proxy::{Mode, Proxy};
use stocklock_testkit::servers::RedisSentinels;

use crate::rig::redis::RedisRig;
use crate::rig::{eventually, hand_over};

/// The first sentinel of the URL takes connections and never answers. The limits are shorter than the time
/// after which the driver gives it up.
#[tokio::test]
async fn silent_sentinel_delays_neither_locks_nor_wake_ups() {
    const LIMIT: Duration = Duration::from_millis(300);
    const LONG: Duration = Duration::from_mins(2);
    let (rig, replica) = (RedisRig::start().await, RedisRig::start().await);
    let port = rig.server().port();
    let command = format!("REPLICAOF 127.0.0.1 {port}");
    replica.run::<String>(&command).await;
    let sentinels = RedisSentinels::watching(port).await;
    let silent = Proxy::to(rig.server().address()).await;
    silent.set(Mode::Blackhole).await;
    let url = sentinels.url();
    let url = url.replacen("://", &format!("://{},", silent.address()), 1);
    let manager = || {
        let backend = RedisBackend::builder(&url).connect_limit(LIMIT);
        let backend = backend.response_limit(LIMIT).fallback(LONG);
        LockManager::new(backend.build().unwrap())
    };
    let (one, other) = (manager(), manager());
    let guard = one.lock("held").wait(LONG).acquire().await.unwrap();
    let waiter = tokio::spawn(other.lock("held").wait(LONG).acquire());
    let subscribed = async || rig.channels().await.iter().any(|name| name == "lock{held}");
    eventually("the waiter subscribes", LONG / 4, subscribed).await;
    hand_over(guard, waiter).await;
}

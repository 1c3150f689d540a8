//! A sentinel that takes connections and never answers, like one whose machine is off.

use std::time::Duration;

use stocklock::ports::RedisMethod;
use stocklock_testkit::eventually;
use stocklock_testkit::proxy::{Mode, Proxy};
use stocklock_testkit::servers::RedisSentinels;

use super::{deduct, line};
use crate::store_contract::fixture::{Fixture, redis_options};
use crate::support::services::Backend::Sqlite;
use crate::support::services::PrivateServer;

/// The wait limit is shorter than the time after which the driver gives a sentinel up.
#[tokio::test]
async fn silent_sentinel_does_not_stop_sales() {
    let (master, replica) = (
        PrivateServer::redis(&[]).await,
        PrivateServer::redis(&[]).await,
    );
    let port = master.port();
    line(replica.url(), &format!("REPLICAOF 127.0.0.1 {port}")).await;
    let sentinels = RedisSentinels::watching(port).await;
    let (silent, _) = Proxy::before(master.url()).await;
    silent.set(Mode::Blackhole).await;
    let url = sentinels.url();
    let url = url.replacen("://", &format!("://{},", silent.address()), 1);
    let near = Fixture::new(Sqlite).await.with(redis_options(master.url()));
    near.put("a", 10).await;
    let mut options = redis_options(&url);
    options.wait_limit = Duration::from_millis(300);
    let far = Fixture::at(Sqlite, near.url.clone()).await.with(options);
    for how in [RedisMethod::Script, RedisMethod::Watch] {
        let sold = async || deduct(&far, "a", how).await.is_ok();
        eventually("a unit is sold", Duration::from_secs(30), sold).await;
    }
}

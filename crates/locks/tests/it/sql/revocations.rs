//! Revocations in a table: the owner is visible, the last token stays, and the note is not kept for long.

use rstest::rstest;
use stocklock_testkit::servers::Backend::{self, Mysql, Postgres, Sqlite};

use crate::rig::sql::SqlRig;
use crate::rig::{RigExt, holder};

#[rstest]
#[tokio::test]
async fn write_of_revoked_holder_is_refused(#[values(Sqlite, Mysql, Postgres)] kind: Backend) {
    let rig = SqlRig::start(kind).await;
    rig.create_account().await;
    let backend = rig.builder_of_backend().owner("shop-1 上海").build();
    let one = rig.builder_for(backend.unwrap()).build();
    let guard = one.lock("sku:42").acquire().await.unwrap();
    let operator = rig.manager();
    let holder = holder(operator.lock("sku:42")).await;
    assert_eq!(holder.owner.as_deref(), Some("shop-1 上海"));
    // The last token is an hour ahead of the clock, as if the clock was set back by an hour.
    let ahead = guard.token().get() + 3_600_000_000;
    let move_on = format!("UPDATE distributed_lock SET token = {ahead}");
    assert_eq!(rig.change(move_on).await, 1);
    assert!(operator.lock("sku:42").revoke(holder.nonce).await.unwrap());
    let now = rig.clock().await;
    let noted = format!(
        "SELECT count(*) FROM distributed_lock WHERE nonce = '' AND length(gone) = 64
            AND gone_until BETWEEN {now} + 110000000 AND {now} + 121000000"
    );
    assert_eq!(rig.number(noted).await, 1);
    let next = operator.lock("sku:42").acquire().await.unwrap();
    assert!(next.token().get() > ahead, "the token of the row counts");
    assert_eq!(rig.write_account(&next, 1).await, 1);
    assert_eq!(rig.write_account(&guard, 2).await, 0);
    guard.release().await;
    next.verify().await.unwrap();
    next.release().await;
}

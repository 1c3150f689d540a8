//! Authentication of sessions, and the ACL of the nodes that they create.
//!
//! Private servers: the cleaning of a shared one has no credentials.

use std::time::Duration;

use stocklock_locks::backend::{Backend as _, Left};
use stocklock_locks::zookeeper::NodeAcl;
use stocklock_locks::{LockError, LockManager, OncePer};
use stocklock_testkit::assert_matches;
use stocklock_testkit::proxy::Mode;
use tokio::time::timeout;
use zookeeper_client::{Acls, Client, CreateMode, Error};

use crate::rig::zookeeper::ZooKeeperRig;
use crate::rig::{
    Faults as _, Rig as _, RigExt as _, eventually, hand_over, request, revoke_holder, try_lock,
    use_lock,
};

const SOON: Duration = Duration::from_secs(20);

const OWNER: &str = "shop:s3cr3t";
const STRANGER: &str = "shop:wr0ng";

fn manager(rig: &ZooKeeperRig, credentials: &str) -> LockManager {
    let settings = rig.settings(&rig.proxy.address().to_string());
    LockManager::new(settings.auth("digest", credentials).build().unwrap())
}

/// A session with these credentials that does not use the proxy.
async fn session(rig: &ZooKeeperRig, credentials: &str) -> Client {
    let connector = Client::connector().with_auth("digest", credentials.as_bytes());
    connector.connect(&rig.address).await.unwrap()
}

/// The nodes below the root, and the root.
async fn nodes(rig: &ZooKeeperRig, client: &Client) -> Vec<String> {
    let mut nodes = vec![rig.root.clone()];
    for index in 0.. {
        let Some(node) = nodes.get(index).cloned() else {
            break;
        };
        // A node that goes away in the meantime has no children.
        match client.list_children(&node).await {
            Err(Error::NoNode) => {}
            Err(error) => panic!("{error}"),
            Ok(names) => nodes.extend(names.iter().map(|name| format!("{node}/{name}"))),
        }
    }
    nodes
}

/// Checks that the error says what to do, and came without a repetition until the wait limit.
fn assert_no_auth<T: std::fmt::Debug>(result: Result<T, LockError>) {
    let LockError::Unavailable(error) = result.unwrap_err() else {
        panic!("the server refuses");
    };
    assert!(error.is_permanent(), "{error}");
    let message = error.to_string();
    for part in ["(NoAuth)", "authenticate as the user that created it"] {
        assert!(message.contains(part), "{message}");
    }
}

/// The client without credentials, and the one with a wrong password, may do nothing.
#[tokio::test]
async fn only_the_same_credentials_may_use_the_nodes() {
    let rig = ZooKeeperRig::start_private().await;
    let owner = manager(&rig, OWNER);
    // The directory of the notes is created by the first look.
    owner.lock("own").inspect().await.unwrap();
    let _taken = owner.lock("taken").acquire().await.unwrap();
    revoke_holder(owner.lock("taken")).await;
    let guard = owner.lock("own").acquire().await.unwrap();
    let reading = owner.read("own").acquire().await.unwrap();
    owner.number("own").add(1).await.unwrap();
    let job = owner.lock("own-job");
    let ran = job.once_per(Duration::from_mins(1), async |_| {}).await;
    assert_matches!(ran.unwrap(), OncePer::Ran(_));

    let inside = session(&rig, OWNER).await;
    let all = nodes(&rig, &inside).await;
    for part in [
        "/.source",
        "/own/_c_",
        "/own%permits/_c_",
        "/.numbers/own",
        "/.periods/own-job",
        "/.revoked/",
    ] {
        let is_found = all.iter().any(|node| node.contains(part));
        assert!(is_found, "{part}: {all:?}");
    }
    for node in &all {
        // The lock of the period may be released in the meantime.
        let acl = match inside.get_acl(node).await {
            Err(Error::NoNode) => continue,
            found => found.unwrap().0,
        };
        let ids: Vec<_> = acl.iter().map(|acl| (acl.scheme(), acl.id())).collect();
        assert_eq!(ids.len(), 1, "{node}: {ids:?}");
        let is_owner = ids[0].0 == "digest" && ids[0].1.starts_with("shop:");
        assert!(is_owner, "{node}: {ids:?}");
    }
    let place = all.iter().find(|node| node.contains("/own/_c_")).unwrap();
    let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let new = format!("{}/own/_c_{:032x}-lock-", rig.root, 0);
    for outside in [rig.direct().await, session(&rig, STRANGER).await] {
        assert_eq!(outside.delete(place, None).await, Err(Error::NoAuth));
        let changed = outside.set_data(place, b"0", None).await;
        assert_eq!(changed, Err(Error::NoAuth));
        let created = outside.create(&new, b"", &ephemeral).await;
        assert_eq!(created.map(drop), Err(Error::NoAuth));
    }
    for stranger in [rig.manager(), manager(&rig, STRANGER)] {
        let refused = async {
            assert_no_auth(stranger.lock("own").wait(SOON * 9).acquire().await);
            assert_no_auth(stranger.read("own").wait(SOON * 9).acquire().await);
            assert_no_auth(stranger.number("own").add(1).await);
            assert_no_auth(stranger.ping().await.map_err(LockError::Unavailable));
        };
        timeout(SOON, refused).await.expect("it is refused at once");
    }
    guard.verify().await.unwrap();
    reading.release().await;

    let same = manager(&rig, OWNER);
    same.ping().await.unwrap();
    assert!(try_lock(&same, "own").await.is_none());
    let waiter = tokio::spawn(same.lock("own").wait(SOON).acquire());
    let queued = async || {
        let places = inside.list_children(&format!("{}/own", rig.root)).await;
        places.unwrap().len() == 2
    };
    eventually("the other client waits", SOON, queued).await;
    hand_over(guard, waiter).await;
}

/// Only the directory of the lock belongs to another client. What was not created need not be looked for, which
/// the server would refuse too, again and again.
#[tokio::test]
async fn refused_place_is_not_released() {
    let rig = ZooKeeperRig::start_private().await;
    use_lock(&rig.manager(), "open").await;
    let guard = manager(&rig, OWNER).lock("own").acquire().await.unwrap();
    let stranger = rig.backend();
    let mut contender = stranger.contender(request("own", rig.lease()));
    for _ in 0..2 {
        let error = contender.attempt().await.unwrap_err();
        assert_no_auth::<()>(Err(LockError::Unavailable(error)));
        assert_eq!(contender.left(), Left::Nothing);
        assert_eq!(stranger.places(), 0);
    }
    guard.release().await;
}

/// The connection is lost, and later the session. Nodes of a session without credentials would be open,
/// or refused.
#[tokio::test]
async fn next_connection_and_next_session_authenticate_again() {
    let rig = ZooKeeperRig::start_private().await;
    let owner = manager(&rig, OWNER);
    let guard = owner.lock("kept").acquire().await.unwrap();
    rig.proxy.set(Mode::Refuse).await;
    rig.proxy.set(Mode::Pass).await;
    let connected = async || owner.ping().await.is_ok();
    eventually("the session has a connection", SOON, connected).await;
    use_lock(&owner, "second").await;

    rig.block().await;
    guard.lost().await;
    let inside = session(&rig, OWNER).await;
    let directory = format!("{}/kept", rig.root);
    let ended = async || match inside.list_children(&directory).await {
        Ok(places) => places.is_empty(),
        Err(error) => error == Error::NoNode,
    };
    eventually("the server ends the session", SOON, ended).await;
    rig.unblock().await;
    let again = owner.lock("kept").wait(SOON).acquire().await.unwrap();
    let place = inside.list_children(&directory).await.unwrap().remove(0);
    let acl = inside.get_acl(&format!("{directory}/{place}")).await;
    assert_eq!(acl.unwrap().0[0].scheme(), "digest");
    assert_no_auth(rig.manager().lock("kept").acquire().await);
    again.release().await;
}

/// A client that authenticates may leave its nodes open, so that others can be changed one by one.
#[tokio::test]
async fn open_nodes_admit_clients_without_credentials() {
    let rig = ZooKeeperRig::start_private().await;
    let settings = rig.settings(&rig.address).auth("digest", OWNER);
    let settings = settings.acl(NodeAcl::Open);
    assert!(!format!("{settings:?}").contains("s3cr3t"), "{settings:?}");
    let backend = settings.build().unwrap();
    assert!(!format!("{backend:?}").contains("s3cr3t"), "{backend:?}");
    let lock = LockManager::new(backend).lock("open");
    let guard = lock.acquire().await.unwrap();
    assert!(try_lock(&rig.manager(), "open").await.is_none());
    guard.release().await;
    use_lock(&rig.manager(), "open").await;
}

#[tokio::test]
async fn unknown_scheme_fails_at_once_with_the_reason() {
    let rig = ZooKeeperRig::start().await;
    let settings = rig.settings(&rig.address).auth("unknown", "s3cr3t");
    let manager = LockManager::new(settings.build().unwrap());
    let refused = manager.lock("refused").wait(SOON * 9).acquire();
    let refused = timeout(SOON, refused).await.expect("it is refused at once");
    let LockError::Unavailable(error) = refused.unwrap_err() else {
        panic!("the server refuses");
    };
    assert!(error.is_permanent(), "{error}");
    let message = error.to_string();
    assert!(message.contains("(AuthFailed)"), "{message}");
    assert!(!message.contains("s3cr3t"), "{message}");
}

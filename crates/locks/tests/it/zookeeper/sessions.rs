//! An acquisition that continues in a new session while the ensemble has not ended the earlier one. The
//! earlier session may have a node with the same nonce until then.

use stocklock_locks::backend::{Attempt, Backend as _, Contender, Request};
use stocklock_locks::zookeeper::ZooKeeperBackend;
use stocklock_testkit::assert_matches;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::rig::zookeeper::ZooKeeperRig;
use crate::rig::{Rig as _, RigExt as _, eventually, request};

/// How many acquisitions a test tries: the nodes of a directory have no order, so the right one may be
/// found by chance.
const TIMES: usize = 8;

/// An acquisition with a node in each of two sessions, whose answers were lost.
struct Twice {
    contender: Box<dyn Contender>,
    request: Request,
    /// The path of the node in the earlier session.
    earlier: String,
}

impl Twice {
    async fn start(
        rig: &ZooKeeperRig,
        backend: &ZooKeeperBackend,
        earlier: &Client,
        number: usize,
    ) -> Self {
        let request = request(&format!("twice-{number}"), rig.lease());
        let (name, nonce) = (&request.name, request.nonce);
        let directory = format!("{}/{name}", rig.root);
        let container = CreateMode::Container.with_acls(Acls::anyone_all());
        earlier.mkdir(&directory, &container).await.unwrap();
        let place = format!("{directory}/_c_{nonce}-lock-");
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let (_, sequence) = earlier.create(&place, &[], &options).await.unwrap();
        let mut contender = backend.contender(request.clone());
        rig.proxy.cut_after(b"-lock-", 1);
        contender.attempt().await.unwrap_err();
        assert_eq!(rig.left().await, 2);
        Self {
            contender,
            request,
            earlier: format!("{place}{sequence}"),
        }
    }

    /// Repeats the attempt until it is answered.
    async fn attempt(&mut self, rig: &ZooKeeperRig) -> Attempt {
        let mut attempt = None;
        eventually("the attempt is answered", rig.lease() * 5, async || {
            attempt = self.contender.attempt().await.ok();
            attempt.is_some()
        })
        .await;
        attempt.unwrap()
    }

    /// Repeats the release until it is answered.
    async fn release(&self, rig: &ZooKeeperRig, backend: &ZooKeeperBackend) {
        let released = async || backend.release(&self.request, true).await.is_ok();
        eventually("the release is answered", rig.lease() * 5, released).await;
    }
}

/// The acquisition is given up. Its node in the current session must go: it would block all clients for as
/// long as the process lives.
#[tokio::test]
async fn release_deletes_the_node_of_the_current_session() {
    let rig = ZooKeeperRig::start().await;
    let (backend, earlier) = (rig.backend(), rig.direct().await);
    for number in 0..TIMES {
        let twice = Twice::start(&rig, &backend, &earlier, number).await;
        twice.release(&rig, &backend).await;
        assert_eq!(rig.places().await, [twice.earlier.as_str()]);
        earlier.delete(&twice.earlier, None).await.unwrap();
    }
    assert_eq!(backend.places(), 0);
}

/// The acquisition goes on. It finds its node in the current session, creates no third one, and has its
/// turn when the earlier session has ended.
#[tokio::test]
async fn retry_finds_the_node_of_the_current_session() {
    let rig = ZooKeeperRig::start().await;
    let (backend, earlier) = (rig.backend(), rig.direct().await);
    for number in 0..TIMES {
        let mut twice = Twice::start(&rig, &backend, &earlier, number).await;
        let attempt = twice.attempt(&rig).await;
        assert_matches!(attempt, Attempt::Busy { .. });
        assert_eq!(rig.left().await, 2);
        earlier.delete(&twice.earlier, None).await.unwrap();
        let attempt = twice.attempt(&rig).await;
        assert_matches!(attempt, Attempt::Held(_));
        twice.release(&rig, &backend).await;
        assert_eq!(rig.left().await, 0);
    }
}

//! Faults and costs that only ZooKeeper has.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use stocklock_locks::backend::{Attempt, Backend, Renewed};
use stocklock_locks::{LockManager, LostReason};
use stocklock_testkit::assert_matches;
use stocklock_testkit::ports::free_port;
use stocklock_testkit::proxy::Mode;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use zookeeper_client::{Acls, CreateMode, Error};

mod access;
mod curator;
mod ensemble;
mod permits;
mod sessions;

use crate::rig::zookeeper::ZooKeeperRig;
use crate::rig::{
    Faults, Rig, RigExt, eventually, holder, request, source_of, use_lock, wait_until_left,
};

const SOON: Duration = Duration::from_secs(10);

/// The session of a waiter ends. Its watch cannot fire any more, so it waits again in a new
/// session.
#[tokio::test]
async fn waiter_with_expired_session_waits_in_next_session() {
    let rig = ZooKeeperRig::start().await;
    let waiter = rig.manager();
    let direct = rig.direct().await;
    // Another session, which does not use the proxy, has the first place.
    use_lock(&waiter, "busy").await;
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let directory = format!("{}/busy", rig.root);
    let container = CreateMode::Container.with_acls(Acls::anyone_all());
    direct.mkdir(&directory, &container).await.unwrap();
    let place = format!("{directory}/_c_{:032x}-lock-", 0);
    let (_, sequence) = direct.create(&place, &[], &options).await.unwrap();
    let waiting = tokio::spawn(waiter.lock("busy").wait(Duration::from_secs(20)).acquire());
    wait_until_left(&rig, 2, rig.soon()).await;
    rig.block().await;
    wait_until_left(&rig, 1, rig.leases(3)).await;
    rig.unblock().await;
    wait_until_left(&rig, 2, Duration::from_secs(10)).await;
    assert!(!waiting.is_finished());
    let place = format!("{place}{sequence}");
    direct.delete(&place, None).await.unwrap();
    waiting.await.unwrap().unwrap().release().await;
}

/// Sixty processes wait. Each handover wakes one of them, regardless of their number.
#[tokio::test]
async fn handover_causes_at_most_two_watch_events() {
    let rig = ZooKeeperRig::start_private().await;
    let first = rig.manager().lock("hot").acquire().await.unwrap();
    let mut waiters = JoinSet::new();
    for manager in (0..60).map(|_| rig.manager()) {
        waiters.spawn(async move {
            let lock = manager.lock("hot").wait(Duration::from_mins(1));
            lock.acquire().await.unwrap().release().await;
            manager.shutdown().await;
        });
    }
    wait_until_left(&rig, 61, Duration::from_secs(30)).await;
    let before = watch_events(&rig).await;
    first.release().await;
    waiters.join_all().await;
    let events = watch_events(&rig).await - before;
    let expected = 59..=2 * 61;
    assert!(expected.contains(&events), "{events} for 61 handovers");
}

/// One of the waiting tasks of a process has a place behind the holder. The others wait in the process.
#[tokio::test]
async fn one_waiting_task_of_a_process_queues_ahead() {
    let rig = ZooKeeperRig::start().await;
    let manager = rig.manager();
    let guard = manager.lock("hot").acquire().await.unwrap();
    let waiters = [(); 3].map(|()| tokio::spawn(manager.lock("hot").acquire()));
    wait_until_left(&rig, 2, rig.soon()).await;
    guard.release().await;
    for waiter in waiters {
        let guard = waiter.await.unwrap().unwrap();
        assert!(rig.left().await <= 2);
        guard.release().await;
    }
}

async fn watch_events(rig: &ZooKeeperRig) -> u64 {
    let mut events = 0;
    for kind in ["deleted", "created", "changed", "children"] {
        let counter = format!("zk_sum_node_{kind}_watch_count");
        events += rig.counter(&counter).await;
    }
    events
}

#[tokio::test]
async fn ping_creates_no_node() {
    let rig = ZooKeeperRig::start().await;
    rig.manager().ping().await.unwrap();
    let root = rig.direct().await.check_stat(&rig.root).await.unwrap();
    assert!(root.is_none(), "{root:?}");
}

/// The server may remove the directory of a lock at any time, but the source stays.
#[tokio::test]
async fn source_outlives_managers_and_directories() {
    let rig = ZooKeeperRig::start().await;
    let source = async || {
        let manager = rig.manager();
        let source = source_of(&manager, "named").await;
        manager.shutdown().await;
        source
    };
    let first = source().await;
    assert!(first.starts_with("zookeeper:"), "{first}");
    let direct = rig.direct().await;
    let directory = format!("{}/named", rig.root);
    let removed = async || {
        let stat = direct.check_stat(&directory).await;
        matches!(stat, Ok(None) | Err(Error::NoNode))
    };
    eventually("the directory was removed", SOON, removed).await;
    assert_eq!(source().await, first);
}

/// The event for the deleted predecessor is lost with the connection of the waiter. The next
/// connection of the same session delivers it.
#[tokio::test]
async fn waiter_is_woken_after_connection_loss() {
    for mode in [Mode::Refuse, Mode::Strand] {
        let rig = ZooKeeperRig::start().await;
        let holder = rig.past_the_proxy();
        let guard = holder.lock("quiet").acquire().await.unwrap();
        let waiter = rig.manager();
        let lock = waiter.lock("quiet").wait(Duration::from_secs(20));
        let waiting = tokio::spawn(lock.acquire());
        wait_until_left(&rig, 2, rig.soon()).await;
        rig.proxy.set(mode).await;
        guard.release().await;
        let begin = rig.now();
        rig.proxy.set(Mode::Pass).await;
        waiting.await.unwrap().unwrap().release().await;
        assert!(rig.now().since(begin) < rig.leases(1), "{mode:?}");
    }
}

/// A node lives as long as its session, which may be longer than the lease. An acquisition that
/// ended during an outage is therefore undone after the outage, even if its lease has expired.
#[tokio::test]
async fn outage_longer_than_lease_leaves_no_node_in_session() {
    let rig = ZooKeeperRig::start().await;
    let backend = rig.backend();
    let manager = LockManager::new(backend.clone());
    let lock = manager.lock("short").lease(Duration::from_millis(20));
    lock.clone().acquire().await.unwrap().release().await;
    rig.block().await;
    let lock = lock.wait(Duration::from_millis(50));
    lock.acquire().await.unwrap_err();
    // The session survives this pause, which is much longer than two leases.
    tokio::time::sleep(rig.lease() / 3).await;
    rig.unblock().await;
    let nothing = async || (rig.left().await, backend.places()) == (0, 0);
    eventually("nothing is left", rig.leases(2), nothing).await;
    // The session is still the same, so its end did not remove the node.
    let guard = manager.lock("short").acquire().await.unwrap();
    assert_eq!(guard.name(), "short");
}

/// Checks the costs in the documentation: two writes, and two more if the directory does not exist.
#[tokio::test]
async fn free_lock_costs_two_writes() {
    let rig = ZooKeeperRig::start_private().await;
    let manager = rig.manager();
    let zxid = async || {
        let answer = rig.ask("srvr").await;
        let mut lines = answer
            .lines()
            .filter_map(|line| line.strip_prefix("Zxid: 0x"));
        u64::from_str_radix(lines.next().expect("the answer has a Zxid"), 16).unwrap()
    };
    let cost = async |name| {
        let before = zxid().await;
        use_lock(&manager, name).await;
        zxid().await - before
    };
    cost("first").await;
    // The server may remove a directory at the same time, which is one more write. Use the minimum.
    let (mut new, mut known) = (u64::MAX, u64::MAX);
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        if (new, known) == (4, 2) {
            break;
        }
        new = new.min(cost(name).await);
        known = known.min(cost(name).await);
    }
    assert_eq!((new, known), (4, 2));
}

/// A renewal is one write, which needs a quorum. A server without its leader would still answer
/// reads, although the leader may have ended the session.
#[tokio::test]
async fn renewal_of_several_locks_is_one_write() {
    let rig = ZooKeeperRig::start_private().await;
    let backend = rig.backend();
    let requests = ["a", "b", "c"].map(|name| request(name, rig.lease()));
    for request in &requests {
        let mut contender = backend.contender(request.clone());
        contender.attempt().await.unwrap();
    }
    // Heartbeats of the session may add packets, so use the minimum. Reading the counter is one
    // packet itself.
    let mut packets = u64::MAX;
    for _ in 0..5 {
        let before = rig.counter("zk_packets_received").await;
        let renewed = backend.renew(&requests).await.unwrap();
        let is_held = |renewed: &Renewed| matches!(renewed, Renewed::Held(_));
        assert!(renewed.iter().all(is_held), "{renewed:?}");
        packets = packets.min(rig.counter("zk_packets_received").await - before - 1);
    }
    assert_eq!(packets, 1);
    // One lock is gone. The others are still renewed.
    rig.take_away("b").await;
    let renewed = backend.renew(&requests).await.unwrap();
    assert_matches!(
        renewed[..],
        [
            Renewed::Held(_),
            Renewed::Gone(LostReason::Stolen),
            Renewed::Held(_)
        ]
    );
}

/// Forwards connections to `server`. Each answer to a transaction of several operations becomes an
/// error, as from a server that has lost its leader and still answers reads.
async fn without_leader(server: String) -> String {
    const MULTI: [u8; 4] = 14_u32.to_be_bytes();
    const ERROR: [u8; 4] = (-1_i32).to_be_bytes();
    async fn frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
        let mut body = vec![0; from.read_u32().await?.try_into().expect("64 bits")];
        from.read_exact(&mut body).await?;
        Ok(body)
    }
    async fn send(to: &mut (impl AsyncWrite + Unpin), body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len()).expect("a short packet");
        to.write_all(&[&length.to_be_bytes(), body].concat()).await
    }
    let address = format!("127.0.0.1:{}", free_port());
    let listener = TcpListener::bind(&address).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(&server).await.unwrap();
            let mut multis = HashSet::new();
            let (mut from_client, mut to_client) = client.split();
            let (mut from_server, mut to_server) = server.split();
            // The first packet of each side has no header.
            let greeting = frame(&mut from_client).await.unwrap();
            send(&mut to_server, &greeting).await.unwrap();
            let greeting = frame(&mut from_server).await.unwrap();
            send(&mut to_client, &greeting).await.unwrap();
            // One task, so a request is known before its answer.
            while let Ok(request) = frame(&mut from_client).await {
                if request[4..8] == MULTI {
                    multis.insert(request[..4].to_vec());
                }
                send(&mut to_server, &request).await.unwrap();
                let mut answer = frame(&mut from_server).await.unwrap();
                if multis.contains(&answer[..4]) {
                    answer[12..16].copy_from_slice(&ERROR);
                    answer.truncate(16);
                }
                send(&mut to_client, &answer).await.unwrap();
            }
        }
    });
    address
}

#[tokio::test]
async fn renewal_that_no_leader_confirms_is_unknown() {
    let rig = ZooKeeperRig::start().await;
    let backend = rig.at(&without_leader(rig.address.clone()).await);
    let request = request("a", rig.lease());
    backend.contender(request.clone()).attempt().await.unwrap();
    let renewed = backend.renew(&[request]).await.unwrap();
    assert_eq!(renewed, [Renewed::Unknown]);
}

/// An acquisition may be dropped after it created the directory, but before it created its place.
/// The server removes only directories that once had a child.
#[tokio::test]
async fn cut_acquisition_leaves_no_directory() {
    let rig = ZooKeeperRig::start().await;
    let manager = rig.manager();
    for cut in 0..200 {
        let acquisition = manager.lock(&format!("cut-{cut}")).acquire();
        let time = rig.step() * cut / 4;
        if let Ok(guard) = tokio::time::timeout(time, acquisition).await {
            guard.unwrap().release().await;
        }
    }
    let only_the_source = async || rig.names().await == [".source"];
    eventually("no directory is left", SOON, only_the_source).await;
}

/// Its node is the first one, but it has not read that yet.
#[tokio::test]
async fn revoked_waiter_does_not_queue_again() {
    let rig = ZooKeeperRig::start().await;
    let (backend, operator) = (rig.backend(), rig.manager());
    let guard = operator.lock("first").acquire().await.unwrap();
    let request = request("first", rig.lease());
    let nonce = request.nonce;
    let mut contender = backend.contender(request);
    assert_matches!(contender.attempt().await.unwrap(), Attempt::Busy { .. });
    guard.release().await;
    assert!(operator.lock("first").revoke(nonce).await.unwrap());
    let error = contender.attempt().await.unwrap_err();
    assert!(error.is_permanent(), "{error}");
    assert_eq!(rig.left().await, 0);
}

#[tokio::test]
async fn second_revocation_of_a_nonce_takes_its_place_away() {
    let rig = ZooKeeperRig::start().await;
    let (one, operator) = (rig.manager(), rig.manager());
    let _guard = one.lock("again").acquire().await.unwrap();
    let nonce = holder(operator.lock("again")).await.nonce;
    // The note of the first revocation.
    rig.create(&format!(".revoked/{nonce}"), b"").await;
    assert!(operator.lock("again").revoke(nonce).await.unwrap());
    use_lock(&operator, "again").await;
}

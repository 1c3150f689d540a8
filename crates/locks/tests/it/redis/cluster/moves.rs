//! Slots move while clients use their locks.

use std::cell::Cell;
use std::time::Duration;

use futures_util::future::join_all;
use redis::FromRedisValue;
use stocklock_locks::backend::{Admin as _, Backend, Change, Claim, Numbers as _, Request};
use stocklock_locks::{BackendError, LockError, Nonce, ReleaseOutcome, Token};
use stocklock_testkit::assert_matches;

use super::{LONG, SOON, all_grow};
use crate::rig::cluster::ClusterRig;
use crate::rig::redis::command;
use crate::rig::{Rig, RigExt, change, loss, request, wait_until_nothing_is_left};

#[derive(Default)]
struct Guarded {
    is_used: Cell<bool>,
    token: Cell<Option<Token>>,
    uses: Cell<u64>,
}

/// Four processes use one lock, and a lock for writers that is in the same slot, while the slot moves. No
/// request fails, no lock is lost, and each wake-up or fallback finds the lock.
#[tokio::test]
async fn slot_moves_while_processes_use_its_locks() {
    const MOVES: u64 = 6;
    let rig = ClusterRig::start_private().await;
    let ends = Cell::new(false);
    let guarded = [(); 2].map(|()| Guarded::default());
    let user = async |_| {
        let manager = rig.manager();
        while !ends.get() {
            let locks = [manager.lock("hot"), manager.write("hot")];
            for (lock, guarded) in locks.into_iter().zip(&guarded) {
                let guard = lock.wait(SOON).acquire().await.unwrap();
                assert!(!guarded.is_used.replace(true), "two holders");
                let token = Some(guard.token());
                assert!(guarded.token.replace(token) < token);
                tokio::task::yield_now().await;
                guard.check().unwrap();
                guarded.is_used.set(false);
                guarded.uses.update(|uses| uses + 1);
                assert_eq!(loss(guard.release().await), None);
            }
        }
        manager.shutdown().await;
    };
    let moves = async {
        let slot = rig.slot("hot").await;
        let mut master = rig.master("hot").await;
        for _ in 0..MOVES {
            master = (master + 1) % 3;
            rig.cluster().move_slot(slot, master).await;
            all_grow(|| guarded.each_ref().map(|each| each.uses.get())).await;
        }
        ends.set(true);
    };
    tokio::join!(join_all((0..4).map(user)), moves);
    wait_until_nothing_is_left(&rig, SOON).await;
}

/// A slot that an operator moves to another master, key by key.
struct Moving<'a> {
    rig: &'a ClusterRig,
    slot: u16,
    from: usize,
    to: usize,
}

impl<'a> Moving<'a> {
    async fn begin(rig: &'a ClusterRig, name: &str) -> Self {
        let (slot, from) = (rig.slot(name).await, rig.master(name).await);
        let to = (from + 1) % 3;
        rig.cluster().open_move(slot, from, to).await.unwrap();
        Self {
            rig,
            slot,
            from,
            to,
        }
    }

    async fn carry(&self, keys: &[String]) {
        let (cluster, keys) = (self.rig.cluster(), keys.to_vec());
        let moved = cluster.migrate_keys(keys, self.from, self.to).await;
        assert!(moved.unwrap(), "the node has none of the keys");
    }

    async fn end(self) {
        self.rig.cluster().move_slot(self.slot, self.to).await;
    }

    /// The keys of both nodes that begin with the key of the lock.
    async fn keys(&self, name: &str) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for (master, key) in self.rig.keys(&format!("{{{name}}}*")).await {
            let kind: String = self.send(master, &format!("TYPE {key}")).await;
            let read = match &*kind {
                "string" => format!("GET {key}"),
                "zset" => format!("ZRANGE {key} 0 -1 WITHSCORES"),
                _ => format!("HGETALL {key}"),
            };
            let value: redis::Value = self.send(master, &read).await;
            found.push((master, format!("{key}: {value:?}")));
        }
        found.sort();
        found
    }

    async fn send<T: FromRedisValue>(&self, node: usize, line: &str) -> T {
        // The node that receives the slot shows nothing without this.
        let mut pipe = redis::pipe();
        pipe.cmd("ASKING").ignore().add_command(command(line));
        let mut direct = self.rig.direct(node).await;
        let answer: Vec<T> = pipe.query_async(&mut direct).await.unwrap();
        answer.into_iter().next().unwrap()
    }
}

/// The slot moves for three leases. Its locks cannot be acquired meanwhile, but their holders keep them.
#[tokio::test]
async fn holders_keep_locks_while_their_slot_moves() {
    let rig = ClusterRig::start_private().await;
    let (name, manager, other) = ("moving", rig.manager(), rig.manager());
    let locks = || [manager.lock(name), manager.read(name)];
    let mut guards = Vec::new();
    for lock in locks() {
        guards.push(lock.acquire().await.unwrap());
    }
    let last = guards[0].token();
    let moving = Moving::begin(&rig, name).await;
    let half = rig.lease() * 3 / 2;
    tokio::time::sleep(half).await;
    for guard in &guards {
        guard.verify().await.unwrap();
    }
    let key = rig.key(name);
    moving.carry(std::slice::from_ref(&key)).await;
    let permits = ["holders", "claims"].map(|of| format!("{key}:{of}"));
    moving.carry(&permits).await;
    tokio::time::sleep(half).await;
    for guard in &guards {
        guard.verify().await.unwrap();
    }
    // The locks are free, but their last tokens may be at either node.
    let released = guards.remove(0).release().await;
    assert_matches!(released, ReleaseOutcome::Released { .. });
    let refused = other.lock(name).wait(half).acquire().await.unwrap_err();
    assert_matches!(refused, LockError::Unavailable(_));
    assert!(refused.to_string().contains("TRYAGAIN"), "{refused}");

    let next = tokio::spawn(other.lock(name).wait(SOON).acquire());
    let writer = tokio::spawn(other.write(name).wait(SOON).acquire());
    moving.end().await;
    let next = next.await.unwrap().unwrap();
    assert!(last < next.token());
    next.release().await;
    assert!(!writer.is_finished());
    guards.remove(0).release().await;
    writer.await.unwrap().unwrap().release().await;
    wait_until_nothing_is_left(&rig, SOON).await;
}

/// Every kind of request while the keys of a lock are at the old node, at both, or at the new one. Those
/// that touch several keys change nothing.
#[tokio::test]
async fn no_script_runs_halfway_while_its_slot_moves() {
    let rig = ClusterRig::start_private().await;
    let (name, backend, manager) = ("moving", rig.backend(), rig.manager());
    let claims = [Claim::Exclusive, Claim::READ];
    let held = claims.map(|claim| Request {
        claim,
        ..request(name, LONG)
    });
    for request in held.clone() {
        backend.contender(request).attempt().await.unwrap();
    }
    let waiting = Request {
        nonce: Nonce::random(),
        claim: Claim::WRITE,
        ..held[0].clone()
    };
    backend.contender(waiting.clone()).attempt().await.unwrap();
    manager.number(name).set(7).await.unwrap();
    let assert_refused = |error: BackendError| {
        assert!(!error.is_permanent(), "{error}");
        assert!(error.to_string().contains("TRYAGAIN"), "{error}");
    };
    // Tombstones of other requests, so that no key is missing.
    let gone = Nonce::random();
    for request in &held {
        let gone = Request {
            nonce: gone,
            ..request.clone()
        };
        backend.release(&gone, true).await.unwrap();
    }

    let moving = Moving::begin(&rig, name).await;
    let key = rig.key(name);
    let batches = [
        vec![],
        vec![format!("{key}:holders"), format!("{key}:token")],
        vec![
            format!("{key}:claims"),
            format!("{key}:gone:{gone}"),
            key.clone(),
        ],
    ];
    for batch in batches {
        if !batch.is_empty() {
            moving.carry(&batch).await;
        }
        let before = moving.keys(name).await;
        for request in &held {
            for nonce in [request.nonce, gone] {
                let request = Request {
                    nonce,
                    ..request.clone()
                };
                assert_refused(backend.release(&request, true).await.unwrap_err());
                let revoked = backend.revoke(name, nonce, request.claim).await;
                assert_refused(revoked.unwrap_err());
                assert_refused(backend.contender(request).attempt().await.unwrap_err());
            }
        }
        let attempt = backend.contender(waiting.clone()).attempt().await;
        assert_refused(attempt.unwrap_err());
        let reduced = backend.reduce(name, held[1].nonce, 0).await;
        assert_refused(reduced.unwrap_err());
        let change = change(name, Change::Add(1));
        assert_refused(backend.change(&change).await.unwrap_err());
        assert_eq!(moving.keys(name).await, before);
        for request in &held {
            let verified = backend.verify(name, request.nonce).await.unwrap();
            assert_eq!(verified, None);
        }
        assert_eq!(manager.number(name).get().await.unwrap(), 7);
    }
    moving.end().await;
    for request in held.iter().chain([&waiting]) {
        backend.release(request, true).await.unwrap();
    }
    wait_until_nothing_is_left(&rig, Duration::from_secs(5)).await;
    let free = rig.manager().write(name).acquire().await;
    free.unwrap().release().await;
}

//! Tests of the order in which requests are served, and by which kind of connection.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::*;

const HOT: Key = 1;
const WARM: Key = 2;
const COLD: Key = 3;

/// A request that has entered the queue.
fn request(queue: &Arc<Queue>, key: Key) -> BoxFuture<'static, Permit> {
    let queue = Arc::clone(queue);
    let mut request = async move { queue.enter(key, Need::Row).await }.boxed();
    assert!((&mut request).now_or_never().is_none(), "it must wait");
    request
}

/// The permit of a request that must not wait.
fn served(queue: &Arc<Queue>, key: Key) -> Permit {
    let served = queue.enter(key, Need::Row).now_or_never();
    served.expect("it is served at once")
}

/// A request that has met a locked row.
fn locked(queue: &Arc<Queue>, key: Key) -> BoxFuture<'static, Permit> {
    let queue = Arc::clone(queue);
    async move { queue.enter(key, Need::LockedRow).await }.boxed()
}

/// A request that had met a locked row, and was given up, keeps none off the prompt connections.
#[test]
fn request_that_is_gone_has_met_no_locked_row() {
    let queue = Queue::new(1, 1);
    let _waiting = served(&queue, WARM);
    let mut gone = locked(&queue, HOT);
    assert!((&mut gone).now_or_never().is_none());
    drop(gone);
    assert!(served(&queue, HOT).is_prompt());
}

/// The SKUs of the requests that are served one after another.
fn order(mut permit: Permit, mut requests: Vec<BoxFuture<'static, Permit>>) -> Vec<Key> {
    let mut order = Vec::new();
    while !requests.is_empty() {
        drop(permit);
        let mut found = None;
        for (number, request) in requests.iter_mut().enumerate() {
            if let Some(next) = request.now_or_never() {
                assert!(found.is_none(), "one connection serves one request");
                found = Some((number, next));
            }
        }
        let (number, next) = found.expect("the next request is served");
        drop(requests.remove(number));
        order.extend(next.key);
        permit = next;
    }
    order
}

#[test]
fn one_sku_has_at_most_half_of_the_connections() {
    for (connections, share) in [(1, 1), (2, 1), (3, 1), (16, 8)] {
        let queue = Queue::new(share, connections - share);
        let hot: Vec<Permit> = (0..share).map(|_| served(&queue, HOT)).collect();
        let waiting = request(&queue, HOT);
        if connections > share {
            drop(served(&queue, COLD));
        }
        drop(hot);
        assert_eq!(
            waiting.now_or_never().map(|permit| permit.key),
            Some(Some(HOT))
        );
    }
}

#[test]
fn waiting_skus_take_turns() {
    let queue = Queue::new(1, 0);
    let first = served(&queue, HOT);
    let keys = [HOT, HOT, HOT, WARM, WARM, COLD, HOT];
    let requests = keys.map(|key| request(&queue, key)).into();
    let expected = [WARM, COLD, HOT, WARM, HOT, HOT, HOT];
    assert_eq!(order(first, requests), expected);
}

#[test]
fn sku_at_its_share_waits_for_its_own_connections() {
    let queue = Queue::new(4, 0);
    let hot = [served(&queue, HOT), served(&queue, HOT)];
    let mut waiting = request(&queue, HOT);
    drop([served(&queue, WARM), served(&queue, COLD)]);
    assert!((&mut waiting).now_or_never().is_none(), "it has its share");
    drop(hot);
    assert!(waiting.now_or_never().is_some());
}

#[test]
fn request_that_is_gone_costs_no_connection() {
    let queue = Queue::new(1, 0);
    let first = served(&queue, HOT);
    let served_then_gone = request(&queue, HOT);
    let gone = request(&queue, COLD);
    let stays = request(&queue, HOT);
    drop(gone);
    drop(first);
    drop(served_then_gone);
    let permit = stays.now_or_never().expect("the next request is served");
    drop(permit);
    assert!(queue.state.lock().groups.is_empty(), "all are forgotten");
    assert!(queue.state.lock().turns.iter().all(BTreeMap::is_empty));
    drop(served(&queue, WARM));
}

#[test]
fn locked_rows_leave_prompt_connections_free() {
    let queue = Queue::new(2, 2);
    let mut waiting: Vec<Permit> = Vec::new();
    let mut met_locks = Vec::new();
    for key in 10..20 {
        // The row may be free, so the first request may use any connection.
        if let Some(first) = queue.enter(key, Need::Row).now_or_never() {
            if first.is_prompt() {
                drop(first);
                let mut met_lock = locked(&queue, key);
                assert!((&mut met_lock).now_or_never().is_none());
                met_locks.push(met_lock);
            } else {
                waiting.push(first);
            }
        }
        let cold = served(&queue, COLD);
        assert_eq!(cold.is_prompt(), waiting.len() == 2);
    }
    assert_eq!(waiting.len(), 2);
}

#[test]
fn connection_out_of_use_counts_for_no_sku() {
    let queue = Queue::new(4, 0);
    let mut hot = [served(&queue, HOT), served(&queue, HOT)];
    let mut waiting = request(&queue, HOT);
    hot[0].leave_sku();
    let third = (&mut waiting).now_or_never();
    let third = third.expect("it has less than its share");
    drop((hot, third));
    assert!(queue.state.lock().groups.is_empty(), "all are forgotten");
    assert_eq!(queue.state.lock().free, [4, 0]);
}

#[test]
fn sku_with_a_connection_needs_a_waiting_one() {
    let queue = Queue::new(1, 3);
    let others = served(&queue, COLD);
    let first = served(&queue, HOT);
    assert!(!others.is_prompt() && first.is_prompt());
    let second = request(&queue, HOT);
    drop(others);
    let second = second.now_or_never().expect("the waiting one is free");
    assert!(!second.is_prompt());
    let mut third = request(&queue, HOT);
    drop(first);
    // Its share is two connections; this SKU still has one, which has probably locked the row.
    assert!((&mut third).now_or_never().is_none());
    drop(second);
    assert!(third.now_or_never().is_some());
}

#[test]
fn request_that_met_a_locked_row_keeps_its_place() {
    let queue = Queue::new(1, 1);
    let holder = served(&queue, WARM);
    let prompt = served(&queue, HOT);
    let behind = request(&queue, HOT);
    drop(prompt);
    let second = behind.now_or_never().expect("the prompt one is free");
    let mut met_lock = locked(&queue, HOT);
    assert!((&mut met_lock).now_or_never().is_none());
    let mut later = request(&queue, HOT);
    drop(second);
    assert!((&mut later).now_or_never().is_none(), "it is behind");
    drop(holder);
    let first = met_lock.now_or_never().expect("the waiting one is free");
    assert!(!first.is_prompt());
    drop(first);
    assert!(later.now_or_never().is_some());
}

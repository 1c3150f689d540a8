//! The queue for the connections of a pool.
//!
//! Guarantees: one SKU has at most half of the connections (at least one). SKUs take turns, so that a
//! request does not wait until all earlier requests of another SKU are served. Requests of one SKU
//! are served in the order of their arrival.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The hash of a SKU, or zero for requests without one. SKUs with the same hash share their turns.
pub(super) type Key = u64;

/// The queue of one pool.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Connections that no request has.
    free: usize,
    /// How many connections one SKU may have.
    share: usize,
    /// The SKUs that have a connection or wait for one.
    groups: HashMap<Key, Group>,
    /// The SKUs that wait and have less than their share, in the order of their turns.
    turns: VecDeque<Key>,
}

/// The requests of one SKU.
#[derive(Debug, Default)]
struct Group {
    connections: usize,
    waiting: VecDeque<oneshot::Sender<Permit>>,
    /// Whether the SKU is in `turns`.
    has_turn: bool,
}

/// The right to use one connection. Dropping it lets the next request continue.
#[derive(Debug)]
pub(super) struct Permit {
    queue: Arc<Queue>,
    key: Key,
}

impl Queue {
    pub(super) fn new(connections: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                free: connections,
                share: (connections / 2).max(1),
                groups: HashMap::new(),
                turns: VecDeque::new(),
            }),
        })
    }

    /// Waits for the right to use a connection. Cancel safe.
    pub(super) async fn enter(self: &Arc<Self>, key: Key) -> Permit {
        let (sender, permit) = oneshot::channel();
        {
            let mut state = self.state();
            let waiting = &mut state.groups.entry(key).or_default().waiting;
            waiting.push_back(sender);
            state.update(key);
        }
        self.serve();
        permit.await.expect("a waiting request is served or gone")
    }

    /// Serves the SKUs in turn while connections are free.
    fn serve(self: &Arc<Self>) {
        loop {
            let next = self.state().next();
            let Some((waiting, key)) = next else {
                return;
            };
            let queue = Arc::clone(self);
            // If the request is gone, its permit is dropped here, which serves the next one.
            drop(waiting.send(Permit { queue, key }));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the next turn, if a connection is free.
    fn next(&mut self) -> Option<(oneshot::Sender<Permit>, Key)> {
        while self.free > 0 {
            let key = self.turns.pop_front()?;
            let group = self.groups.get_mut(&key)?;
            group.has_turn = false;
            while group
                .waiting
                .front()
                .is_some_and(oneshot::Sender::is_closed)
            {
                group.waiting.pop_front();
            }
            let waiting = group.waiting.pop_front();
            if waiting.is_some() {
                group.connections += 1;
                self.free -= 1;
            }
            self.update(key);
            if let Some(waiting) = waiting {
                return Some((waiting, key));
            }
        }
        None
    }

    /// Gives a SKU a turn if it waits for one and may have it. Forgets a SKU without requests.
    fn update(&mut self, key: Key) {
        let Some(group) = self.groups.get_mut(&key) else {
            return;
        };
        if group.waiting.is_empty() {
            if group.connections == 0 {
                self.groups.remove(&key);
            }
        } else if group.connections < self.share && !group.has_turn {
            group.has_turn = true;
            self.turns.push_back(key);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        {
            let mut state = self.queue.state();
            state.free += 1;
            if let Some(group) = state.groups.get_mut(&self.key) {
                group.connections -= 1;
            }
            state.update(self.key);
        }
        self.queue.serve();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;

    use super::*;

    const HOT: Key = 1;
    const WARM: Key = 2;
    const COLD: Key = 3;

    /// A request that has entered the queue.
    fn request(queue: &Arc<Queue>, key: Key) -> BoxFuture<'static, Permit> {
        let queue = Arc::clone(queue);
        let mut request = async move { queue.enter(key).await }.boxed();
        assert!((&mut request).now_or_never().is_none(), "it must wait");
        request
    }

    /// The permit of a request that must not wait.
    fn served(queue: &Arc<Queue>, key: Key) -> Permit {
        let served = queue.enter(key).now_or_never();
        served.expect("it is served at once")
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
            order.push(next.key);
            permit = next;
        }
        order
    }

    #[test]
    fn one_sku_has_at_most_half_of_the_connections() {
        for (connections, share) in [(1, 1), (2, 1), (3, 1), (16, 8)] {
            let queue = Queue::new(connections);
            let hot: Vec<Permit> = (0..share).map(|_| served(&queue, HOT)).collect();
            let waiting = request(&queue, HOT);
            if connections > share {
                drop(served(&queue, COLD));
            }
            drop(hot);
            assert_eq!(waiting.now_or_never().map(|permit| permit.key), Some(HOT));
        }
    }

    #[test]
    fn waiting_skus_take_turns() {
        let queue = Queue::new(1);
        let first = served(&queue, HOT);
        let keys = [HOT, HOT, HOT, WARM, WARM, COLD, HOT];
        let requests = keys.map(|key| request(&queue, key)).into();
        let expected = [WARM, COLD, HOT, WARM, HOT, HOT, HOT];
        assert_eq!(order(first, requests), expected);
    }

    #[test]
    fn sku_at_its_share_waits_for_its_own_connections() {
        let queue = Queue::new(4);
        let hot = [served(&queue, HOT), served(&queue, HOT)];
        let mut waiting = request(&queue, HOT);
        drop([served(&queue, WARM), served(&queue, COLD)]);
        assert!((&mut waiting).now_or_never().is_none(), "it has its share");
        drop(hot);
        assert!(waiting.now_or_never().is_some());
    }

    #[test]
    fn request_that_is_gone_costs_no_connection() {
        let queue = Queue::new(1);
        let first = served(&queue, HOT);
        let served_then_gone = request(&queue, HOT);
        let gone = request(&queue, COLD);
        let stays = request(&queue, HOT);
        drop(gone);
        drop(first);
        drop(served_then_gone);
        let permit = stays.now_or_never().expect("the next request is served");
        drop(permit);
        assert!(queue.state().groups.is_empty(), "all are forgotten");
        assert!(queue.state().turns.is_empty());
        drop(served(&queue, WARM));
    }
}

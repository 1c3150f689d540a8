//! The queue for the connections of a pool.
//!
//! A pool can have two kinds of connections. On a *waiting* one, a statement waits for a row that another
//! transaction has locked. On a *prompt* one, it fails instead, and the request then asks for a waiting
//! one. So locked rows, even of many SKUs, keep only the waiting connections busy.
//!
//! Guarantees: one SKU has at most half of the connections (at least one). SKUs take turns, so that a
//! request does not wait until all earlier requests of another SKU are served. Requests of one SKU
//! are served in the order of their arrival, those that met a locked row first. So a request behind one of
//! those waits for a waiting connection too.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::sleep;

/// How long a pool does with fewer connections after the server has refused one.
const SET_ASIDE: Duration = Duration::from_secs(10);

/// The hash of a SKU, or zero for requests without one. SKUs with the same hash share their turns.
pub(super) type Key = u64;

/// What a statement does on a connection if another transaction has locked its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It waits until the wait limit.
    Waiting,
    /// It fails: on MariaDB and PostgreSQL after milliseconds, on MySQL after a second.
    Prompt,
}

/// What a request does with its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// It waits for no row.
    NoRow,
    /// It locks a row that is not known to be locked.
    Row,
    /// It waits for a row that is locked.
    LockedRow,
}

impl Need {
    /// The kinds of connections that serve it, the better one first. If its SKU has `connections`
    /// already, the row is probably locked by one of them.
    fn kinds(self, connections: usize) -> &'static [Kind] {
        if self == Self::LockedRow || self == Self::Row && connections > 0 {
            &[Kind::Waiting]
        } else {
            &[Kind::Waiting, Kind::Prompt]
        }
    }
}

/// The queue of one pool.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Connections of each [`Kind`] that no request has.
    free: [usize; 2],
    /// How many connections one SKU may have.
    share: usize,
    /// The SKUs that have a connection or wait for one.
    groups: HashMap<Key, Group>,
    /// The SKUs that wait and have less than their share, by the numbers of their turns: [`ANY`], those
    /// that any connection serves, and [`ONLY_WAITING`].
    turns: [BTreeMap<u64, Key>; 2],
    last_turn: u64,
}

const ANY: usize = 0;
const ONLY_WAITING: usize = 1;

/// The requests of one SKU.
#[derive(Debug, Default)]
struct Group {
    connections: usize,
    waiting: VecDeque<Request>,
    /// Its place in `turns`.
    turn: Option<(usize, u64)>,
}

impl Group {
    /// The kinds of connections that serve its first request. `None` if none waits. Requests that are gone
    /// are forgotten: one that had met a locked row would keep those behind it off the prompt connections.
    fn kinds(&mut self) -> Option<&'static [Kind]> {
        while self.waiting.front()?.permit.is_closed() {
            self.waiting.pop_front();
        }
        let first = self.waiting.front()?;
        Some(first.need.kinds(self.connections))
    }
}

/// A request that waits for a connection.
#[derive(Debug)]
struct Request {
    need: Need,
    permit: oneshot::Sender<Permit>,
}

/// The right to use one connection. Dropping it lets the next request continue.
#[derive(Debug)]
pub(super) struct Permit {
    queue: Arc<Queue>,
    /// Whose share it uses.
    key: Option<Key>,
    kind: Kind,
}

impl Queue {
    /// For this many connections of each kind.
    pub(super) fn new(waiting: usize, prompt: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                free: [waiting, prompt],
                share: waiting.midpoint(prompt).max(1),
                groups: HashMap::new(),
                turns: [BTreeMap::new(), BTreeMap::new()],
                last_turn: 0,
            }),
        })
    }

    /// Waits for the right to use a connection. Cancel safe.
    pub(super) async fn enter(self: &Arc<Self>, key: Key, need: Need) -> Permit {
        let (sender, permit) = oneshot::channel();
        {
            let mut state = self.state.lock();
            let waiting = &mut state.groups.entry(key).or_default().waiting;
            let request = Request {
                need,
                permit: sender,
            };
            if need == Need::LockedRow {
                let ahead = waiting.iter().take_while(|one| one.need == need).count();
                waiting.insert(ahead, request);
            } else {
                waiting.push_back(request);
            }
            state.update(key);
        }
        self.serve();
        permit.await.expect("a waiting request is served or gone")
    }

    /// Serves the SKUs in turn while connections are free.
    fn serve(self: &Arc<Self>) {
        loop {
            let next = self.state.lock().next();
            let Some((request, key, kind)) = next else {
                return;
            };
            let queue = Arc::clone(self);
            // If the request is gone, its permit is dropped here, which serves the next one.
            let key = Some(key);
            drop(request.permit.send(Permit { queue, key, kind }));
        }
    }
}

impl State {
    /// Takes the next turn that a free connection serves.
    fn next(&mut self) -> Option<(Request, Key, Kind)> {
        loop {
            let (turn, list) = self.first_turn()?;
            let key = *self.turns[list].get(&turn)?;
            let group = self.groups.get_mut(&key)?;
            let mut kinds = group.kinds().unwrap_or_default().iter().copied();
            let kind = kinds.find(|kind| self.free[*kind as usize] > 0);
            let served = kind.zip(kind.and_then(|_| group.waiting.pop_front()));
            if let Some((kind, _)) = served {
                group.connections += 1;
                group.turn = None;
                self.turns[list].remove(&turn);
                self.free[kind as usize] -= 1;
            }
            // If those that it had the turn for are gone, the next one of the SKU keeps its place.
            self.update(key);
            if let Some((kind, request)) = served {
                return Some((request, key, kind));
            }
        }
    }

    /// A SKU has a connection less.
    fn leave(&mut self, key: Option<Key>) {
        let Some(key) = key else {
            return;
        };
        if let Some(group) = self.groups.get_mut(&key) {
            group.connections -= 1;
        }
        self.update(key);
    }

    /// The first turn for which a connection is free, and its list.
    fn first_turn(&self) -> Option<(u64, usize)> {
        let [waiting, prompt] = self.free;
        let first = |list: usize, free: usize| {
            let (turn, _) = self.turns[list].first_key_value()?;
            (free > 0).then_some((*turn, list))
        };
        let turns = [first(ANY, waiting + prompt), first(ONLY_WAITING, waiting)];
        turns.into_iter().flatten().min()
    }

    /// Gives a SKU a turn if it waits for one and may have it; it keeps the place that it has. Forgets a
    /// SKU without requests.
    fn update(&mut self, key: Key) {
        let Some(group) = self.groups.get_mut(&key) else {
            return;
        };
        let turn = group.turn.take().map(|(list, turn)| {
            self.turns[list].remove(&turn);
            turn
        });
        let Some(kinds) = group.kinds() else {
            if group.connections == 0 {
                self.groups.remove(&key);
            }
            return;
        };
        if group.connections < self.share {
            let list = if kinds.contains(&Kind::Prompt) {
                ANY
            } else {
                ONLY_WAITING
            };
            let turn = turn.unwrap_or_else(|| {
                self.last_turn += 1;
                self.last_turn
            });
            self.turns[list].insert(turn, key);
            group.turn = Some((list, turn));
        }
    }
}

impl Permit {
    /// Whether a statement on the connection does not wait for a row.
    pub(super) fn is_prompt(&self) -> bool {
        self.kind == Kind::Prompt
    }

    /// Takes the connection out of use for a while, because the server allows no more.
    pub(super) fn set_aside(mut self) {
        self.leave_sku();
        tokio::spawn(async move {
            sleep(SET_ASIDE).await;
            drop(self);
        });
    }

    /// It no longer counts for its SKU.
    fn leave_sku(&mut self) {
        self.queue.state.lock().leave(self.key.take());
        self.queue.serve();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        {
            let mut state = self.queue.state.lock();
            state.free[self.kind as usize] += 1;
            state.leave(self.key.take());
        }
        self.queue.serve();
    }
}

#[cfg(test)]
mod tests;

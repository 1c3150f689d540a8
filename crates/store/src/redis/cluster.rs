//! Which node of a Redis Cluster has which slot. A single server is a node that has all slots.
//!
//! The driver's `ClusterConnection` is not used: it repeats commands by itself after a lost connection, and
//! hides which node has answered. Each connection here leads to one node, which the binding has checked, and
//! `WATCH` and `WAIT` need a connection for themselves.

use std::fmt;

use crc16::{State, XMODEM};
use redis::{ErrorKind, RedisError, RedisResult, Value, from_redis_value};

use super::binding::field;

/// The number of slots of a cluster.
const SLOTS: u16 = 16_384;

/// A slot of a cluster: what it moves from node to node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot(u16);

impl Slot {
    /// The slot of the keys with this text in braces.
    pub(super) fn for_tag(tag: &str) -> Self {
        Self(State::<XMODEM>::calculate(tag.as_bytes()) % SLOTS)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// The server of the URL, or the master that the sentinels name.
    Single,
    /// A node of a cluster.
    Of { host: String, port: u16 },
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => f.write_str("the server"),
            Self::Of { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// The masters, and the slots of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// Increases with each failover, and with most slots that move.
    epoch: u64,
    nodes: Vec<Node>,
    /// The first and the last slot of a range, and the index of its node.
    ranges: Vec<(u16, u16, usize)>,
}

impl Layout {
    /// One server that has all slots.
    pub(super) fn single() -> Self {
        Self {
            epoch: 0,
            nodes: vec![Node::Single],
            ranges: vec![(0, SLOTS - 1, 0)],
        }
    }

    /// Parses the answers to `CLUSTER INFO` and `CLUSTER SLOTS` of a node with this host.
    pub(super) fn parse(info: &str, slots: Value, asked: &str) -> RedisResult<Self> {
        let invalid = || RedisError::from((ErrorKind::Parse, "CLUSTER SLOTS has another format"));
        let epoch = field(info, "cluster_current_epoch").and_then(|text| text.parse().ok());
        let entries: Vec<Vec<Value>> = from_redis_value(slots)?;
        let mut layout = Self {
            epoch: epoch.ok_or_else(invalid)?,
            nodes: Vec::new(),
            ranges: Vec::new(),
        };
        for entry in entries {
            let entry: [Value; 3] = entry
                .into_iter()
                .take(3)
                .collect::<Vec<_>>()
                .try_into()
                .map_err(|_| invalid())?;
            let [first, last, master] = entry;
            let master: Vec<Value> = from_redis_value(master)?;
            let [host, port, ..] = &master[..] else {
                return Err(invalid());
            };
            // A node that does not know its own address answers nil, an empty text or `?`.
            let host: Option<String> = from_redis_value(host.clone())?;
            let host = host.filter(|host| !matches!(&**host, "" | "?"));
            let node = Node::Of {
                host: host.unwrap_or_else(|| asked.to_owned()),
                port: from_redis_value(port.clone())?,
            };
            let index = layout.nodes.iter().position(|known| *known == node);
            let index = index.unwrap_or_else(|| {
                layout.nodes.push(node);
                layout.nodes.len() - 1
            });
            let range = (from_redis_value(first)?, from_redis_value(last)?, index);
            layout.ranges.push(range);
        }
        Ok(layout)
    }

    /// The later one has the higher epoch.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// All masters.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node that has the slot.
    pub(super) fn node_of(&self, slot: Slot) -> RedisResult<&Node> {
        let mut ranges = self.ranges.iter();
        let found = ranges.find(|(first, last, _)| (*first..=*last).contains(&slot.0));
        let found = found.ok_or_else(|| {
            let why = "no node of the cluster has the slot: assign it to one";
            RedisError::from((ErrorKind::Client, why, slot.0.to_string()))
        });
        found.map(|(_, _, node)| &self.nodes[*node])
    }

    /// A slot that the node has.
    pub(super) fn slot_of(&self, node: &Node) -> Option<Slot> {
        let index = self.nodes.iter().position(|known| known == node)?;
        let mut ranges = self.ranges.iter();
        let range = ranges.find(|(_, _, node)| *node == index);
        range.map(|(first, _, _)| Slot(*first))
    }

    /// The nodes that have at least one of these slots, each once.
    pub(super) fn nodes_of(&self, slots: impl IntoIterator<Item = Slot>) -> RedisResult<Vec<Node>> {
        let mut found: Vec<Node> = Vec::new();
        for slot in slots {
            let node = self.node_of(slot)?;
            if !found.contains(node) {
                found.push(node.clone());
            }
        }
        Ok(found)
    }
}

/// The slots that a node is giving away or getting, from its answer to `CLUSTER NODES`.
pub(super) fn moving_slots(nodes: &str) -> Vec<Slot> {
    // Only its own line has them, like: … connected 0-5460 [93->-id] [77-<-id]
    let own = nodes.lines().find(|line| line.contains("myself"));
    let words = own.into_iter().flat_map(str::split_whitespace);
    let moving = words.filter_map(|word| word.strip_prefix('[')?.split_once('-'));
    moving
        .filter_map(|(slot, _)| slot.parse().ok().map(Slot))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "cluster_state:ok\r\ncluster_current_epoch:12\r\n";

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn range(first: i64, last: i64, host: &str, port: i64) -> Value {
        let master = Value::Array(vec![text(host), Value::Int(port), text("id")]);
        let replica = Value::Array(vec![text("other"), Value::Int(1), text("id")]);
        Value::Array(vec![Value::Int(first), Value::Int(last), master, replica])
    }

    /// The specification of Redis Cluster gives these numbers.
    #[test]
    fn slot_is_that_of_the_server() {
        assert_eq!(Slot::for_tag("123456789"), Slot(0x31c3));
        assert_eq!(Slot::for_tag(""), Slot(0));
    }

    #[test]
    fn each_slot_has_its_node() {
        let answer = Value::Array(vec![
            range(0, 5, "a", 1),
            range(6, 6, "", 2),
            range(8, 9, "a", 1),
        ]);
        let layout = Layout::parse(INFO, answer, "asked").expect("it is valid");
        let node = |host: &str, port| Node::Of {
            host: host.to_owned(),
            port,
        };
        for (slot, expected) in [
            (0, Some(node("a", 1))),
            (5, Some(node("a", 1))),
            (6, Some(node("asked", 2))),
            (7, None),
            (9, Some(node("a", 1))),
        ] {
            assert_eq!(layout.node_of(Slot(slot)).ok(), expected.as_ref());
        }
        let nodes = layout.nodes_of([9, 6, 0].map(Slot)).expect("all have one");
        assert_eq!(nodes, [node("a", 1), node("asked", 2)]);
        assert!(layout.nodes_of([9, 7].map(Slot)).is_err());
        assert_eq!(layout.epoch(), 12);
        let invalid = Value::Array(vec![Value::Int(1)]);
        assert!(Layout::parse(INFO, invalid, "a").is_err());
        assert!(Layout::parse("", Value::Array(vec![]), "a").is_err());
    }

    #[test]
    fn slots_that_move_are_found() {
        let nodes = "07c3 127.0.0.1:2@1 master - 0 1 2 connected 5-9 [4->-ab]\n\
                     67ed 127.0.0.1:1@1 myself,master - 0 1 3 connected 0-3 [93->-29] [77-<-e7]\n";
        assert_eq!(moving_slots(nodes), [Slot(93), Slot(77)]);
        assert_eq!(
            moving_slots("x 127.0.0.1:1@1 myself,master - 0 1 3 connected 0-3"),
            []
        );
    }
}

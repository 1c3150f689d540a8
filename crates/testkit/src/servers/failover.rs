//! What tests do with a cluster of databases whose clients reach its primary through a proxy.

use anyhow::Result;

use super::supervisor::Supervisor;

/// How many nodes a cluster has.
pub const NODES: usize = 3;

/// A cluster of [`NODES`] nodes. One of them gets all writes: the primary.
pub trait Cluster: Sync {
    /// Whether writes are refused until a lost primary is replaced. Otherwise they wait.
    const REFUSES_WRITES: bool;

    /// The URL of an empty database at the proxy, which leads to the primary.
    fn url(&self) -> String;

    /// The URL of the same database at a node.
    fn url_of(&self, node: usize) -> String;

    /// What runs a node, and can kill or freeze it.
    fn supervisor(&self, node: usize) -> &Supervisor;

    /// Whether a node is the primary now.
    fn is_primary(&self, node: usize) -> impl Future<Output = bool>;

    /// Whether it is, and a write of a client is committed there.
    fn commits(&self, node: usize) -> impl Future<Output = bool>;

    /// The node that is the primary now, if the cluster has one.
    fn primary(&self) -> impl Future<Output = Option<usize>> {
        async {
            for node in 0..NODES {
                if self.is_primary(node).await {
                    return Some(node);
                }
            }
            None
        }
    }

    /// Returns when all nodes are part of the cluster and have the same data, and another one can take over.
    fn is_whole(&self) -> impl Future<Output = Result<()>>;

    /// Makes another node the primary, as an administrator does it, and returns when it is.
    fn switch_over(&self) -> impl Future<Output = Result<()>>;

    /// Blocks all traffic between the primary and the others, until [`Self::connect_again`]. Clients still reach it.
    fn cut_off(&self, node: usize) -> impl Future<Output = Result<()>>;

    /// Undoes [`Self::cut_off`].
    fn connect_again(&self, node: usize) -> impl Future<Output = Result<()>>;
}

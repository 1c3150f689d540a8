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

    /// What runs a node.
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

    /// Kills a node and all that it has started (`SIGKILL`). Returns once they are dead.
    ///
    /// # Panics
    /// If that is impossible.
    fn kill9(&self, node: usize) {
        let killed = self.supervisor(node).kill9();
        killed.expect("the supervisor is running");
    }

    /// Starts a node again after [`Self::kill9`].
    ///
    /// # Panics
    /// If that is impossible.
    fn restart(&self, node: usize) {
        let started = self.supervisor(node).start();
        started.expect("the supervisor is running");
    }

    /// Stops all processes of a node (`SIGSTOP`), and returns once none is running.
    ///
    /// # Panics
    /// If it is dead.
    fn freeze(&self, node: usize) -> impl Future<Output = ()> {
        async move {
            let frozen = self.supervisor(node).freeze().await;
            frozen.expect("the node is running");
        }
    }

    /// Continues a node after [`Self::freeze`].
    ///
    /// # Panics
    /// If it is dead.
    fn thaw(&self, node: usize) {
        let thawed = self.supervisor(node).thaw();
        thawed.expect("the supervisor is running");
    }
}

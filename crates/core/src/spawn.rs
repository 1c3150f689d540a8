//! Starts tasks that run on after their caller has left.

use std::fmt::Debug;
use std::pin::Pin;

/// A task that runs on after its caller has left.
pub type Detached = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Starts tasks.
pub trait Spawn: Debug + Send + Sync {
    /// Starts `task`.
    fn spawn(&self, task: Detached);
}

/// Starts tasks of tokio.
#[derive(Debug)]
pub struct TokioSpawn;

impl Spawn for TokioSpawn {
    fn spawn(&self, task: Detached) {
        tokio::spawn(task);
    }
}

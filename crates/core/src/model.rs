//! A model of the database and of a lock, and the explorer that runs every schedule over them.
//!
//! Only for tests. The explorer runs the code of the strategies itself; the model decides what each
//! statement sees.

mod batch;
mod explore;
mod lock;
mod mutex;
mod ports;
mod store;
mod transaction;

pub use explore::{Decisions, Explorer, Failure, Task, World, mortal, yield_once};
pub use lock::ModelLock;
pub use store::{Faults, MemoryStore, WriteCondition};

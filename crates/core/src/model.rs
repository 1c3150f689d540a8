//! A model of the database, of a lock and of the counters in Redis, and the explorer that runs every
//! schedule over them, or random ones.
//!
//! Only for tests. The explorer runs the code of the strategies itself; the model decides what each
//! statement sees.

mod batch;
mod counter;
mod explore;
mod lock;
mod mutex;
mod ports;
mod random;
mod store;
mod transaction;
mod write;

pub use counter::ModelCounter;
pub use explore::{Decisions, Explorer, Failure, Task, World, mortal, yield_once};
pub use lock::ModelLock;
pub use store::{Faults, MemoryStore, WriteCondition};

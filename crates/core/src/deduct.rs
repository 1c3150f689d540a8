//! One deduction, from the request to the answer, and what every write uses.
//!
//! [`Deductor`] runs each deduction in its own task. [`DeductionRun`](crate::strategy::DeductionRun)
//! makes attempts under one strategy until the outcome is known. [`SoldOut`] knows which levels need no
//! attempt, and [`Counters`] asks the counters in Redis.
//!
//! Every change of a level takes a slot of [`WritePool`], which bounds those that run at once. The retry
//! loop (`run_to_outcome`) makes the attempts of each request that changes levels. [`Scheduler`] lets
//! operations that wait at the same time share transactions.

mod counters;
mod deduction_lock;
mod deductor;
mod outcome;
mod retry;
mod run;
mod scheduler;
mod sold_out;
mod write_pool;

pub(crate) use counters::Asked;
pub use counters::Counters;
pub use deduction_lock::{DeductionLock, lock_name};
pub use deductor::Deductor;
pub(crate) use outcome::{Outcome, late_attempt, run_to_outcome};
pub use retry::{Retry, RetryPolicy, Sleep, TokioSleep};
pub use scheduler::Scheduler;
pub(crate) use sold_out::MAX_AGE;
pub use sold_out::SoldOut;
pub use write_pool::{WritePool, WriteSlot};

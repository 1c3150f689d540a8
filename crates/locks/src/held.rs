//! How a lock is acquired, renewed while it is held, and released.

pub(crate) mod acquire;
pub(crate) mod engine;
pub(crate) mod hold;
pub(crate) mod jobs;
pub(crate) mod options;
pub(crate) mod queue;
pub(crate) mod release;
pub(crate) mod watchdog;

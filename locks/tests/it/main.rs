//! What a lock promises, on every back end, and on real servers when they fail.

mod contract;
mod rig;
mod support;

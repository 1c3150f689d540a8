//! What a lock promises, on every back end, and on real servers when they fail.

mod contract;
mod leftovers;
mod messages;
mod model;
mod processes;
mod redis;
mod rig;
mod runtimes;
mod support;
mod zookeeper;

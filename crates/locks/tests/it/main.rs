//! Tests of the guarantees of locks on every back end, including faults of real servers.

mod clock;
mod contract;
mod coordination;
mod fencing;
mod holder;
mod leftovers;
mod losses;
mod messages;
mod model;
mod redis;
mod redlock;
mod rig;
mod runtimes;
mod spans;
mod sql;
mod tour;
mod tower;
mod zookeeper;

//! The laboratory: replicas to experiment with, services that seem a network away, and the race
//! that shows who oversells.

pub mod delay;
mod loopback;
pub mod race;
pub mod replicas;

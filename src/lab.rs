//! The laboratory: replicas to experiment with, and the race that shows who oversells.

pub mod race;
pub mod replicas;

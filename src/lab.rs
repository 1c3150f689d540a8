//! The lab: what shows the strategies at work, and at fault, against a running service.

pub mod race;

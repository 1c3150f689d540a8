//! The core under every schedule: one binary.

mod explorer;
mod interleavings;

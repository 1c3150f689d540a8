//! The integration tests: one binary, so that it is linked once and its servers start once.

mod interleavings;
mod oversell;
mod support;
mod support_self_test;

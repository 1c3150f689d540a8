//! The integration tests: one binary, so that it is linked once and its servers start once.

mod explorer_self_test;
mod interleavings;
mod oversell;
mod support;
mod support_self_test;

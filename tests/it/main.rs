//! The integration tests: one binary, so that it is linked once and its servers start once.

mod bad_input;
mod commands;
mod config;
mod connections;
mod drain;
mod idempotency;
mod oversell;
mod support;
mod support_self_test;
mod tidy;

//! The integration tests: one binary, so that it is linked once and its servers start once.

mod bad_input;
mod commands;
mod config;
mod connections;
mod drain;
mod headers;
mod idempotency;
mod levels;
mod limits;
mod openapi;
mod oversell;
mod pages;
mod strategies;
mod support;
mod support_self_test;
mod tidy;

//! The integration tests: one binary, so that it is linked once and its servers start once.

mod abandoned_transaction;
mod bad_input;
mod commands;
mod config;
mod connections;
mod deploy;
mod drain;
mod explorer_self_test;
mod faults;
mod headers;
mod idempotency;
mod interleavings;
mod levels;
mod limits;
mod lock_race;
mod lock_settings;
mod openapi;
mod oversell;
mod pages;
mod redis_home;
mod replicas;
mod store_contract;
mod strategies;
mod support;
mod support_self_test;
mod tidy;

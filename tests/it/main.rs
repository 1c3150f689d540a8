//! The integration tests: one binary, so that it is linked once and its servers start once.

mod abandoned_transaction;
mod bad_input;
mod commands;
mod config;
mod connections;
mod deploy;
mod distant_race;
mod drain;
mod faults;
mod headers;
mod idempotency;
mod levels;
mod limits;
mod lock_race;
mod lock_settings;
mod old_release;
mod openapi;
mod oversell;
mod pages;
mod redis_home;
mod redis_race;
mod replicas;
mod store_contract;
mod strategies;
mod support;
mod tidy;

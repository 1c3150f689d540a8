//! The integration tests: one binary, so that it is linked once and its servers start once.
//!
//! Tests in a module `full` run in `make verify` only.

/// A module `full` with more cases of tests of the module that uses it.
macro_rules! full {
    ($($test:ident($($argument:ident: $type:ty [$($values:tt)*]),*);)*) => {
        mod full {
            use super::*;

            $(
                #[rstest]
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test($(#[values($($values)*)] $argument: $type),*) {
                    super::$test($($argument),*).await;
                }
            )*
        }
    };
}

mod abandoned_transaction;
mod admin;
mod audits;
mod bad_input;
mod browsers;
mod bulk;
mod commands;
mod config;
mod connection_limit;
mod connections;
mod counters;
mod deduct_batch;
mod deploy;
mod distant_race;
mod drain;
mod events;
mod examples;
mod failures;
mod fairness;
mod faults;
mod full {
    mod abandoned_reads;
    mod load;
}
mod galera;
mod headers;
mod helm;
mod holds;
mod idempotency;
mod keys;
mod lab;
mod ledger_size;
mod level_cache;
mod levels;
mod limits;
mod lock_crate;
mod lock_race;
mod lock_settings;
mod logging;
mod monitoring;
mod old_release;
mod openapi;
mod operations;
mod orders;
mod oversell;
mod page;
mod pages;
mod replicas;
mod reversals;
mod schemathesis;
mod sold_out;
mod store_contract;
mod strategies;
mod support;
mod tidy;
mod tidy_loops;
mod tls;
mod traces;
mod upgrade_under_load;
mod webhooks;

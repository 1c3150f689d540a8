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

/// Sends a request, and checks the answer, which it returns:
/// `call!(app, 1 POST "/operations/{id}/confirm", key "k", {"late": false} => 409 "hold-ended", {"by": sale})`.
/// Replica, headers, body, code and fields may be left out. A body in parentheses is an expression. After the
/// code, `replayed` or `retry_after` must be true. Fields are those of the body, or JSON pointers into it.
macro_rules! call {
    (
        $app:expr, $($replica:literal)? $method:ident $path:literal $(, $header:ident $text:expr)*
        $(, {$($body:tt)*})? $(, ($value:expr))?
        => $status:literal $($code:literal)? $($flag:ident)? $(, {$($field:tt)*})?
    ) => {{
        let path = std::fmt::format(format_args!($path));
        let request = $app.request(0 $(+ $replica)?, reqwest::Method::$method, &path);
        $(let request = request.header(crate::support::app::header(stringify!($header)), $text);)*
        $(let request = request.json(&serde_json::json!({$($body)*}));)?
        $(let request = request.json(&$value);)?
        let answer = $app.send(request).await;
        answer.assert_is($status, concat!($($code)?));
        $(assert!(answer.$flag, "{answer:?}");)?
        $(answer.assert_has(&serde_json::json!({$($field)*}));)?
        answer
    }};
}

mod abandoned_transaction;
mod admin;
mod audits;
mod bad_input;
mod browsers;
mod bulk;
mod clusters;
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
mod shards;
mod sold_out;
mod store_contract;
mod strategies;
mod support;
mod tls;
mod traces;
mod upgrade_under_load;
mod webhooks;

//! The integration tests: one binary, so that it is linked once and its servers start once.

mod abandoned_transaction;
mod oversell;
mod store_contract;
mod support;
mod support_self_test;

//! What the tests share beside testkit.

pub(crate) mod holder;

//! Tests of the test kit: servers and databases leave nothing behind. What the proxy holds and cuts is tested by the
//! tests that need it: each has a case in which the message that was held takes effect.

mod databases;
mod up;

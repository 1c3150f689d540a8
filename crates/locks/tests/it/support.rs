//! Servers and a proxy for the tests. The proxy and the supervisor are the service's own.

pub(crate) mod alone;
pub(crate) mod holder;
#[path = "../../../../tests/it/support/ports.rs"]
pub(crate) mod ports;
#[expect(dead_code, reason = "the service's tests use more of it")]
#[path = "../../../../tests/it/support/proxy.rs"]
pub(crate) mod proxy;
pub(crate) mod server;
#[expect(dead_code, reason = "the service's tests use more of it")]
#[path = "../../../../tests/it/support/services/supervisor.rs"]
mod supervisor;

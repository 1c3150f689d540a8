//! Ports of this machine's own, for what the laboratory starts.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;

/// How often to look for a free port.
const PORT_ATTEMPTS: usize = 100;

/// Listens on a free port below the ephemeral range, where it might be taken by a client's own end.
///
/// # Errors
/// One line, when none is found.
pub(super) async fn listen() -> Result<(TcpListener, SocketAddr), String> {
    let mut last_error = String::new();
    for _ in 0..PORT_ATTEMPTS {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, fastrand::u16(20_000..32_000)));
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok((listener, address)),
            Err(error) => last_error = error.to_string(),
        }
    }
    Err(format!("no free port on loopback: {last_error}"))
}

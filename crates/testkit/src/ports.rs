//! Free ports for what the tests start.
//!
//! All lie below 32768: above it the kernel picks the ports of clients, and a server that comes
//! back on its old port could find a client's connection sitting on it.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// Every port given out so far; a stopped server's port stays its own, so that it can come back.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port of loopback that nobody listens on and that this process has not given out before.
pub fn free_port() -> u16 {
    (0..1_000)
        .map(|_| fastrand::u16(20_000..30_000))
        .find(|&port| {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
                && GIVEN
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(port)
        })
        .expect("of a thousand ports between 20000 and 30000 none was free")
}

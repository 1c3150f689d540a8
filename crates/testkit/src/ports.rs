//! Free ports for servers.
//!
//! All are below 32768. The kernel uses the ports above for clients, and a client could occupy the
//! port of a server that restarts.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::run::rng;

/// Whether a server can listen on this port of loopback now.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A free port of loopback that this process has not returned before: a stopped server keeps its
/// port.
pub fn free_port() -> u16 {
    static RETURNED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut returned = RETURNED.lock().unwrap_or_else(PoisonError::into_inner);
    random_port(20_000..30_000, |port| {
        is_free(port) && returned.insert(port)
    })
}

/// A random port for which `accept` returns true.
///
/// # Panics
/// If a thousand attempts find none.
pub fn random_port(range: Range<u16>, mut accept: impl FnMut(u16) -> bool) -> u16 {
    let mut rng = rng();
    let ports = std::iter::repeat_with(|| rng.u16(range.clone()));
    let found = ports.take(1_000).find(|&port| accept(port));
    drop(rng);
    found.expect("1,000 random ports were in use")
}

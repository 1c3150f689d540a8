//! Free ports for servers.
//!
//! All are below 32768. The kernel uses the ports above for clients, and a client could occupy the
//! port of a server that restarts.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

/// How many ports a process claims at once, because each claim is an open file.
const BLOCK: u16 = 20;

/// Whether a server can listen on this port of loopback now.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A free port of loopback. See [`free_ports`].
pub fn free_port() -> u16 {
    free_ports(1)
}

/// The first of at most 20 free ports in a row. While this process runs, they are not returned again
/// in any process: a stopped server keeps its port.
///
/// # Panics
/// If a thousand random blocks of ports are claimed.
pub fn free_ports(count: u16) -> u16 {
    static CLAIMED: Mutex<(Range<u16>, Vec<UnixListener>)> = Mutex::new((0..0, Vec::new()));
    assert!(count <= BLOCK, "at most {BLOCK} ports in a row");
    let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
    let (ports, claims) = &mut *claimed;
    loop {
        while ports.len() >= usize::from(count) {
            let first = ports.start;
            if (first..first + count).all(is_free) {
                ports.start = first + count;
                return first;
            }
            ports.start += 1;
        }
        let (block, claim) = (0..1_000)
            .find_map(|_| claim_block())
            .expect("1,000 random blocks of ports are claimed");
        *ports = block;
        claims.push(claim);
    }
}

/// Claims a random block that no process has, by a socket with its name. The kernel frees the name when
/// the process ends, even if it is killed.
fn claim_block() -> Option<(Range<u16>, UnixListener)> {
    let first = fastrand::u16(500..1_500) * BLOCK;
    let name = SocketAddr::from_abstract_name(format!("stocklock-ports-{first}")).ok()?;
    Some((first..first + BLOCK, UnixListener::bind_addr(&name).ok()?))
}

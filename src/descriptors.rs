//! File descriptors: each connection uses one, and the usual soft limit is too low.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for everything but connections: files, listeners, the runtime.
const RESERVE: u64 = 64;

/// Raises the soft limit on open files to the hard limit. Warns if that is too low for
/// `connections`, from clients and to servers together.
pub(crate) fn allow_connections(connections: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(_) => current,
    };
    // `None` means "no limit".
    if let Some(limit) = limit
        && limit < connections + RESERVE
    {
        tracing::warn!(
            limit,
            connections,
            "the limit on open files (ulimit -n) is too low for this number of connections: raise \
             it, or lower MAX_CONNECTIONS"
        );
    }
}

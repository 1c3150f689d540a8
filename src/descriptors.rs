//! File descriptors: each connection takes one, and the usual limit is lower than ours.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a process needs beside its connections: files, sockets, the runtime's own.
const BESIDES: u64 = 64;

/// Raises the soft limit on open files to the hard one, and warns where that is too low for
/// `connections`, client's and database's together.
pub fn allow_connections(connections: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(_) => current,
    };
    // None is "no limit".
    if let Some(limit) = limit
        && limit < connections + BESIDES
    {
        tracing::warn!(
            limit,
            connections,
            "the limit on open files (ulimit -n) is too low for the connections allowed: raise \
             it, or lower MAX_CONNECTIONS"
        );
    }
}

//! Validates connection strings when a back end is built, before the first lock is needed.

/// Checks `host[:port][,host[:port]…][/chroot]`.
///
/// # Errors
/// Returns a message that names the invalid part.
pub(super) fn check(cluster: &str) -> Result<(), String> {
    let (servers, chroot) = match cluster.split_once('/') {
        Some((servers, chroot)) => (servers, Some(chroot)),
        None => (cluster, None),
    };
    if let Some(server) = servers.split(',').find(|server| !is_server(server)) {
        return Err(format!("expected host:port, found `{server}`"));
    }
    match chroot {
        // A single slash means no chroot.
        Some(chroot) if !chroot.is_empty() && !is_path(chroot) => {
            Err(format!("`/{chroot}` is not a valid path"))
        }
        _ => Ok(()),
    }
}

/// Returns true if this is an absolute path without its first slash.
pub(super) fn is_path(elements: &str) -> bool {
    let mut elements = elements.split('/');
    !elements.any(|element| matches!(element, "" | "." | ".."))
}

/// Returns true for `host` and `host:port`. IPv6 addresses must be in brackets.
fn is_server(server: &str) -> bool {
    let (host, port) = match server.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, port)) => (
                host,
                port.strip_prefix(':').or(port.is_empty().then_some("")),
            ),
            None => return false,
        },
        None => match server.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (server, Some("")),
        },
    };
    let is_port = |port: &str| port.is_empty() || port.parse::<u16>().is_ok_and(|port| port > 0);
    !host.trim().is_empty() && port.is_some_and(is_port)
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn valid_connection_strings_are_accepted() {
        for cluster in [
            "zk",
            "zk:2181",
            "127.0.0.1:2181,127.0.0.1:2182,zk3",
            "zk1:2181,zk2:2181/shop",
            "[::1]:2181,[::1]/shop/locks",
            "zk:2181/",
        ] {
            assert_eq!(check(cluster), Ok(()), "{cluster}");
        }
    }

    #[test]
    fn invalid_connection_strings_are_refused_with_reason() {
        for (cluster, reason) in [
            ("", "expected host:port, found ``"),
            ("zk:2181,", "expected host:port, found ``"),
            (":2181", "expected host:port, found `:2181`"),
            ("zk:0", "expected host:port, found `zk:0`"),
            (
                "zk1:nonsense,zk2",
                "expected host:port, found `zk1:nonsense`",
            ),
            ("http://zk:2181", "`//zk:2181` is not a valid path"),
            ("zk1, ,zk2", "expected host:port, found ` `"),
            ("[::1", "expected host:port, found `[::1`"),
            ("zk/shop/", "`/shop/` is not a valid path"),
            ("zk/shop/../other", "`/shop/../other` is not a valid path"),
        ] {
            assert_eq!(check(cluster), Err(reason.to_owned()), "{cluster}");
        }
    }
}

//! Connection strings: a wrong one is found when it is read, not when somebody wants a lock.

/// Checks `host[:port][,host[:port]…][/chroot]`.
///
/// # Errors
/// What is wrong with it.
pub(super) fn check(cluster: &str) -> Result<(), String> {
    let (servers, chroot) = match cluster.split_once('/') {
        Some((servers, chroot)) => (servers, Some(chroot)),
        None => (cluster, None),
    };
    if let Some(server) = servers.split(',').find(|server| !is_server(server)) {
        return Err(format!("`{server}` is not host:port"));
    }
    match chroot {
        // A lone slash is no chroot.
        Some(chroot) if !chroot.is_empty() && !is_path(chroot) => {
            Err(format!("`/{chroot}` is no path"))
        }
        _ => Ok(()),
    }
}

/// Whether these are the elements of an absolute path, without its first slash.
pub(super) fn is_path(elements: &str) -> bool {
    let mut elements = elements.split('/');
    !elements.any(|element| matches!(element, "" | "." | ".."))
}

/// Addresses of version 6 are in brackets.
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
    fn what_can_be_connected_to_passes() {
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
    fn what_cannot_is_refused_with_its_reason() {
        for (cluster, reason) in [
            ("", "`` is not host:port"),
            ("zk:2181,", "`` is not host:port"),
            (":2181", "`:2181` is not host:port"),
            ("zk:0", "`zk:0` is not host:port"),
            ("zk1:nonsense,zk2", "`zk1:nonsense` is not host:port"),
            ("http://zk:2181", "`//zk:2181` is no path"),
            ("zk1, ,zk2", "` ` is not host:port"),
            ("[::1", "`[::1` is not host:port"),
            ("zk/shop/", "`/shop/` is no path"),
            ("zk/shop/../other", "`/shop/../other` is no path"),
        ] {
            assert_eq!(check(cluster), Err(reason.to_owned()), "{cluster}");
        }
    }
}

//! Checks whether Redis would evict locks when its memory is full.

use super::servers::Servers;
use crate::shared::error::BackendError;

/// The only safe policy. Locks have a time to live, so every other policy may evict them.
const SAFE: &str = "noeviction";

/// Returns the warnings about all servers. Fails if one does not answer and there is no warning about another.
pub(super) async fn check(servers: &Servers) -> Result<Option<String>, BackendError> {
    let mut info = redis::cmd("INFO");
    info.arg("memory");
    let cluster = match servers {
        Servers::One(_) => return Ok(warning(&servers.run::<String>("", &info).await?)),
        Servers::Cluster(cluster) => cluster,
    };
    let (mut warnings, mut unknown) = (Vec::new(), Vec::new());
    for (master, answer) in cluster.each::<String>(&info).await? {
        match answer {
            Ok(info) => warnings.extend(warning(&info).map(|text| format!("{master}: {text}"))),
            Err(error) => unknown.push((master, error)),
        }
    }
    if warnings.is_empty()
        && let Some((_, error)) = unknown.pop()
    {
        return Err(error);
    }
    for (master, error) in unknown {
        warnings.push(format!(
            "{master}: its maxmemory-policy is unknown: {error}"
        ));
    }
    Ok((!warnings.is_empty()).then(|| warnings.join("; ")))
}

/// Returns a warning about the server's `maxmemory-policy`, if it is unsafe. It reads `INFO memory`, because
/// servers that forbid `CONFIG` often allow `INFO`.
pub(super) fn warning(info: &str) -> Option<String> {
    let field = |name: &str| {
        let mut lines = info.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let policy = field("maxmemory_policy").unwrap_or("unknown");
    if policy == SAFE {
        return None;
    }
    let when = match field("maxmemory") {
        None | Some("0") => "once `maxmemory` is set",
        Some(_) => "when its memory is full",
    };
    Some(format!(
        "this Redis may evict locks {when}: its maxmemory-policy is {policy}, set it to {SAFE}"
    ))
}

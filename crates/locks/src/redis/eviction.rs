//! Checks whether Redis would evict locks when its memory is full.

/// The only safe policy. Locks have a time to live, so every other policy may evict them.
const SAFE: &str = "noeviction";

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

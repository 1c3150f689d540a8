//! Checks whether Redis would evict locks when its memory is full.

use super::connection::Connection;
use crate::error::BackendError;

/// The only safe policy. Locks have a time to live, so every other policy may evict them.
const SAFE: &str = "noeviction";

/// Returns a warning about the server's `maxmemory-policy`, if it is unsafe. `INFO` is used because
/// servers that forbid `CONFIG` often allow it.
pub(super) async fn warning(connection: &Connection) -> Result<Option<String>, BackendError> {
    let mut info = redis::cmd("INFO");
    info.arg("memory");
    let info: String = connection.run(&info).await?;
    let field = |name: &str| {
        let mut lines = info.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let policy = field("maxmemory_policy").unwrap_or("unknown");
    if policy == SAFE {
        return Ok(None);
    }
    let when = match field("maxmemory") {
        None | Some("0") => "once `maxmemory` is set",
        Some(_) => "when its memory is full",
    };
    Ok(Some(format!(
        "this Redis may evict locks {when}: its maxmemory-policy is {policy}, set it to {SAFE}"
    )))
}

//! The settings of PostgreSQL: those under which the service would fail, and those under which an
//! acknowledged sale can be lost.

use sqlx::{PgConnection, Row, raw_sql};

/// Marks the server's session. The mark is unique.
const MARK: &str = "SELECT set_config('stocklock.session',
    concat(pg_backend_pid(), ' ', clock_timestamp()), false)";

const FIND_MARK: &str = "SELECT coalesce(current_setting('stocklock.session', true), '')";

/// A pooler may give a connection another session at each look.
const LOOKS: u32 = 3;

/// One sentence for each setting under which the service would fail. `second`: another connection.
pub(super) async fn refusals(
    connection: &mut PgConnection,
    second: PgConnection,
) -> sqlx::Result<Vec<String>> {
    let mut found = Vec::new();
    if shares_sessions(connection, second).await? {
        found.push(
            "the pooler before PostgreSQL gives one server session to several clients, so settings \
             and prepared statements are lost; set pool_mode = session"
                .to_owned(),
        );
    }
    let encoding = text(connection, "SELECT current_setting('server_encoding')").await?;
    if encoding != "UTF8" {
        found.push(format!(
            "the database's encoding is {encoding}, which cannot store every name; create the \
             database with ENCODING 'UTF8'"
        ));
    }
    Ok(found)
}

/// Whether the second connection, open at the same time, finds itself in the same session of the
/// server. PgBouncer uses the session that was used last, so this shows unless others are busy.
async fn shares_sessions(
    connection: &mut PgConnection,
    mut second: PgConnection,
) -> sqlx::Result<bool> {
    for _ in 0..LOOKS {
        let mark = text(connection, MARK).await?;
        if text(&mut second, FIND_MARK).await? == mark {
            return Ok(true);
        }
    }
    sqlx::Connection::close(second).await?;
    Ok(false)
}

/// One value, without a prepared statement, which a pooler might give to another session.
async fn text(connection: &mut PgConnection, query: &'static str) -> sqlx::Result<String> {
    raw_sql(query).fetch_one(connection).await?.try_get(0)
}

/// Those of `SETTINGS`. The third is empty if no standby is connected.
pub(super) type Settings = (String, String, String, String, String);

/// One sentence for each setting under which an acknowledged sale can be lost.
pub(super) fn complaints(
    (commit, standbys, connected, fsync, full_pages): &Settings,
) -> Vec<String> {
    let mut found = Vec::new();
    if commit == "off" {
        found.push(
            "synchronous_commit is off: a crash loses sales that were acknowledged; set \
             synchronous_commit = on"
                .to_owned(),
        );
    } else if !standbys.is_empty() && matches!(commit.as_str(), "local" | "remote_write") {
        found.push(format!(
            "synchronous_commit is {commit}: a sale is acknowledged before the standby has it on \
             disk, so a failover may lose it; set synchronous_commit = on"
        ));
    } else if standbys.is_empty() && !connected.is_empty() {
        found.push(
            "no standby is synchronous: a failover to one loses sales that were acknowledged; set \
             synchronous_standby_names, with Patroni synchronous_mode = true"
                .to_owned(),
        );
    }
    if fsync == "off" {
        found.push("fsync is off: a power cut may destroy the database; set fsync = on".to_owned());
    }
    if full_pages == "off" {
        found.push(
            "full_page_writes is off: a power cut may leave half-written pages; set \
             full_page_writes = on"
                .to_owned(),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_setting_is_reported_with_its_remedy() {
        for (settings, remedies) in [
            (["on", "", "", "on", "on"], &[][..]),
            (["local", "", "", "on", "on"], &[]),
            (["remote_apply", "standby", "c", "on", "on"], &[]),
            (["off", "", "", "on", "on"], &["synchronous_commit = on"]),
            (
                ["local", "s", "c", "on", "on"],
                &["synchronous_commit = on"],
            ),
            (
                ["on", "", "c", "on", "on"],
                &["synchronous_standby_names, with Patroni synchronous_mode = true"],
            ),
            (["on", "", "", "off", "on"], &["fsync = on"]),
            (
                ["off", "", "", "off", "off"],
                &[
                    "synchronous_commit = on",
                    "fsync = on",
                    "full_page_writes = on",
                ],
            ),
        ] {
            let found = complaints(&settings.map(str::to_owned).into());
            assert_eq!(found.len(), remedies.len(), "{settings:?}: {found:?}");
            for (found, set) in found.iter().zip(remedies) {
                assert!(found.ends_with(&format!("set {set}")), "{found}");
            }
        }
    }
}

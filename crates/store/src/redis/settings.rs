//! Checks the server's version and settings.

use super::{RedisStore, failure};
use crate::StoreError;

/// The oldest major version with all commands that the scripts use.
const OLDEST: u32 = 7;

impl RedisStore {
    /// Returns one sentence for each setting that breaks a guarantee or risks data loss.
    pub(crate) async fn unsafe_settings(&self) -> Result<Vec<String>, StoreError> {
        let mut info = redis::cmd("INFO");
        let server: String = self.shared.read(info.arg("server")).await?;
        let problems = [
            version_problem(&server),
            persistence_problem(
                &self.setting("appendonly").await?,
                &self.setting("appendfsync").await?,
            ),
            eviction_problem(&self.setting("maxmemory-policy").await?),
        ];
        Ok(problems.into_iter().flatten().collect())
    }

    async fn setting(&self, name: &str) -> Result<String, StoreError> {
        let mut command = redis::cmd("CONFIG");
        let answer: Vec<String> = self.shared.read(command.arg("GET").arg(name)).await?;
        answer
            .get(1)
            .cloned()
            .ok_or_else(|| failure::bad_answer(answer))
    }
}

/// Reads the version from the section `server` of `INFO`.
fn version_problem(server: &str) -> Option<String> {
    let version = server
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"))?;
    let major: u32 = version.split('.').next()?.parse().ok()?;
    (major < OLDEST).then(|| {
        format!("Redis has version {version}; Redis-home stock needs Redis {OLDEST} or later")
    })
}

fn persistence_problem(appendonly: &str, appendfsync: &str) -> Option<String> {
    let problem = match (appendonly, appendfsync) {
        ("yes", "always") => return None,
        ("yes", _) => {
            "Redis acknowledges sales before they are on its disk, and may lose them if its machine \
             crashes; set appendfsync always"
        }
        _ => {
            "Redis has no append-only file: if it stops, sales that are not yet in SQL are lost and \
             their units can be sold again; set appendonly yes and appendfsync always"
        }
    };
    Some(problem.to_owned())
}

fn eviction_problem(policy: &str) -> Option<String> {
    let lost = match policy {
        "noeviction" => return None,
        volatile if volatile.starts_with("volatile-") => {
            "this loses dedup entries, so that a retry sells again"
        }
        _ => "this loses levels, and journals with sales that are not yet in SQL",
    };
    Some(format!(
        "Redis evicts ({policy}) when its memory is full: {lost}; set maxmemory-policy noeviction"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_old_version_is_a_problem() {
        let info = |version: &str| format!("# Server\r\nredis_version:{version}\r\nos:Linux\r\n");
        for fine in ["7.0.0", "7.4.2", "8.0.1", "255.255.255", "unstable"] {
            assert_eq!(version_problem(&info(fine)), None, "{fine}");
        }
        for old in ["6.2.14", "5.0.7", "6"] {
            let problem = version_problem(&info(old)).expect("the version is too old");
            assert!(
                problem.contains(old) && problem.contains("needs Redis 7"),
                "{problem}"
            );
        }
        assert_eq!(version_problem("# Server\r\n"), None);
    }
}

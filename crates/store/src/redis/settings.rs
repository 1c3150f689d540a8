//! Whether this Redis is one that stock may live in.

use super::{RedisStore, failure};
use crate::StoreError;

/// The oldest version that has all that is asked of it.
const OLDEST: u32 = 7;

impl RedisStore {
    /// What of its version and settings breaks a promise, or loses more than it has to, a sentence
    /// for each.
    pub(crate) async fn unsafe_settings(&self) -> Result<Vec<String>, StoreError> {
        let mut info = redis::cmd("INFO");
        let server: String = self.shared.read(info.arg("server")).await?;
        let problems = [
            of_version(&server),
            of_log(
                &self.setting("appendonly").await?,
                &self.setting("appendfsync").await?,
            ),
            of_eviction(&self.setting("maxmemory-policy").await?),
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

/// From the section `server` of `INFO`.
fn of_version(server: &str) -> Option<String> {
    let version = server
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"))?;
    let major: u32 = version.split('.').next()?.parse().ok()?;
    (major < OLDEST).then(|| {
        format!("Redis is {version}: stock that lives there needs Redis {OLDEST} or later")
    })
}

fn of_log(appendonly: &str, appendfsync: &str) -> Option<String> {
    let problem = match (appendonly, appendfsync) {
        ("yes", "always") => return None,
        ("yes", _) => {
            "Redis acknowledges sales before they are on its disk, and may lose them in a crash of \
             its machine; set appendfsync always"
        }
        _ => {
            "Redis keeps no log: when it stops, units sold that SQL does not have yet are on sale \
             again; set appendonly yes and appendfsync always"
        }
    };
    Some(problem.to_owned())
}

fn of_eviction(policy: &str) -> Option<String> {
    let lost = match policy {
        "noeviction" => return None,
        volatile if volatile.starts_with("volatile-") => {
            "what it remembers of sales, so that a retry sells again"
        }
        _ => "levels, and whole journals with sales that SQL does not have yet",
    };
    Some(format!(
        "Redis evicts ({policy}) when its memory is full: {lost}; set maxmemory-policy noeviction"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redis_that_is_too_old_is_told() {
        let info = |version: &str| format!("# Server\r\nredis_version:{version}\r\nos:Linux\r\n");
        for fine in ["7.0.0", "7.4.2", "8.0.1", "255.255.255", "unstable"] {
            assert_eq!(of_version(&info(fine)), None, "{fine}");
        }
        for old in ["6.2.14", "5.0.7", "6"] {
            let told = of_version(&info(old)).expect("it is too old");
            assert!(
                told.contains(old) && told.contains("needs Redis 7"),
                "{told}"
            );
        }
        assert_eq!(of_version("# Server\r\n"), None);
    }
}

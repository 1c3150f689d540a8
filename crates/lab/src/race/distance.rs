//! How far the services were from the replicas, where the race's caller put a distance between.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

/// A round trip's time that every exchange with a service takes on top of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distance {
    /// What was asked for.
    pub rtt: Duration,
    /// What a round trip really took before the race began, of one byte on an idle connection.
    pub measured: Duration,
    /// The services that are so far away, in words.
    pub delayed: Vec<&'static str>,
    /// Whether the SQL database is in the process, where nothing delays it.
    pub embedded: bool,
}

impl Distance {
    /// The keys of the report. Without a distance they are null.
    pub(super) fn json(distance: Option<&Self>) -> [(&'static str, Value); 3] {
        [
            ("rtt_ms", json!(distance.map(|it| ms(it.rtt)))),
            ("measured_rtt_ms", json!(distance.map(|it| ms(it.measured)))),
            ("delayed", json!(distance.map(|it| &it.delayed))),
        ]
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rtt = ms(self.rtt);
        let measured = ms(self.measured);
        let delayed = listed(&self.delayed);
        write!(
            f,
            "{delayed} a round trip of {rtt} ms away (measured: {measured:.2} ms)"
        )?;
        if self.embedded {
            f.write_str("; SQLite is in the process, where nothing delays it")?;
        }
        Ok(())
    }
}

/// Milliseconds, to the microsecond.
fn ms(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

/// `a`, `a and b`, `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [most @ .., last] if !most.is_empty() => format!("{} and {last}", most.join(", ")),
        names => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_what_is_how_far_away_and_what_is_not() {
        let mut distance = Distance {
            rtt: Duration::from_micros(500),
            measured: Duration::from_micros(612),
            delayed: vec!["the SQL database", "Redis", "ZooKeeper"],
            embedded: false,
        };
        let all = "the SQL database, Redis and ZooKeeper a round trip of 0.5 ms away (measured: \
                   0.61 ms)";
        assert_eq!(distance.to_string(), all);
        distance.delayed = vec!["Redis"];
        distance.embedded = true;
        let some = "Redis a round trip of 0.5 ms away (measured: 0.61 ms); SQLite is in the \
                    process, where nothing delays it";
        assert_eq!(distance.to_string(), some);
    }
}

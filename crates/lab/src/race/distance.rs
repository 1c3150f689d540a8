//! The network latency that was added to a race.

use std::fmt;
use std::time::Duration;

/// The round trip that every exchange with a delayed server takes in addition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distance {
    /// The round trip that was asked for.
    pub rtt: Duration,
    /// The measured round trip of one byte, before the race.
    pub measured: Duration,
    /// The names of the delayed servers.
    pub delayed: Vec<&'static str>,
    /// The SQL database is SQLite, which cannot be delayed.
    pub embedded: bool,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let delayed = match &self.delayed[..] {
            [most @ .., last] if !most.is_empty() => format!("{} and {last}", most.join(", ")),
            names => names.concat(),
        };
        let (rtt, measured) = (milliseconds(self.rtt), milliseconds(self.measured));
        write!(
            f,
            "{delayed} a round trip of {rtt} ms away (measured: {measured:.2} ms)"
        )?;
        if self.embedded {
            f.write_str("; SQLite is part of the process and is not delayed")?;
        }
        Ok(())
    }
}

/// Converts to milliseconds with a resolution of one microsecond.
pub(super) fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_delayed_and_embedded_servers() {
        let mut distance = Distance {
            rtt: Duration::from_micros(500),
            measured: Duration::from_micros(612),
            delayed: vec!["the SQL database", "Redis", "ZooKeeper"],
            embedded: false,
        };
        let away = "a round trip of 0.5 ms away (measured: 0.61 ms)";
        let all = format!("the SQL database, Redis and ZooKeeper {away}");
        assert_eq!(distance.to_string(), all);
        distance.delayed = vec!["Redis"];
        distance.embedded = true;
        let one = format!("Redis {away}; SQLite is part of the process and is not delayed");
        assert_eq!(distance.to_string(), one);
    }
}

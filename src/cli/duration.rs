//! Times on the command line that are too short for whole milliseconds.

use std::time::Duration;

/// The longest round trip: beyond it every wait limit would have to be another one.
const LONGEST: Duration = Duration::from_secs(1);

/// Parses the time of a round trip: `1ms`, `500us`, `1s` at most; `0` is none.
///
/// # Errors
/// What is expected instead.
pub(super) fn round_trip(text: &str) -> Result<Duration, String> {
    let unit = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(unit.unwrap_or(text.len()));
    let duration = number.parse().ok().and_then(|number| match unit {
        "" if number == 0 => Some(Duration::ZERO),
        "us" | "µs" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    });
    match duration {
        Some(duration) if duration <= LONGEST => Ok(duration),
        _ => Err("expected a whole number of us, ms or s, up to 1s, such as 1ms; or 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_has_a_unit_and_a_bound() {
        for (text, microseconds) in [
            ("0", 0),
            ("0ms", 0),
            ("500us", 500),
            ("250µs", 250),
            ("1ms", 1_000),
            ("1s", 1_000_000),
        ] {
            let expected = Duration::from_micros(microseconds);
            assert_eq!(round_trip(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "1",
            "ms",
            "-1ms",
            "+1ms",
            "1 ms",
            "1.5ms",
            "1m",
            "1001ms",
            "2s",
            "99999999999999999999s",
        ] {
            assert!(round_trip(text).is_err(), "{text:?}");
        }
    }
}

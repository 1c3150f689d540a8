//! Times on the command line that are too short for whole milliseconds.

use std::time::Duration;

/// The longest round trip. To open a connection takes several, within the wait limit: beyond this,
/// every limit would have to be another one.
const LONGEST: Duration = Duration::from_millis(100);

/// Parses the time of a round trip: `1ms`, `500us`, `100ms` at most; `0` is none.
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
        _ => None,
    });
    match duration {
        Some(duration) if duration <= LONGEST => Ok(duration),
        _ => Err("expected a whole number of us or ms, up to 100ms, such as 1ms; or 0".to_owned()),
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
            ("100ms", 100_000),
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
            "101ms",
            "1s",
            "99999999999999999999s",
        ] {
            assert!(round_trip(text).is_err(), "{text:?}");
        }
    }
}

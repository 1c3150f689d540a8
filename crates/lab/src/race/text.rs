//! How figures of a race are written as JSON, and read.

use std::fmt::Display;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// The text of a value.
pub(super) fn as_text<T: Display, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// A duration in milliseconds.
pub(super) fn as_milliseconds<S: Serializer>(
    value: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(milliseconds(*value))
}

/// The same duration.
pub(super) fn from_milliseconds<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    let milliseconds = f64::deserialize(deserializer)?;
    Duration::try_from_secs_f64(milliseconds / 1_000.0).map_err(D::Error::custom)
}

/// Converts to milliseconds with a resolution of one microsecond.
pub(super) fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

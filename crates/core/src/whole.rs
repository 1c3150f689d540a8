//! Whole numbers of JSON bodies.

use std::fmt::{self, Formatter};

use serde::de::value::I64Deserializer;
use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer, Unexpected, Visitor};

/// For a whole number of a JSON body: `2`, and also `2.0` and `2e0`, which JSON Schema takes for the same.
///
/// # Errors
/// If it is no whole number, or not in the range of `T`.
pub fn whole<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let number = deserializer.deserialize_i64(Whole)?;
    let number: I64Deserializer<D::Error> = number.into_deserializer();
    T::deserialize(number)
}

struct Whole;

impl Visitor<'_> for Whole {
    type Value = i64;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E>(self, number: i64) -> Result<i64, E> {
        Ok(number)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<i64, E> {
        let too_large = |_| E::invalid_value(Unexpected::Unsigned(number), &self);
        i64::try_from(number).map_err(too_large)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<i64, E> {
        // All limits are far below the numbers that are not exact.
        let is_exact = number.abs() <= 9e15 && number.fract() == 0.0;
        #[expect(clippy::cast_possible_truncation, reason = "it is whole and small")]
        let whole = is_exact.then_some(number as i64);
        whole.ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
    }
}

//! The movements of a batch, and their values as JSON.

use serde::{Serialize, Serializer};

use stocklock_core::stock::Deduction;

/// A movement of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sold<'a> {
    pub(crate) deduction: &'a Deduction,
    /// The units that the later sales of the batch take.
    pub(crate) units_after: i64,
    /// How many they are.
    pub(crate) sales_after: i64,
}

impl<'a> Sold<'a> {
    /// What the movements of a batch do not have in common, as a JSON array: operation, delta, units after
    /// it, caller, key, hash, remarks. Bytes are hexadecimal digits.
    pub(crate) fn json(self) -> impl Serialize + use<'a> {
        let deduction = self.deduction;
        let idempotency = deduction.idempotency.as_ref();
        (
            Hex(deduction.operation.0.as_bytes()),
            -deduction.quantity.units(),
            self.units_after,
            deduction.caller(),
            idempotency.map(|one| one.key.as_str()),
            idempotency.map(|one| Hex(&one.hash.0)),
            deduction.remarks.texts(),
        )
    }
}

/// A list of values that JSON can represent.
pub(crate) fn json<T: Serialize>(rows: impl Iterator<Item = T>) -> String {
    let rows: Vec<T> = rows.collect();
    serde_json::to_string(&rows).expect("texts and numbers are JSON")
}

/// At most 32 bytes as hexadecimal digits.
pub(super) struct Hex<'a>(pub(super) &'a [u8]);

impl Serialize for Hex<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut digits = [0; 64];
        for (byte, pair) in self.0.iter().zip(digits.chunks_exact_mut(2)) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 0xf)];
        }
        let digits = &digits[..2 * self.0.len()];
        serializer.serialize_str(str::from_utf8(digits).expect("digits are ASCII"))
    }
}

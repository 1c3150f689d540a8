//! The text of a movement in entries of version 1, and in dedup entries of release 0.1.0.
//!
//! It is a JSON array: ten fields in a fixed order, then the remarks. Bytes are Base64. This build only reads
//! it.

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD as BASE64;
use uuid::Uuid;

use super::EntryId;
use crate::sql::ledger_row::LedgerRow;
use stocklock_core::stock::{Durability, IdempotencyKey, Remarks, Sku, Warehouse};

/// The first fields in their order: operation, SKU, warehouse, kind, delta, read version, strategy,
/// caller, idempotency key, request hash.
type Fields = (
    String,
    Sku,
    Warehouse,
    String,
    i64,
    Option<i64>,
    Option<String>,
    String,
    Option<String>,
    Option<String>,
);

/// The number of those fields.
const FIXED: usize = 10;

/// The number of remarks that every text has.
const FIRST_REMARKS: usize = 2;

impl LedgerRow {
    /// Parses such a text, and refuses everything else, because other programs can write to the same
    /// Redis.
    pub(crate) fn from_journal_text(text: &str) -> Result<Self, String> {
        let invalid = |error: serde_json::Error| error.to_string();
        let mut fields: Vec<serde_json::Value> = serde_json::from_str(text).map_err(invalid)?;
        let remarks = fields.split_off(fields.len().min(FIXED));
        let fields: Fields = serde_json::from_value(fields.into()).map_err(invalid)?;
        let mut remarks: Vec<_> = serde_json::from_value(remarks.into()).map_err(invalid)?;
        if remarks.len() >= FIRST_REMARKS {
            remarks.resize(remarks.len().max(Remarks::NAMES.len()), None);
        }
        let remarks = remarks.try_into();
        let remarks = remarks.map_err(|_| "the number of remarks is wrong".to_owned())?;
        let bytes = |text: &str| BASE64.decode(text).map_err(|error| error.to_string());
        let row = Self {
            operation_id: Uuid::from_slice(&bytes(&fields.0)?)
                .map_err(|error| error.to_string())?,
            sku: fields.1,
            warehouse: fields.2,
            kind: fields.3.into(),
            delta: fields.4,
            available_after: 0,
            level_version: None,
            read_version: fields.5,
            strategy: fields.6,
            durability: Durability::Redis.as_str().into(),
            caller: fields.7.into(),
            idempotency_key: fields.8,
            request_hash: fields.9.as_deref().map(bytes).transpose()?,
            remarks: Remarks::recorded(remarks),
            reverses: None,
            returned: None,
            created_at: String::new(),
            entry: EntryId::default(),
        };
        row.check_bounds()?;
        Ok(row)
    }

    /// Checks that the row fits into the ledger's columns.
    pub(super) fn check_bounds(&self) -> Result<(), String> {
        if let Some(key) = &self.idempotency_key {
            IdempotencyKey::parse(key)?;
        }
        if let Some(hash) = self.request_hash.as_ref().filter(|hash| hash.len() != 32) {
            return Err(format!(
                "the request hash has {} bytes instead of 32",
                hash.len()
            ));
        }
        let texts = [
            (Some(self.kind.as_str()), 16),
            (Some(&*self.caller), 64),
            (self.strategy.as_deref(), 32),
        ];
        let remarks = self.remarks.texts().map(|text| (text, 200));
        for (text, most) in texts.into_iter().chain(remarks) {
            if text.is_some_and(|text| text.chars().count() > most || text.contains('\0')) {
                return Err(format!("the ledger cannot hold the text {text:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use stocklock_core::stock::MovementKind;

    use super::*;

    pub(crate) fn row(sku: &str) -> LedgerRow {
        LedgerRow {
            operation_id: Uuid::from_u128(7),
            sku: Sku::parse(sku).unwrap(),
            warehouse: Warehouse::parse("上海仓").unwrap(),
            kind: MovementKind::Deducted,
            delta: -3,
            available_after: 0,
            level_version: None,
            read_version: None,
            strategy: Some("redis-lua".to_owned()),
            durability: "redis".into(),
            caller: "anonymous".into(),
            idempotency_key: Some("k".to_owned()),
            request_hash: Some(vec![171; 32]),
            remarks: Remarks::default(),
            reverses: None,
            returned: None,
            created_at: String::new(),
            entry: EntryId::default(),
        }
    }

    /// The text of `row("a")`.
    pub(crate) fn text() -> String {
        let hash = BASE64.encode([171; 32]);
        let operation = BASE64.encode(Uuid::from_u128(7));
        format!(
            r#"["{operation}","a","上海仓","deducted",-3,null,"redis-lua","anonymous","k","{hash}",null,null]"#
        )
    }

    /// This release must read what the previous one wrote to Redis.
    #[test]
    fn text_of_the_previous_release_is_read() {
        assert_eq!(LedgerRow::from_journal_text(&text()), Ok(row("a")));
        // A later release may record kinds of movements that this one does not know.
        let unknown = LedgerRow {
            kind: "unknown".to_owned().into(),
            ..row("a")
        };
        let read = LedgerRow::from_journal_text(&text().replace("deducted", "unknown"));
        assert_eq!(read, Ok(unknown));
    }

    #[test]
    fn text_that_does_not_fit_the_ledger_is_refused() {
        let good = text();
        let digits = BASE64.encode([171; 32]);
        for bad in [
            good.replace(r#""a""#, r#""a b""#),
            good.replace("上海仓", ""),
            good.replace(&digits, &digits.replace('q', "!")),
            good.replace(&digits, "qw"),
            good.replace("deducted", &"k".repeat(17)),
            good.replace(r#""k""#, r#""a b""#),
            good.replace("anonymous", &"c".repeat(65)),
            good.replace("null]", &format!("\"{}\"]", "r".repeat(201))),
            "[]".to_owned(),
            "{}".to_owned(),
        ] {
            assert_ne!(bad, good);
            assert!(LedgerRow::from_journal_text(&bad).is_err(), "{bad}");
        }
    }
}

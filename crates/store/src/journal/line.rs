//! The text of movements in the journal, and of dedup entries.
//!
//! Fields are separated by tabs, which no value contains. They have no names, to save memory in Redis. Bytes
//! are Base64. Two texts make a movement:
//! - The common text, which movements of an entry share: warehouse, strategy, kind, caller.
//! - The text of the movement: delta, operation, request hash, read version, then the remarks. Empty fields
//!   at the end are omitted.

use std::borrow::Cow;
use std::fmt::Display;

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD as BASE64;
use uuid::Uuid;

use super::EntryId;
use crate::sql::ledger_row::LedgerRow;
use stocklock_core::stock::{
    Caller, Durability, Idempotency, MovementKind, Remarks, Sku, Warehouse,
};

/// The number of fields before the remarks.
const FIXED: usize = 4;

/// A line of a journal entry.
pub(crate) fn journal_line(key: Option<&str>, available: i64, movement: &str) -> String {
    format!("{}\t{available}\t{movement}", key.unwrap_or_default())
}

/// The text of a dedup entry.
pub(crate) fn dedup_entry(available: i64, common: &str, movement: &str) -> String {
    format!("{available}\t{common}\t{movement}")
}

/// Parses a line of a journal entry of this SKU.
pub(super) fn parse_line(
    line: &str,
    sku: &Sku,
    common: &str,
    entry: EntryId,
) -> Result<LedgerRow, String> {
    let fields: Vec<&str> = line.split('\t').collect();
    let common: Vec<&str> = common.split('\t').collect();
    let ([key, available], movement) = fields.split_first_chunk().ok_or_else(|| bad(line))?;
    let mut row = parse(sku, available, &common, movement).map_err(|why| bad_because(line, why))?;
    row.idempotency_key = of_text(key);
    row.entry = entry;
    row.check_bounds()?;
    Ok(row)
}

/// Parses the dedup entry of an operation on this SKU with this key.
pub(crate) fn parse_dedup_entry(
    entry: &str,
    sku: &Sku,
    key: Option<&Idempotency>,
) -> Result<LedgerRow, String> {
    let fields: Vec<&str> = entry.split('\t').collect();
    let (first, movement) = fields
        .split_at_checked(1 + FIXED)
        .ok_or_else(|| bad(entry))?;
    let mut row = parse(sku, first[0], &first[1..], movement);
    if let Ok(row) = &mut row {
        row.idempotency_key = key.map(|key| key.key.as_str().to_owned());
        row.check_bounds()?;
    }
    row.map_err(|why| bad_because(entry, why))
}

fn bad(text: &str) -> String {
    format!("`{text}` is not a movement")
}

fn bad_because(text: &str, why: impl Display) -> String {
    format!("`{text}` is not a movement: {why}")
}

fn of_text(field: &str) -> Option<String> {
    (!field.is_empty()).then(|| field.to_owned())
}

fn number(field: &str) -> Result<i64, String> {
    let not_a_number = |_| format!("`{field}` is not a number");
    field.parse().map_err(not_a_number)
}

fn bytes(field: &str) -> Result<Vec<u8>, String> {
    BASE64.decode(field).map_err(|error| error.to_string())
}

/// Parses the fields, and refuses what this build does not write, because other programs can write to the
/// same Redis.
fn parse(
    sku: &Sku,
    available: &str,
    common: &[&str],
    movement: &[&str],
) -> Result<LedgerRow, String> {
    let wrong_number = || "the number of fields is wrong".to_owned();
    let &[warehouse, strategy, kind, caller] = common else {
        return Err(wrong_number());
    };
    if movement.len() < 2 || movement.len() > FIXED + Remarks::NAMES.len() {
        return Err(wrong_number());
    }
    let field = |index: usize| movement.get(index).copied().unwrap_or_default();
    let text = |index: usize| of_text(field(index));
    let remarks = std::array::from_fn(|index| text(FIXED + index));
    let operation = bytes(field(1))?;
    Ok(LedgerRow {
        operation_id: Uuid::from_slice(&operation).map_err(|error| error.to_string())?,
        sku: sku.clone(),
        warehouse: Warehouse::parse(warehouse).map_err(|error| error.to_string())?,
        kind: of_text(kind).map_or(MovementKind::Deducted, MovementKind::from),
        delta: number(field(0))?,
        available_after: number(available)?,
        level_version: None,
        read_version: text(3).map(|version| number(&version)).transpose()?,
        strategy: of_text(strategy),
        durability: Durability::Redis.as_str().into(),
        caller: of_text(caller).map_or(Caller::ANONYMOUS.into(), Cow::Owned),
        idempotency_key: None,
        request_hash: text(2).map(|hash| bytes(&hash)).transpose()?,
        remarks: Remarks::recorded(remarks),
        reverses: None,
        returned: None,
        created_at: String::new(),
        entry: EntryId::default(),
    })
}

/// An empty text in place of the default.
fn unless<'a>(default: &str, text: &'a str) -> &'a str {
    if text == default { "" } else { text }
}

impl LedgerRow {
    /// What the movement has in common with others of its level.
    pub(crate) fn common_text(&self) -> String {
        let warehouse = self.warehouse.as_str();
        let strategy = self.strategy.as_deref().unwrap_or_default();
        let kind = unless(MovementKind::Deducted.as_str(), self.kind.as_str());
        let caller = unless(Caller::ANONYMOUS, &self.caller);
        [warehouse, strategy, kind, caller].join("\t")
    }

    /// The movement without its key, what it has in common, and `available_after`, which the script adds.
    pub(crate) fn movement_text(&self) -> String {
        let mut text = self.delta.to_string();
        text.push('\t');
        BASE64.encode_string(self.operation_id, &mut text);
        text.push('\t');
        if let Some(hash) = &self.request_hash {
            BASE64.encode_string(hash, &mut text);
        }
        text.push('\t');
        if let Some(version) = self.read_version {
            text.push_str(&version.to_string());
        }
        for remark in self.remarks.texts() {
            text.push('\t');
            text.push_str(remark.unwrap_or_default());
        }
        text.truncate(text.trim_end_matches('\t').len());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::tests::row;

    /// The next release must read what this one writes to Redis.
    #[test]
    fn movement_keeps_its_format() {
        let hash = BASE64.encode([171; 32]);
        let operation = BASE64.encode(Uuid::from_u128(7));
        let sale = row("a");
        let movement = format!("-3\t{operation}\t{hash}");
        assert_eq!(sale.movement_text(), movement);
        let common = "上海仓\tredis-lua\t\t";
        assert_eq!(sale.common_text(), common);
        let line = journal_line(Some("k"), 5, &movement);
        assert_eq!(line, format!("k\t5\t{movement}"));
        let sold = LedgerRow {
            available_after: 5,
            ..sale
        };
        let entry = EntryId::default();
        assert_eq!(
            parse_line(&line, &sold.sku, common, entry),
            Ok(sold.clone())
        );
        let line = journal_line(None, 5, &movement);
        let without_key = LedgerRow {
            idempotency_key: None,
            ..sold
        };
        let parsed = parse_line(&line, &without_key.sku, common, entry);
        assert_eq!(parsed, Ok(without_key.clone()));
        let remembered = dedup_entry(5, common, &movement);
        assert_eq!(remembered, format!("5\t{common}\t{movement}"));
        let parsed = parse_dedup_entry(&remembered, &without_key.sku, None);
        assert_eq!(parsed, Ok(without_key));
    }

    #[test]
    fn every_field_is_kept() {
        let remarks = [(); Remarks::NAMES.len()].map(|()| Some("two words".to_owned()));
        let adjusted = LedgerRow {
            kind: "unknown".to_owned().into(),
            strategy: None,
            caller: "c".into(),
            read_version: Some(9),
            remarks: Remarks::recorded(remarks),
            request_hash: None,
            idempotency_key: None,
            ..row("a")
        };
        let (common, movement) = (adjusted.common_text(), adjusted.movement_text());
        let line = journal_line(None, 0, &movement);
        let parsed = parse_line(&line, &adjusted.sku, &common, EntryId::default());
        assert_eq!(parsed, Ok(adjusted.clone()));
        let parsed = parse_dedup_entry(&dedup_entry(0, &common, &movement), &adjusted.sku, None);
        assert_eq!(parsed, Ok(adjusted));
    }

    #[test]
    fn movement_that_does_not_fit_the_ledger_is_refused() {
        let sale = row("a");
        let (common, movement) = (sale.common_text(), sale.movement_text());
        let long = "r".repeat(201);
        for (common, line) in [
            (&*common, journal_line(Some("a b"), 5, &movement)),
            (&*common, journal_line(None, 5, &movement.replace('q', "!"))),
            (
                &*common,
                journal_line(None, 5, &format!("{movement}\t\t{long}")),
            ),
            (
                &*common,
                journal_line(None, 5, &format!("{movement}\t\t\t\ta later field")),
            ),
            (&*common, journal_line(None, 5, "-3")),
            (&*common, "5".to_owned()),
            (&*common, String::new()),
            ("", journal_line(None, 5, &movement)),
            ("a b\t\t\t", journal_line(None, 5, &movement)),
            (
                "main\t\tdeducted for a reason\t",
                journal_line(None, 5, &movement),
            ),
        ] {
            let parsed = parse_line(&line, &sale.sku, common, EntryId::default());
            assert!(parsed.is_err(), "{common} {line}");
        }
    }
}

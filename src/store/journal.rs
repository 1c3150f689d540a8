//! The journal's entries: what Redis wrote down, on its way into the SQL ledger.
//!
//! An entry is a movement and the level right after it. The movement is written by this service and
//! passes through Redis as one text; the level is written by the script that made it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::stock::{
    Durability, IdempotencyKey, Movement, MovementKind, OperationId, RequestHash, Sku, Warehouse,
};

use super::record::Record;

/// The identity of an entry in a stream: milliseconds, and a number within them. Ordered by value,
/// which its text is not (`9-0` comes before `10-0`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryId {
    pub(super) millis: i64,
    pub(super) number: i64,
}

impl FromStr for EntryId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('-').and_then(|(millis, number)| {
            let (millis, number) = (millis.parse().ok()?, number.parse().ok()?);
            Some(Self { millis, number })
        });
        parsed.ok_or_else(|| format!("`{text}` is no entry's id"))
    }
}

impl EntryId {
    /// When Redis wrote it: RFC 3339, UTC, in milliseconds.
    fn instant(self) -> String {
        const DAY: i64 = 86_400_000;
        let (days, millis) = (self.millis.div_euclid(DAY), self.millis.rem_euclid(DAY));
        // The proleptic Gregorian calendar in eras of 400 years that begin on a 1st of March.
        let since_march_0000 = days + 719_468;
        let era = since_march_0000.div_euclid(146_097);
        let day = since_march_0000.rem_euclid(146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (year, month) = if month < 10 {
            (era * 400 + year, month + 3)
        } else {
            (era * 400 + year + 1, month - 9)
        };
        let (seconds, millis) = (millis / 1000, millis % 1000);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.millis, self.number)
    }
}

/// A movement as it passes through Redis; the names are short since each is kept many times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    #[serde(rename = "o")]
    pub(super) operation: Uuid,
    #[serde(rename = "s")]
    pub(super) sku: String,
    #[serde(rename = "w")]
    pub(super) warehouse: String,
    #[serde(rename = "k")]
    pub(super) kind: MovementKind,
    #[serde(rename = "d")]
    pub(super) delta: i64,
    #[serde(rename = "v", default, skip_serializing_if = "Option::is_none")]
    pub(super) read_version: Option<i64>,
    #[serde(rename = "y", default, skip_serializing_if = "Option::is_none")]
    pub(super) strategy: Option<String>,
    #[serde(rename = "c")]
    pub(super) caller: String,
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    /// As text, 64 hexadecimal digits.
    #[serde(
        rename = "h",
        default,
        skip_serializing_if = "Option::is_none",
        with = "hex"
    )]
    pub(super) hash: Option<Vec<u8>>,
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    pub(super) reference: Option<String>,
}

impl Note {
    /// What `record` says, but for the level after it, which only Redis knows.
    pub(super) fn of(record: &Record<'_>) -> Self {
        Self {
            operation: record.operation,
            sku: record.sku.to_owned(),
            warehouse: record.warehouse.to_owned(),
            kind: record.kind,
            delta: record.delta,
            read_version: record.read_version,
            strategy: record.strategy.map(str::to_owned),
            caller: record.caller().to_owned(),
            key: record.key().map(str::to_owned),
            hash: record.hash().map(<[u8]>::to_vec),
            reason: record.reason.map(str::to_owned),
            reference: record.reference.map(str::to_owned),
        }
    }

    /// The note as Redis keeps it.
    pub(super) fn to_text(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers make JSON")
    }

    /// Reads what [`Note::to_text`] wrote; anything else, Redis being open to others, is refused.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let note: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Sku::parse(&*note.sku).map_err(|error| error.to_string())?;
        Warehouse::parse(&*note.warehouse).map_err(|error| error.to_string())?;
        note.request_hash()?;
        if let Some(key) = &note.key {
            IdempotencyKey::parse(key)?;
        }
        // What the ledger's columns hold.
        let texts = [(Some(&note.caller), 64), (note.strategy.as_ref(), 32)];
        let more = [(note.reason.as_ref(), 200), (note.reference.as_ref(), 200)];
        for (text, most) in texts.into_iter().chain(more) {
            if text.is_some_and(|text| text.chars().count() > most || text.contains('\0')) {
                return Err(format!("a text that the ledger cannot hold: {text:?}"));
            }
        }
        Ok(note)
    }

    /// The hash of the request, where it carried a key.
    fn request_hash(&self) -> Result<Option<RequestHash>, String> {
        let hash = self.hash.clone().map(Vec::try_into).transpose();
        let hash = hash.map_err(|bytes: Vec<u8>| format!("a hash of {} bytes", bytes.len()))?;
        Ok(hash.map(RequestHash))
    }

    /// The movement that the ledger will hold, which left `available_after` units.
    pub(super) fn movement(self, id: EntryId, available_after: i64) -> Result<Movement, String> {
        let request_hash = self.request_hash()?;
        Ok(Movement {
            operation: OperationId(self.operation),
            sku: Sku::parse(self.sku).map_err(|error| error.to_string())?,
            warehouse: Warehouse::parse(self.warehouse).map_err(|error| error.to_string())?,
            kind: self.kind,
            delta: self.delta,
            available_after,
            read_version: self.read_version,
            strategy: self.strategy,
            durability: Durability::Redis,
            request_hash,
            reason: self.reason,
            reference: self.reference,
            created_at: id.instant(),
        })
    }
}

/// Bytes as hexadecimal digits.
mod hex {
    use std::fmt::Write;

    use serde::{Deserialize, Deserializer, Serializer, de};

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut digits = String::new();
        for byte in bytes.iter().flatten() {
            // Writing to a String cannot fail.
            let _ = write!(digits, "{byte:02x}");
        }
        serializer.serialize_some(&digits)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
        bytes
            .map(Some)
            .ok_or_else(|| de::Error::custom("no hexadecimal digits"))
    }
}

/// One entry: a movement, and the level that it left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Journaled {
    pub(super) id: EntryId,
    pub(super) note: Note,
    pub(super) on_hand: i64,
    pub(super) held: i64,
    pub(super) backorder_limit: i64,
    pub(super) version: i64,
}

impl Journaled {
    /// Units that were available right after it.
    pub(super) fn available(&self) -> i64 {
        self.on_hand - self.held + self.backorder_limit
    }

    /// Which level it left behind.
    pub(super) fn place(&self) -> (&str, &str) {
        (&self.note.sku, &self.note.warehouse)
    }
}

/// For each level that `entries` changed, the last of them, in (SKU, warehouse) order: the order in
/// which rows are locked.
pub(super) fn last_of_each_level(entries: &[Journaled]) -> Vec<&Journaled> {
    let mut last: BTreeMap<(&str, &str), &Journaled> = BTreeMap::new();
    for entry in entries {
        let known = last.entry(entry.place()).or_insert(entry);
        if known.id < entry.id {
            *known = entry;
        }
    }
    last.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(sku: &str) -> Note {
        Note {
            operation: Uuid::from_u128(7),
            sku: sku.to_owned(),
            warehouse: "上海仓".to_owned(),
            kind: MovementKind::Deducted,
            delta: -3,
            read_version: None,
            strategy: Some("redis-lua".to_owned()),
            caller: "anonymous".to_owned(),
            key: Some("k".to_owned()),
            hash: Some(vec![171; 32]),
            reason: None,
            reference: None,
        }
    }

    fn entry(id: &str, sku: &str) -> Journaled {
        Journaled {
            id: id.parse().unwrap(),
            note: note(sku),
            on_hand: 5,
            held: 1,
            backorder_limit: 2,
            version: 9,
        }
    }

    #[test]
    fn ids_compare_by_value() {
        let id = |text: &str| text.parse::<EntryId>().unwrap();
        assert!(id("9-0") < id("10-0"));
        assert!(id("1700000000000-9") < id("1700000000000-10"));
        assert_eq!(id("12-3").to_string(), "12-3");
        for bad in ["", "1", "-", "1-", "a-1", "1-2-3"] {
            assert!(bad.parse::<EntryId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_note_survives_its_passage_through_redis() {
        let note = note("a");
        assert_eq!(Note::parse(&note.to_text()), Ok(note.clone()));
        assert_eq!(note.request_hash(), Ok(Some(RequestHash([171; 32]))));
        let movement = note.movement("951782400123-4".parse().unwrap(), 4).unwrap();
        assert_eq!(movement.available_after, 4);
        assert_eq!(movement.created_at, "2000-02-29T00:00:00.123Z");
    }

    #[test]
    fn what_others_wrote_is_refused() {
        let good = note("a");
        for bad in [
            Note {
                sku: "a b".to_owned(),
                ..good.clone()
            },
            Note {
                warehouse: String::new(),
                ..good.clone()
            },
            Note {
                hash: Some(vec![1]),
                ..good.clone()
            },
            Note {
                key: Some("a b".to_owned()),
                ..good.clone()
            },
            Note {
                caller: "c".repeat(65),
                ..good.clone()
            },
            Note {
                reason: Some("r".repeat(201)),
                ..good.clone()
            },
        ] {
            assert!(Note::parse(&bad.to_text()).is_err(), "{bad:?}");
        }
        let digits = good.to_text().replace("abab", "zzab");
        assert!(Note::parse(&digits).is_err(), "{digits}");
        assert!(Note::parse("{}").is_err());
    }

    #[test]
    fn the_last_entry_of_each_level_counts_and_levels_come_in_order() {
        let entries = [
            entry("9-0", "b"),
            entry("10-0", "a"),
            entry("8-5", "b"),
            entry("9-1", "a"),
        ];
        let last = last_of_each_level(&entries);
        let found: Vec<_> = last
            .iter()
            .map(|e| (e.place().0, e.id.to_string()))
            .collect();
        assert_eq!(found, [("a", "10-0".to_owned()), ("b", "9-0".to_owned())]);
    }
}

//! What the journals say of a movement.

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD as BASE64;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::record::Record;
use stocklock_core::stock::{IdempotencyKey, MovementKind, RequestHash, Sku, Warehouse};

/// A movement as it passes through Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note<'a> {
    pub(crate) operation: Uuid,
    pub(crate) sku: Cow<'a, str>,
    pub(crate) warehouse: Cow<'a, str>,
    pub(crate) kind: MovementKind,
    pub(crate) delta: i64,
    pub(crate) read_version: Option<i64>,
    pub(crate) strategy: Option<Cow<'a, str>>,
    pub(crate) caller: Cow<'a, str>,
    pub(crate) key: Option<Cow<'a, str>>,
    pub(crate) hash: Option<Cow<'a, [u8]>>,
    pub(crate) reason: Option<Cow<'a, str>>,
    pub(crate) reference: Option<Cow<'a, str>>,
}

/// A note as Redis keeps it, many times and for a day: a JSON array of the fields in their order,
/// without their names; bytes in Base64.
#[derive(Serialize, Deserialize)]
struct Packed<'a>(
    String,
    Cow<'a, str>,
    Cow<'a, str>,
    MovementKind,
    i64,
    Option<i64>,
    Option<Cow<'a, str>>,
    Cow<'a, str>,
    Option<Cow<'a, str>>,
    Option<String>,
    Option<Cow<'a, str>>,
    Option<Cow<'a, str>>,
);

impl<'a> Note<'a> {
    /// What `record` says, but for the level after it, which only Redis knows.
    pub(crate) fn of(record: &Record<'a>) -> Self {
        Self {
            operation: record.operation,
            sku: record.sku.into(),
            warehouse: record.warehouse.into(),
            kind: record.kind,
            delta: record.delta,
            read_version: record.read_version,
            strategy: record.strategy.map(Cow::Borrowed),
            caller: record.caller().into(),
            key: record.key().map(Cow::Borrowed),
            hash: record.hash().map(Cow::Borrowed),
            reason: record.reason.map(Cow::Borrowed),
            reference: record.reference.map(Cow::Borrowed),
        }
    }

    /// The note as Redis keeps it.
    pub(crate) fn to_text(&self) -> String {
        let packed = Packed(
            BASE64.encode(self.operation),
            Cow::Borrowed(&self.sku),
            Cow::Borrowed(&self.warehouse),
            self.kind,
            self.delta,
            self.read_version,
            self.strategy.as_deref().map(Cow::Borrowed),
            Cow::Borrowed(&self.caller),
            self.key.as_deref().map(Cow::Borrowed),
            self.hash.as_ref().map(|hash| BASE64.encode(hash)),
            self.reason.as_deref().map(Cow::Borrowed),
            self.reference.as_deref().map(Cow::Borrowed),
        );
        serde_json::to_string(&packed).expect("texts and numbers make JSON")
    }

    /// Reads what [`Note::to_text`] wrote; anything else, Redis being open to others, is refused.
    pub(crate) fn parse(text: &str) -> Result<Note<'static>, String> {
        let packed = serde_json::from_str::<Packed<'static>>(text);
        let note = packed.map_err(|error| error.to_string())?.unpack()?;
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
    pub(super) fn request_hash(&self) -> Result<Option<RequestHash>, String> {
        let Some(hash) = self.hash.as_deref() else {
            return Ok(None);
        };
        let bytes = hash.try_into();
        let bytes = bytes.map_err(|_| format!("a hash of {} bytes", hash.len()))?;
        Ok(Some(RequestHash(bytes)))
    }
}

impl<'a> Packed<'a> {
    fn unpack(self) -> Result<Note<'a>, String> {
        let bytes = |text: &str| BASE64.decode(text).map_err(|error| error.to_string());
        let operation = Uuid::from_slice(&bytes(&self.0)?).map_err(|error| error.to_string())?;
        Ok(Note {
            operation,
            sku: self.1,
            warehouse: self.2,
            kind: self.3,
            delta: self.4,
            read_version: self.5,
            strategy: self.6,
            caller: self.7,
            key: self.8,
            hash: self.9.as_deref().map(bytes).transpose()?.map(Cow::Owned),
            reason: self.10,
            reference: self.11,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::journal) fn note(sku: &str) -> Note<'_> {
        Note {
            operation: Uuid::from_u128(7),
            sku: sku.into(),
            warehouse: "上海仓".into(),
            kind: MovementKind::Deducted,
            delta: -3,
            read_version: None,
            strategy: Some("redis-lua".into()),
            caller: "anonymous".into(),
            key: Some("k".into()),
            hash: Some(vec![171; 32].into()),
            reason: None,
            reference: None,
        }
    }

    #[test]
    fn a_note_survives_its_passage_through_redis() {
        let note = note("a");
        assert_eq!(Note::parse(&note.to_text()), Ok(note.clone()));
        assert_eq!(note.request_hash(), Ok(Some(RequestHash([171; 32]))));
    }

    #[test]
    fn what_others_wrote_is_refused() {
        let good = note("a");
        for bad in [
            Note {
                sku: "a b".into(),
                ..good.clone()
            },
            Note {
                warehouse: "".into(),
                ..good.clone()
            },
            Note {
                hash: Some(vec![1].into()),
                ..good.clone()
            },
            Note {
                key: Some("a b".into()),
                ..good.clone()
            },
            Note {
                caller: "c".repeat(65).into(),
                ..good.clone()
            },
            Note {
                reason: Some("r".repeat(201).into()),
                ..good.clone()
            },
        ] {
            assert!(Note::parse(&bad.to_text()).is_err(), "{bad:?}");
        }
        let digits = BASE64.encode([171; 32]);
        let strange = good.to_text().replace(&digits, &digits.replace('q', "!"));
        assert!(Note::parse(&strange).is_err(), "{strange}");
        assert!(Note::parse("[]").is_err());
        assert!(Note::parse("{}").is_err());
    }
}

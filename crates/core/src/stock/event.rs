//! Events: the movements of the ledger in the order of the feed, which numbers what was published.
//!
//! A row of the feed is a number, a level, and some of its versions in a row. So a position can be inside a row.

use std::fmt;

use super::Movement;
use super::ledger::{VERSION, number};
use crate::names::named;

/// A position in the feed: right after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventCursor {
    /// The number of the row. 0: before the first one.
    pub seq: i64,
    /// The version of the last movement that was read of the row; `None` if it was read to its end.
    pub version: Option<i64>,
}

impl EventCursor {
    /// The row that has the next event.
    #[must_use]
    pub fn next_row(self) -> i64 {
        self.version.map_or(self.seq + 1, |_| self.seq)
    }

    /// Parses what [`fmt::Display`] wrote; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let numbers = text.strip_prefix(VERSION)?.split(';').skip(1);
        let mut numbers = numbers.map(number);
        let cursor = Self {
            seq: numbers.next()??,
            version: numbers
                .next()
                .map_or(Some(None), |version| version.map(Some))?,
        };
        (cursor.to_string() == text).then_some(cursor)
    }
}

impl fmt::Display for EventCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION};{}", self.seq)?;
        self.version
            .map_or(Ok(()), |version| write!(f, ";{version}"))
    }
}

named! {
    /// A bound that the available units of a level have crossed.
    pub enum Crossing {
        /// No unit is available any more.
        Depleted = "depleted",
        /// Units are available again.
        Replenished = "replenished",
        /// No more units are available than the reader has named.
        Low = "low",
    }
}

/// A movement that was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The position right after it.
    pub cursor: EventCursor,
    /// The movement.
    pub movement: Movement,
    /// Units that were available before it.
    pub before: i64,
}

impl Event {
    /// The bounds that it has crossed; [`Crossing::Low`] is that of `low_at` units.
    pub fn crossed(&self, low_at: Option<i64>) -> impl Iterator<Item = Crossing> {
        let (before, after) = (self.before, self.movement.available_after);
        let falls = move |bound| before > bound && after <= bound;
        let crossings = [
            (Crossing::Depleted, falls(0)),
            (Crossing::Replenished, before <= 0 && after > 0),
            (Crossing::Low, low_at.is_some_and(falls)),
        ];
        crossings
            .into_iter()
            .filter_map(|(crossing, is_crossed)| is_crossed.then_some(crossing))
    }
}

/// What the feed has after a position.
#[derive(Debug)]
pub enum EventPage {
    /// Nothing yet: the levels are being looked through for the first time.
    Starting,
    /// The feed does not have the events after the position: they are not kept any more, or it is a position of
    /// another feed.
    Expired,
    /// Some events.
    Events {
        /// In the order of the feed. May be none, although more follow.
        events: Vec<Event>,
        /// The position to go on at.
        cursor: EventCursor,
        /// The number of the last row of the feed.
        end: i64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_is_parsed_as_it_was_written() {
        for text in ["v1;0", "v1;17", "v1;17;5", "v1;999999999999999999"] {
            let cursor = EventCursor::parse(text).map(|cursor| cursor.to_string());
            assert_eq!(cursor.as_deref(), Some(text));
        }
        for text in [
            "",
            "v1",
            "v1;",
            "v2;1",
            "v11;1",
            "v1;-1",
            "v1;+1",
            "v1;01",
            "v1;1;",
            "v1;1;x",
            "v1;1;2;3",
            "v1;1000000000000000000",
        ] {
            assert_eq!(EventCursor::parse(text), None, "{text}");
        }
    }
}

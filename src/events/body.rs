//! An event, as readers and receivers get it.

use serde::Serialize;
use utoipa::ToSchema;

use stocklock_core::stock::{Crossing, Event, MovementKind};

/// A change of a level that was published.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventBody {
    /// The operation and its line: the same if the event is sent again.
    id: String,
    /// `stock.` and the kind of the movement, for example `stock.deducted`.
    pub(crate) r#type: String,
    /// When the movement was recorded: RFC 3339, UTC.
    time: String,
    /// The SKU.
    sku: String,
    /// The warehouse.
    warehouse: String,
    /// The version of the level after it: 1, 2, 3, … without gaps.
    version: i64,
    /// The id of the operation.
    operation: String,
    /// The hold that it made or ended.
    hold: Option<String>,
    /// Units added; negative for a sale.
    delta: i64,
    /// Units set aside; negative if they are no longer.
    held_delta: i64,
    /// Units available before it.
    before: i64,
    /// Units available after it.
    available: i64,
    /// `depleted`: no unit is available any more. `replenished`: there are units again. `low`: no more than
    /// `low_at` are.
    crossed: Vec<&'static str>,
    /// The external reference.
    reference: Option<String>,
}

impl EventBody {
    /// `low_at`: the bound of `low`.
    pub(crate) fn new(event: Event, low_at: Option<i64>) -> Self {
        let crossed = event.crossed(low_at).map(Crossing::as_str).collect();
        let movement = event.movement;
        let hold = match movement.kind {
            MovementKind::Held => Some(movement.operation),
            MovementKind::Returned => None,
            _ => movement.reverses,
        };
        Self {
            id: format!("{}/{}", movement.operation, movement.line),
            r#type: event_type(&movement.kind),
            time: movement.created_at,
            sku: movement.sku.into(),
            warehouse: movement.warehouse.into(),
            version: movement.level_version,
            operation: movement.operation.to_string(),
            hold: hold.map(|hold| hold.to_string()),
            delta: movement.delta,
            held_delta: movement.held_delta,
            before: event.before,
            available: movement.available_after,
            crossed,
            reference: movement.reference.map(Into::into),
        }
    }
}

/// The type of the events of a kind of movements.
pub(crate) fn event_type(kind: &MovementKind) -> String {
    format!("stock.{}", kind.as_str())
}

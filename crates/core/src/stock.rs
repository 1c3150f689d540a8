//! The domain: names, quantities, levels, movements, and the errors of a deduction.
//!
//! Values are built only by parsing, so a value needs no further check. Nothing here does I/O or
//! knows a driver. The texts of errors are those of the API.

mod audit;
mod deduction;
mod error;
mod event;
mod fence;
mod hold;
mod hold_end;
mod idempotency;
mod ledger;
mod level;
mod lookup;
mod movement;
mod name;
mod operation;
mod operation_id;
mod quantity;
mod remarks;
mod request_hash;
mod reversal;
mod shard;

pub use audit::Audit;
pub use deduction::Deducted;
pub use error::{DriverError, Refusal, RefusedLine, StockError};
pub use event::{Crossing, Event, EventCursor, EventPage};
pub use fence::Fence;
pub use hold::{Ending, HoldCursor, HoldFilter, Holding, How, Late, NEVER, OpenHold, state};
pub use hold_end::{HoldEnd, Resolved, final_end};
pub use idempotency::{Caller, Idempotency, IdempotencyKey, RequestHash};
pub use ledger::{LedgerCursor, LedgerPage, MovementFilter};
pub use level::{LevelCursor, MAX_LINES, MAX_UNITS, Precondition, Revision, Scope, StockLevel};
pub use lookup::OperationFilter;
pub use movement::{Movement, MovementKind};
pub use name::{InvalidName, MAX_NAME_CHARS, Sku, Warehouse, is_name_char};
pub use operation::{
    Change, Count, CountedFrom, Line, MAX_LINE_NUMBER, MadeLine, Operation, Return, Setting,
};
pub use operation_id::OperationId;
pub use quantity::{InvalidQuantity, Quantity};
pub use remarks::{Remark, Remarks};
pub use reversal::Reversal;
pub use shard::{Shard, WrongShard};

//! Looking up what an operation did.

use super::{Caller, IdempotencyKey, OperationId, Remark};

/// Which operations to look up.
#[derive(Debug, Clone)]
pub enum OperationFilter {
    /// The one with this id.
    Id(OperationId),
    /// The one with this key of this caller.
    Key(Caller, IdempotencyKey),
    /// Those of a caller with this reference, newest operation first.
    Reference {
        /// Who sent the requests.
        caller: Caller,
        /// The reference.
        reference: Remark,
        /// Only operations older than this one.
        before: Option<OperationId>,
        /// The maximum number of movements.
        limit: u32,
    },
}

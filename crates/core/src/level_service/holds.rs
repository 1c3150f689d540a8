//! Holds, and what becomes of them.
//!
//! The comments of the fields are in the API's document.

use serde::Serialize;

use super::{Changed, LevelService, OrderedLine, name_request_lines};
use crate::ports::StoreError;
use crate::stock::{
    HoldEnd, HoldFilter, Idempotency, MadeLine, Movement, OpenHold, Operation, OperationId,
    Refusal, Resolved, Sku, StockError, Warehouse,
};

/// How many times an operation on a hold is attempted, if other requests end the hold between its
/// look-up and the write.
const ROUNDS: u32 = 3;

/// Units that are set aside.
#[derive(Debug)]
pub struct Held {
    /// The id of the operation in the ledger.
    pub operation: OperationId,
    /// What is held, in the order of the lines.
    pub lines: Vec<OrderedLine>,
    /// When it ends: milliseconds since 1970, or [`NEVER`](crate::stock::NEVER). `None` if this was rebuilt
    /// from the ledger.
    pub expires_at: Option<i64>,
    /// When the ledger recorded it, if this was rebuilt from it: RFC 3339.
    pub recorded_at: Option<String>,
    /// Whether this answers a retry of an earlier request.
    pub replayed: bool,
}

/// Units of a hold that were sold.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ConfirmAnswer))]
pub struct Confirmed {
    /// The id of the sale in the ledger.
    #[serde(rename = "id")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub operation: OperationId,
    /// The id of the hold.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub hold: OperationId,
    /// `confirmed`.
    pub state: &'static str,
    /// Whether a line had expired, so that its units were taken from those that were available.
    pub late: bool,
    /// What was sold, in the order of the lines.
    pub lines: Vec<ConfirmedLine>,
}

/// Units of a line of a hold.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ConfirmAnswerLine))]
pub struct ConfirmedLine {
    /// The number of the line in the hold, from 0.
    pub line: i64,
    /// The SKU.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub sku: Sku,
    /// The warehouse.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub warehouse: Warehouse,
    /// Units that were sold.
    pub quantity: i64,
    /// Held units of the line that were not sold, and were given back.
    pub released: i64,
    /// Units available after that line.
    pub remaining: i64,
}

/// A hold whose units were given back.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ReleaseAnswer))]
pub struct Released {
    /// The id of the operation in the ledger.
    #[serde(rename = "id")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub operation: OperationId,
    /// The id of the hold.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub hold: OperationId,
    /// `released`.
    pub state: &'static str,
}

impl Confirmed {
    /// The answer to the confirmation of a hold.
    #[must_use]
    pub fn new(made: Changed, hold: OperationId) -> Self {
        Self {
            operation: made.operation,
            hold,
            state: "confirmed",
            late: made.lines.iter().any(|line| line.held_delta == 0),
            lines: made.lines.into_iter().map(ConfirmedLine::from).collect(),
        }
    }
}

impl Released {
    /// The answer to the release of a hold.
    #[must_use]
    pub fn new(made: &Changed, hold: OperationId) -> Self {
        Self {
            operation: made.operation,
            hold,
            state: "released",
        }
    }
}

impl From<MadeLine> for ConfirmedLine {
    fn from(made: MadeLine) -> Self {
        Self {
            line: made.line,
            sku: made.sku,
            warehouse: made.warehouse,
            quantity: -made.delta,
            // A line that had expired held nothing any more.
            released: (made.delta - made.held_delta).max(0),
            remaining: made.remaining,
        }
    }
}

impl LevelService {
    /// Sets the units of every line aside, or nothing. `replaces`: another hold. The same operation
    /// gives its open units back first, so the new lines can take them.
    ///
    /// # Errors
    /// Every error but [`StockError::OutcomeUnknown`] means that nothing was changed.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the hold.
    pub async fn hold(
        &self,
        hold: Operation,
        replaces: Option<OperationId>,
    ) -> Result<Held, StockError> {
        let choosing = hold.lines.iter().any(|line| !line.others.is_empty());
        let request = (choosing || replaces.is_some()).then(|| hold.lines.clone());
        let made = match replaces {
            Some(old) => self.replace_hold(hold, old).await?,
            None => self.change(hold).await?,
        };
        let expires_at = made.lines.iter().find_map(|line| line.expires_at);
        // Lines that were read from the ledger have none, also if this request has made them itself.
        let recorded_at = if expires_at.is_none() {
            let movements = self.store.operation(made.operation).await;
            // The hold is made, so no error may say that nothing was changed.
            let movements = movements.map_err(|error| StockError::OutcomeUnknown {
                source: error.into(),
            })?;
            movements.into_iter().next().map(|one| one.created_at)
        } else {
            None
        };
        let line = |made: MadeLine| OrderedLine {
            quantity: made.held_delta,
            ..made.into()
        };
        let lines = made.lines.into_iter();
        let lines = lines.filter(|line| line.held_delta > 0);
        let mut lines: Vec<_> = lines.map(line).collect();
        name_request_lines(&mut lines, request.as_deref());
        Ok(Held {
            operation: made.operation,
            expires_at,
            lines,
            recorded_at,
            replayed: made.replayed,
        })
    }

    /// Makes a hold that ends another one.
    async fn replace_hold(&self, hold: Operation, old: OperationId) -> Result<Changed, StockError> {
        let mut round = 1;
        loop {
            let (movements, ends) = self.hold_and_ends(old).await?;
            let operation = match HoldEnd::replaced_by(&hold, old, movements, &ends) {
                Ok(operation) => operation,
                // Perhaps the first request with this key has ended it.
                Err(error) => {
                    let (sku, key) = (&hold.first().sku, hold.idempotency.as_ref());
                    return self.first_answer(sku, hold.id, key).await?.ok_or(error);
                }
            };
            match self.change(operation).await {
                // Another request has ended it since.
                Err(error) if is_ended(&error) && round < ROUNDS => round += 1,
                made => return made,
            }
        }
    }

    /// The answer to an earlier request with this key, for a level of this SKU.
    pub(super) async fn first_answer(
        &self,
        sku: &Sku,
        id: OperationId,
        key: Option<&Idempotency>,
    ) -> Result<Option<Changed>, StockError> {
        let recorded = self.store.recorded(sku, id, key).await?;
        let Some(movement) = recorded else {
            return Ok(None);
        };
        if movement.request_hash != key.map(|key| key.hash) {
            return Err(StockError::IdempotencyKeyReused);
        }
        self.replay(movement.operation).await.map(Some)
    }

    /// The movements of a hold, and those that have ended its lines.
    async fn hold_and_ends(
        &self,
        hold: OperationId,
    ) -> Result<(Vec<Movement>, Vec<Movement>), StockError> {
        let movements = self.store.operation(hold).await?;
        if movements.is_empty() {
            return Err(StockError::UnknownOperation);
        }
        let ends = self.store.children(hold).await?;
        Ok((movements, ends))
    }

    /// Ends lines of a hold, or finds that they have ended in the same way. Units of them that are not sold are
    /// given back.
    ///
    /// # Errors
    /// Every error but [`StockError::OutcomeUnknown`] means that nothing was changed.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the write.
    pub async fn end_hold(&self, end: HoldEnd) -> Result<Changed, StockError> {
        let mut round = 1;
        loop {
            let open = self.open_lines(end.hold).await?;
            let operation = if let Some(operation) = end.of_open(&open) {
                operation
            } else {
                let (held, ends) = self.hold_and_ends(end.hold).await?;
                let sku = held[0].sku.clone();
                match end.resolve(held, &ends) {
                    Ok(Resolved::Operation(operation)) => *operation,
                    Ok(Resolved::Replay(operation)) => return self.replay(operation).await,
                    // Perhaps the first request with this key has ended them, and others came later.
                    Err(error) => {
                        let key = end.new.idempotency.as_ref();
                        let first = self.first_answer(&sku, end.new.id, key).await?;
                        return first.ok_or(error);
                    }
                }
            };
            match self.change(operation).await {
                // Another request has ended it since.
                Err(error) if is_ended(&error) && round < ROUNDS => round += 1,
                made => return made,
            }
        }
    }

    async fn replay(&self, operation: OperationId) -> Result<Changed, StockError> {
        let movements = self.store.operation(operation).await;
        // It was made, so an error of this read is no refusal.
        let movements = movements.map_err(StoreError::outcome_unknown)?;
        let lines = movements.into_iter().map(MadeLine::from).collect();
        Ok(Changed::new(operation, lines, true))
    }

    /// Moves the end of a hold to `lasts` milliseconds from now; `None`: it does not expire. It never becomes shorter.
    /// Returns its open lines.
    ///
    /// # Errors
    /// [`StockError::OutcomeUnknown`] if it may have been extended; to do it again is harmless.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the hold extended or not.
    pub async fn extend_hold(
        &self,
        hold: OperationId,
        lasts: Option<i64>,
    ) -> Result<Vec<OpenHold>, StockError> {
        self.check_hold(hold).await?;
        let open = self.store.extend(hold, lasts).await?;
        if open.iter().any(|one| !one.is_due()) {
            return Ok(open);
        }
        let (movements, ends) = self.hold_and_ends(hold).await?;
        let found = HoldEnd::state_of(&movements, &ends)?;
        Err(found)
    }

    /// The open lines of a hold, in the order of their numbers.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Cancel safety
    /// The future may be dropped.
    pub async fn open_lines(&self, hold: OperationId) -> Result<Vec<OpenHold>, StockError> {
        self.open_lines.of(hold).await
    }

    /// A page of open lines of holds.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn open_holds(&self, filter: &HoldFilter) -> Result<Vec<OpenHold>, StockError> {
        Ok(self.store.open_holds(filter).await?)
    }
}

/// Whether a line of the hold had ended already.
fn is_ended(error: &StockError) -> bool {
    match error {
        StockError::Refused(Refusal::HoldEnded { .. }) => true,
        StockError::Lines(lines) => lines.iter().all(|line| is_ended(&line.error)),
        _ => false,
    }
}

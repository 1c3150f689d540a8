//! Requests that end holds, and the operations that they become.

use tokio::time::Instant;

use super::{
    Caller, Change, Ending, How, Late, Line, Movement, MovementKind, OpenHold, Operation,
    OperationId, Quantity, Refusal, Remark, Remarks, Sku, StockError, Warehouse, state,
};

impl OpenHold {
    /// The operation that ends it, because its time is over.
    #[must_use]
    pub fn expire(self, deadline: Instant) -> Operation {
        let change = Change::End(Ending {
            hold: self.hold,
            line: self.line,
            how: How::Expire,
            open: None,
        });
        let line = Line::new(self.sku, self.warehouse, change);
        Operation::of_line(Caller::anonymous(), line, None, deadline)
    }
}

/// Whether nothing can follow this end of a line: it can still be sold after it has expired.
fn is_final(end: &Movement) -> bool {
    end.kind != MovementKind::Expired
}

/// What has become of a line for good, if these have ended lines of its hold.
#[must_use]
pub fn final_end(ends: &[Movement], line: i64) -> Option<&Movement> {
    let mut ends = ends.iter();
    ends.rfind(|one| one.line == line && is_final(one))
}

/// A request to end lines of a hold.
#[derive(Debug, Clone)]
pub struct HoldEnd {
    /// The operation that ends them, without its lines.
    pub new: Operation,
    /// The operation id of the hold.
    pub hold: OperationId,
    /// Whether units are sold: late too, or only in time. `None`: all are given back.
    pub confirm: Option<Late>,
    /// The lines, and how many units of each are sold. None: all that are open.
    pub lines: Vec<(i64, Option<Quantity>)>,
}

/// What is to be done about a [`HoldEnd`].
#[derive(Debug)]
pub enum Resolved {
    /// This operation has ended the same lines in the same way.
    Replay(OperationId),
    /// It is to be made.
    Operation(Box<Operation>),
}

impl HoldEnd {
    /// Decides about the hold that made these movements, and whose ends so far are these.
    ///
    /// # Errors
    /// [`StockError::NotAHold`]; [`StockError::UnknownLine`]; [`StockError::ExceedsHold`];
    /// [`Refusal::HoldEnded`] if lines have ended in another way.
    pub fn resolve(&self, held: Vec<Movement>, ends: &[Movement]) -> Result<Resolved, StockError> {
        let held: Vec<_> = held
            .into_iter()
            .filter(|one| one.kind == MovementKind::Held)
            .collect();
        if held.is_empty() {
            return Err(StockError::NotAHold);
        }
        let end_of = |line: i64| final_end(ends, line);
        let mut wanted = self.lines.clone();
        wanted.sort_unstable_by_key(|(line, _)| *line);
        if wanted.is_empty() {
            let open = held.iter().filter(|one| end_of(one.line).is_none());
            wanted = open.map(|one| (one.line, None)).collect();
        }
        if wanted.is_empty() {
            // Perhaps a repeat of the last request, which has ended what was open.
            let ended = ends.iter().filter(|one| is_final(one));
            let last = ended
                .clone()
                .max_by_key(|one| (&one.created_at, one.operation));
            let ended =
                ended.filter(|one| last.is_some_and(|last| one.operation == last.operation));
            wanted = ended.map(|one| (one.line, None)).collect();
        }
        let mut lines = Vec::with_capacity(wanted.len());
        let mut ended = Vec::new();
        for (number, quantity) in wanted {
            let line = held.iter().find(|one| one.line == number);
            let line = line.ok_or(StockError::UnknownLine { line: number })?;
            let units = quantity.map_or(line.held_delta, Quantity::units);
            if units > line.held_delta {
                return Err(StockError::ExceedsHold {
                    requested: units,
                    held: line.held_delta,
                });
            }
            if let Some(end) = end_of(number) {
                ended.push((end, units));
            } else {
                let place = (line.sku.clone(), line.warehouse.clone());
                lines.push(self.line(place, number, units, None));
            }
        }
        if let Some((first, _)) = ended.first() {
            let is_same = |(end, units): &(&Movement, i64)| {
                end.operation == first.operation
                    && match self.confirm {
                        Some(_) => end.kind == MovementKind::Deducted && -end.delta == *units,
                        None => end.kind == MovementKind::Released,
                    }
            };
            let of_first = ends.iter().filter(|one| one.operation == first.operation);
            let has_others = of_first.filter(|one| is_final(one)).count() != ended.len();
            if lines.is_empty() && !has_others && ended.iter().all(is_same) {
                return Ok(Resolved::Replay(first.operation));
            }
            let is_other = |one: &&(&Movement, i64)| !is_same(one);
            let (end, _) = ended.iter().find(is_other).unwrap_or(&ended[0]);
            return Err(StockError::Refused(Refusal::HoldEnded {
                line: end.line,
                state: state(&end.kind),
                by: Some(end.operation),
            }));
        }
        let reference = held[0].reference.clone();
        Ok(Resolved::Operation(Box::new(
            self.operation(lines, reference),
        )))
    }

    /// The same if all lines that end are among these, which are those of the hold that are open. Otherwise the
    /// ledger decides.
    #[must_use]
    pub fn of_open(&self, open: &[OpenHold]) -> Option<Operation> {
        let first = open.first()?;
        let mut wanted = self.lines.clone();
        wanted.sort_unstable_by_key(|(line, _)| *line);
        if wanted.is_empty() {
            wanted = open.iter().map(|one| (one.line, None)).collect();
        }
        let line = |(number, quantity): (i64, Option<Quantity>)| {
            let one = open.iter().find(|one| one.line == number)?;
            let units = quantity.map_or(one.units, Quantity::units);
            let place = (one.sku.clone(), one.warehouse.clone());
            (units <= one.units).then(|| self.line(place, number, units, Some(one.units)))
        };
        let lines = wanted.into_iter().map(line).collect::<Option<_>>()?;
        Some(self.operation(lines, first.reference.clone()))
    }

    fn operation(&self, lines: Vec<Line>, reference: Option<Remark>) -> Operation {
        Operation {
            lines,
            // The sale belongs to the order that the hold was made for.
            remarks: Remarks {
                reference,
                ..Remarks::default()
            },
            ..self.new.clone()
        }
    }

    /// The operation `new`, which then also gives back what is left of another hold, with these movements and
    /// ends.
    ///
    /// # Errors
    /// [`StockError::NotAHold`]; [`Refusal::HoldEnded`] if nothing is left of it;
    /// [`StockError::TooManyLevels`].
    pub fn replaced_by(
        new: &Operation,
        replaced: OperationId,
        held: Vec<Movement>,
        ends: &[Movement],
    ) -> Result<Operation, StockError> {
        let end = Self {
            new: new.clone(),
            hold: replaced,
            confirm: None,
            lines: Vec::new(),
        };
        let first = held.iter().find(|one| one.kind == MovementKind::Held);
        let line = first.map_or(0, |first| first.line);
        match end.resolve(held, ends)? {
            Resolved::Operation(end) => {
                let mut new = new.clone();
                new.lines.extend(end.lines);
                new.check_levels()?;
                Ok(new)
            }
            Resolved::Replay(by) => Err(StockError::Refused(Refusal::HoldEnded {
                line,
                state: "released",
                by: Some(by),
            })),
        }
    }

    /// Why a hold with these movements and ends cannot be extended.
    ///
    /// # Errors
    /// [`StockError::NotAHold`].
    pub fn state_of(held: &[Movement], ends: &[Movement]) -> Result<StockError, StockError> {
        let mut lines = held.iter().filter(|one| one.kind == MovementKind::Held);
        let first = lines.clone().next().ok_or(StockError::NotAHold)?;
        let expired = lines.find(|one| final_end(ends, one.line).is_none());
        let end = match expired {
            Some(_) => None,
            None => final_end(ends, first.line),
        };
        Ok(StockError::Refused(Refusal::HoldEnded {
            line: expired.unwrap_or(first).line,
            // Whether a due line has been ended does not matter.
            state: end.map_or("expired", |end| state(&end.kind)),
            by: end.map(|end| end.operation),
        }))
    }

    fn line(
        &self,
        (sku, warehouse): (Sku, Warehouse),
        line: i64,
        units: i64,
        open: Option<i64>,
    ) -> Line {
        let how = match self.confirm {
            Some(late) => How::Confirm {
                units,
                late: late == Late::Allowed,
            },
            None => How::Release,
        };
        let change = Change::End(Ending {
            hold: self.hold,
            line,
            how,
            open,
        });
        Line::new(sku, warehouse, change)
    }
}

//! A plan that is being made: one operation after the other, all lines of it or none.

use std::collections::{HashMap, HashSet};

use tokio::time::Instant;

use super::recorded::Identities;
use super::rules::{self, State, Step};
use super::{Decision, LAST_MOMENT, Plan, PlannedLevel, PlannedMovement, Recorded, Snapshot};
use crate::ports::{AttemptOutcome, ChangedLevel, Refusal};
use crate::stock::{Change, How, Line, NEVER, Operation, Sku, StockLevel, Warehouse};

/// A plan that is being made.
pub(super) struct Planning<'a, 's> {
    snapshot: Option<&'s Snapshot>,
    recorded: Recorded<'s>,
    sold: Identities<'a>,
    /// What the movements have left.
    state: State,
    /// The place of each level in the plan.
    places: HashMap<(&'a Sku, &'a Warehouse), usize>,
    plan: Plan<'a>,
}

impl<'a, 's> Planning<'a, 's> {
    pub(super) fn new(snapshot: Option<&'s Snapshot>) -> Self {
        let recorded = snapshot.and_then(|snapshot| snapshot.recorded.as_deref());
        Self {
            snapshot,
            recorded: Recorded::new(recorded.unwrap_or_default()),
            sold: Identities::default(),
            state: snapshot.map_or_else(State::default, State::new),
            places: HashMap::new(),
            plan: Plan {
                levels: Vec::new(),
                movements: Vec::new(),
                ended: Vec::new(),
                decisions: Vec::new(),
            },
        }
    }

    pub(super) fn plan(
        mut self,
        operations: impl IntoIterator<Item = &'a Operation>,
        now: Instant,
    ) -> Plan<'a> {
        let operations: Vec<_> = operations.into_iter().collect();
        // One that is alone waits for no other, and its attempt expires with it.
        let too_soon = (operations.len() > 1).then(|| now + LAST_MOMENT);
        for operation in operations {
            let decision = if let Some(movement) = self.recorded.find(operation) {
                Decision::Final(AttemptOutcome::Recorded(Box::new(movement.clone())))
            } else if self.sold.has(operation) {
                Decision::AfterMovements(AttemptOutcome::Duplicate)
            } else if too_soon.is_some_and(|too_soon| operation.deadline < too_soon) {
                Decision::Final(AttemptOutcome::Conflict)
            } else {
                self.decide(operation)
            };
            self.plan.decisions.push(decision);
        }
        self.plan
    }

    /// All lines, or nothing. Holds end first: what they give back is there for the other lines.
    fn decide(&mut self, operation: &'a Operation) -> Decision {
        let mut steps = Vec::with_capacity(operation.lines.len());
        let mut refusals = Vec::new();
        let mut lines: Vec<_> = operation.lines.iter().enumerate().collect();
        lines.sort_by_key(|(_, line)| !matches!(line.change, Change::End(_)));
        for (place, line) in lines {
            match self.step(line) {
                Ok(step) => {
                    let before = rules::find(&self.state.levels, line).cloned();
                    if let Some(after) = &step.after {
                        rules::put(&mut self.state.levels, after.clone());
                    }
                    if let Some((sale, units)) = step.returned {
                        *self.state.returned.entry(sale).or_default() += units;
                    }
                    steps.push((place, step, before));
                }
                Err(outcome) => refusals.push((place, outcome)),
            }
        }
        if !steps.is_empty() {
            // What is left of a sale comes back, even if nothing is left of some of its lines.
            refusals.retain(|(place, outcome)| !is_spent(&operation.lines[*place], outcome));
        }
        if !refusals.is_empty() {
            for (place, step, before) in steps.into_iter().rev() {
                rules::restore(&mut self.state.levels, &operation.lines[place], before);
                if let Some((sale, units)) = step.returned {
                    *self.state.returned.entry(sale).or_default() -= units;
                }
            }
            let outcome = self.refusal(operation, refusals);
            return if self.plan.movements.is_empty() {
                Decision::Final(outcome)
            } else {
                Decision::AfterMovements(outcome)
            };
        }
        self.sold.add(operation);
        let first = self.plan.movements.len();
        let ledger_lines = ledger_lines(operation, steps.iter().map(|(place, ..)| *place));
        let mut changed = None;
        for ((place, step, before), line) in steps.into_iter().zip(ledger_lines) {
            changed = self.record(operation, (place, line), step, before);
        }
        let movements = self.plan.movements[first..].iter_mut();
        if let Some(lowest) = movements.min_by_key(|one| one.ledger_line) {
            lowest.has_key = true;
        }
        if operation.lines.len() > 1 {
            return Decision::Movements(first..self.plan.movements.len());
        }
        Decision::Movement(first, changed)
    }

    /// The refusal of an operation of which these lines refuse.
    fn refusal(
        &self,
        operation: &Operation,
        mut refusals: Vec<(usize, AttemptOutcome)>,
    ) -> AttemptOutcome {
        if operation.lines.len() == 1 {
            let outcome = refusals.pop().map(|(_, outcome)| outcome);
            return self.of_the_ledger(outcome.unwrap_or(AttemptOutcome::Conflict));
        }
        if refusals
            .iter()
            .any(|(_, outcome)| *outcome == AttemptOutcome::Conflict)
        {
            return AttemptOutcome::Conflict;
        }
        AttemptOutcome::RefusedLines(refusals)
    }

    fn step(&self, line: &Line) -> Result<Step, AttemptOutcome> {
        match self.snapshot {
            Some(_) => rules::step(line, &self.state),
            None => rules::unread_step(line),
        }
    }

    /// A refusal for units says whether the ledger was asked.
    fn of_the_ledger(&self, outcome: AttemptOutcome) -> AttemptOutcome {
        let asked = self.snapshot.is_some_and(|one| one.recorded.is_some());
        match outcome {
            AttemptOutcome::Insufficient { available } if asked => {
                AttemptOutcome::Unrecorded { available }
            }
            other => other,
        }
    }

    /// Adds the movement of a line, and returns what it makes of its level. `before`: the level before it.
    fn record(
        &mut self,
        operation: &'a Operation,
        (place, ledger_line): (usize, i64),
        step: Step,
        before: Option<StockLevel>,
    ) -> Option<Box<ChangedLevel>> {
        let line = &operation.lines[place];
        let next = self.plan.levels.len();
        let place_of_level = (&line.sku, &line.warehouse);
        let number = *self.places.entry(place_of_level).or_insert(next);
        let created = self.snapshot.is_some() && before.is_none();
        if number == next {
            self.plan.levels.push(PlannedLevel {
                line,
                delta: 0,
                held_delta: 0,
                available_delta: 0,
                backorder_limit: None,
                movements: 0,
                read: before,
                is_new: created,
            });
        }
        let level = &mut self.plan.levels[number];
        level.delta += step.delta;
        level.held_delta += step.held_delta;
        level.available_delta += step.available_delta;
        level.backorder_limit = step.backorder_limit.or(level.backorder_limit);
        level.movements += 1;
        self.plan.movements.push(PlannedMovement {
            operation,
            line: place,
            ledger_line,
            has_key: false,
            level: number,
            number: level.movements,
            kind: step.kind.clone(),
            delta: step.delta,
            held_delta: step.held_delta,
            available_delta: level.available_delta,
            read_version: step.read_version,
            reverses: step.reverses,
            returned: step.returned.map(|(_, units)| units),
            expires_at: step.expires_at,
        });
        self.end_hold(line, &step);
        let is_sale = matches!(line.change, Change::Deduct(_));
        step.after.filter(|_| !is_sale).map(|level| {
            Box::new(ChangedLevel {
                created,
                returned: step.returned.map(|(_, units)| units),
                delta: step.delta,
                held_delta: step.held_delta,
                expires_at: step.expires_at,
                level,
            })
        })
    }
}

impl Planning<'_, '_> {
    /// The line of a hold that `line` has ended is open no more.
    fn end_hold(&mut self, line: &Line, step: &Step) {
        let Change::End(end) = &line.change else {
            return;
        };
        let of_hold = (end.hold, end.line);
        self.state.ends.insert(of_hold, step.kind.clone());
        if self.state.holds.remove(&of_hold).is_some() {
            let is_expiry = end.how == How::Expire;
            let due_at = if is_expiry { self.state.now } else { NEVER };
            self.plan.ended.push((of_hold, due_at));
        }
    }
}

/// The lines in the ledger of lines of the operation with these places: the one that a return or the end of a
/// hold has, and for the others the lowest numbers that are left.
fn ledger_lines(operation: &Operation, places: impl Iterator<Item = usize>) -> Vec<i64> {
    let given = operation.lines.iter().filter_map(Line::given_number);
    let given: HashSet<_> = given.collect();
    let mut left = (0..).filter(|number| !given.contains(number));
    let number = |place: usize| {
        let given = operation.lines[place].given_number();
        given.or_else(|| left.next()).unwrap_or_default()
    };
    places.map(number).collect()
}

/// Whether the line asks for all units that are left of a line of a sale, and none are.
fn is_spent(line: &Line, outcome: &AttemptOutcome) -> bool {
    let asks_for_all = matches!(&line.change, Change::Return(one) if one.quantity.is_none());
    asks_for_all
        && matches!(
            outcome,
            AttemptOutcome::Refused(Refusal::ExceedsSale { .. })
        )
}

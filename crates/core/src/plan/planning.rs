//! A plan that is being made: one operation after the other, all lines of it or none.

use std::collections::{HashMap, HashSet};

use tokio::time::Instant;

use super::recorded::Identities;
use super::rules::{self, Level, Step};
use super::{Decision, LAST_MOMENT, Plan, PlannedLevel, PlannedMovement, Recorded, Snapshot};
use crate::ports::{AttemptOutcome, ChangedLevel};
use crate::stock::{Change, How, Line, NEVER, Operation, Refusal, Sku, StockLevel, Warehouse};

/// A plan that is being made.
pub(super) struct Planning<'a, 's> {
    snapshot: Option<&'s Snapshot>,
    recorded: Recorded<'s>,
    sold: Identities<'a>,
    /// What lines are decided on, as those before them have left it.
    state: Snapshot,
    /// The place of each level in the plan.
    places: HashMap<(&'a Sku, &'a Warehouse), usize>,
    plan: Plan<'a>,
}

impl<'a, 's> Planning<'a, 's> {
    pub(super) fn new(snapshot: &'s Snapshot) -> Self {
        let recorded = snapshot.recorded.as_deref();
        let state = Snapshot {
            levels: snapshot.levels.clone(),
            recorded: None,
            returned: snapshot.returned.clone(),
            holds: snapshot.holds.clone(),
            ends: snapshot.ends.clone(),
            now: snapshot.now,
        };
        Self {
            snapshot: Some(snapshot),
            recorded: Recorded::new(recorded.unwrap_or_default()),
            ..Self::on(state)
        }
    }

    pub(super) fn unread(clock: i64) -> Self {
        Self::on(Snapshot {
            now: clock,
            ..Snapshot::default()
        })
    }

    fn on(state: Snapshot) -> Self {
        Self {
            snapshot: None,
            recorded: Recorded::new(&[]),
            sold: Identities::default(),
            state,
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
        for turn in 0..TURNS {
            for (place, line) in operation.lines.iter().enumerate() {
                if order(line) == turn
                    && let Err(outcome) = self.take(place, line, &mut steps)
                {
                    refusals.push((place, outcome));
                }
            }
        }
        // A hold that has ended is the reason, even if other lines are short then.
        refusals.sort_by_key(|(place, _)| (order(&operation.lines[*place]) > 0, *place));
        if !steps.is_empty() {
            // What is left of a sale comes back, even if nothing is left of some of its lines.
            refusals.retain(|(place, outcome)| !is_spent(&operation.lines[*place], outcome));
        }
        if !refusals.is_empty() {
            for Taken {
                level,
                step,
                before,
                ..
            } in steps.into_iter().rev()
            {
                rules::restore(&mut self.state.levels, level, before);
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
        number(operation, &mut steps);
        let mut changed = None;
        for taken in steps {
            changed = self.record(operation, taken);
        }
        let movements = self.plan.movements[first..].iter_mut();
        if let Some(lowest) = movements.min_by_key(|one| one.ledger_line) {
            lowest.has_key = true;
        }
        if operation.as_deduction().is_some() || changed.is_some() {
            return Decision::Movement(first, changed);
        }
        Decision::Movements(first..self.plan.movements.len())
    }

    /// Takes a line from its level, or from those of its warehouses that have the units.
    fn take(
        &mut self,
        place: usize,
        line: &'a Line,
        steps: &mut Vec<Taken<'a>>,
    ) -> Result<(), AttemptOutcome> {
        if line.others.is_empty() {
            let level = (&line.sku, &line.warehouse);
            return self.take_from(level, &line.change, place, steps);
        }
        if self.snapshot.is_none() {
            return Err(AttemptOutcome::Conflict);
        }
        for (level, change) in rules::choose(line, &self.state)? {
            self.take_from(level, &change, place, steps)?;
        }
        Ok(())
    }

    fn take_from(
        &mut self,
        level: Level<'a>,
        change: &Change,
        place: usize,
        steps: &mut Vec<Taken<'a>>,
    ) -> Result<(), AttemptOutcome> {
        let step = match self.snapshot {
            Some(_) => rules::step(level, change, &self.state)?,
            None => rules::unread_step(change, self.state.now)?,
        };
        let before = rules::find(&self.state.levels, level).cloned();
        if let Some(after) = &step.after {
            rules::put(&mut self.state.levels, after.clone());
        }
        if let Some((sale, units)) = step.returned {
            *self.state.returned.entry(sale).or_default() += units;
        }
        steps.push(Taken {
            place,
            ledger_line: 0,
            level,
            step,
            before,
        });
        Ok(())
    }

    /// The refusal of an operation of which these lines refuse.
    fn refusal(
        &self,
        operation: &Operation,
        mut refusals: Vec<(usize, AttemptOutcome)>,
    ) -> AttemptOutcome {
        if operation.is_single() {
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

    /// Adds the movement of a line. Returns what it makes of its level, if that is the only one and was read.
    fn record(&mut self, operation: &'a Operation, taken: Taken<'a>) -> Option<Box<ChangedLevel>> {
        let Taken {
            place,
            ledger_line,
            level: (sku, warehouse),
            step,
            before,
        } = taken;
        let line = &operation.lines[place];
        let next = self.plan.levels.len();
        let number = *self.places.entry((sku, warehouse)).or_insert(next);
        let created = self.snapshot.is_some() && before.is_none();
        if number == next {
            self.plan.levels.push(PlannedLevel {
                sku,
                warehouse,
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
        let level = step.after.filter(|_| operation.is_single() && !is_sale)?;
        let movement = self.plan.movements.last()?;
        let made = movement.made(&self.plan.levels[number], level.available());
        Some(Box::new(ChangedLevel {
            level,
            created,
            made,
        }))
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

/// What a line takes from a level.
#[derive(Debug)]
struct Taken<'a> {
    /// The place of the line in its operation.
    place: usize,
    ledger_line: i64,
    level: Level<'a>,
    step: Step,
    /// The level before it.
    before: Option<StockLevel>,
}

/// How many turns there are.
const TURNS: u8 = 3;

/// In which turn a line is decided: what holds give back is there for the others; and a line that has a choice
/// leaves the units of the others.
fn order(line: &Line) -> u8 {
    match line.change {
        Change::End(_) => 0,
        _ if line.others.is_empty() => 1,
        _ => 2,
    }
}

/// Numbers the movements of an operation: a return and the end of a hold have a number, and the others get the
/// lowest that are left, in the order of the lines.
fn number(operation: &Operation, steps: &mut [Taken<'_>]) {
    if let ([line], [taken]) = (&*operation.lines, &mut *steps) {
        // Almost all operations, so this makes no collection.
        taken.ledger_line = line.given_number().unwrap_or_default();
        return;
    }
    let given = operation.lines.iter().filter_map(Line::given_number);
    let given: HashSet<_> = given.collect();
    let mut left = (0..).filter(|number| !given.contains(number));
    let mut in_order: Vec<_> = steps.iter_mut().collect();
    in_order.sort_by_key(|taken| taken.place);
    for taken in in_order {
        let given = operation.lines[taken.place].given_number();
        taken.ledger_line = given.or_else(|| left.next()).unwrap_or_default();
    }
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

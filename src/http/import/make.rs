//! Makes the rows of a chunk, or finds out what would become of them.

use std::collections::{HashMap, HashSet};

use futures_util::{StreamExt as _, stream};

use super::super::{Api, ApiError};
use super::{Answer, Answered, REPLAYED, Row};
use stocklock_core::level_service::{Changed, Levels, preview};
use stocklock_core::stock::{Change, Count, CountedFrom, Operation, StockError};

/// How many rows of an import are in progress at the same time, if the replica may have many writes.
const IN_PROGRESS: usize = 256;

/// How many levels a dry run can remember.
const MAX_PREVIEW: usize = 100_000;

/// The rows to make, and the answers to the others.
fn split(chunk: Vec<Row>) -> (Vec<(u64, Operation)>, Vec<Answered>) {
    let (mut rows, mut answers) = (Vec::with_capacity(chunk.len()), Vec::new());
    for Row { number, todo } in chunk {
        match todo {
            Ok(row) => rows.push((number, row)),
            Err(answer) => answers.push((number, answer)),
        }
    }
    (rows, answers)
}

/// Makes the rows of a chunk. Those of one level are made in their order, unless all of them add units.
/// After a row that may be made later, only the rows in progress are made: made after later rows of its level, it
/// would undo them.
pub(super) async fn make(api: &Api, chunk: Vec<Row>) -> Vec<Answered> {
    let (rows, mut answers) = split(chunk);
    let most = api.config.limits.max_in_flight as usize / 8;
    let mut rows = rows.into_iter().peekable();
    while rows.peek().is_some() {
        let mut levels = HashMap::new();
        let together = std::iter::from_fn(|| {
            rows.next_if(|(_, row)| {
                let line = row.first();
                let adds = matches!(line.change, Change::Adjust(units) if units > 0);
                let level = (line.sku.clone(), line.warehouse.clone());
                match levels.insert(level, adds) {
                    None => true,
                    Some(all_add) => all_add && adds,
                }
            })
        });
        let together: Vec<_> = together.collect();
        let row = |(number, row)| async move { (number, make_row(api, row).await) };
        let made = stream::iter(together.into_iter().map(row));
        let made = made.buffer_unordered(most.clamp(1, IN_PROGRESS));
        let made: Vec<Answered> = made.collect().await;
        let is_left = |answer: &Answer| answer.as_ref().is_err_and(ApiError::is_temporary);
        let ends = made.iter().any(|(_, answer)| is_left(answer));
        answers.extend(made);
        if ends {
            break;
        }
    }
    answers.sort_unstable_by_key(|(number, _)| *number);
    answers
}

async fn make_row(api: &Api, row: Operation) -> Answer {
    let (id, code) = (row.id, code(&row));
    let row = Operation {
        deadline: api.deadline(),
        is_row: true,
        ..row
    };
    let made = api.levels.change(row).await;
    let version = |made: Changed| Some(made.level.filter(|_| !made.replayed)?.version);
    answer(code, made.map(version)).map_err(|error| ApiError::of_operation(id, error))
}

/// Finds out what would become of the rows of a chunk.
pub(super) async fn dry_run(
    api: &Api,
    levels: &mut Levels,
    chunk: Vec<Row>,
) -> Result<Vec<Answered>, ApiError> {
    let (rows, mut answers) = split(chunk);
    let (numbers, rows): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
    let names = rows.iter().flat_map(Operation::levels);
    let names = names.map(|(sku, warehouse)| (sku.clone(), warehouse.clone()));
    let names: HashSet<_> = names.filter(|name| !levels.contains_key(name)).collect();
    if levels.len() + names.len() > MAX_PREVIEW {
        let detail = "a dry run can check 100,000 levels; the rows after these were not checked";
        return Err(ApiError::unprocessable("too-many-rows", detail));
    }
    let names: Vec<_> = names.into_iter().collect();
    for level in api.store.levels_among(&names).await? {
        levels.insert((level.sku.clone(), level.warehouse.clone()), level);
    }
    let made = preview(levels, &rows).into_iter().zip(&rows);
    let made = made.map(|(made, row)| answer(code(row), made).map_err(ApiError::from));
    answers.extend(numbers.into_iter().zip(made));
    answers.sort_unstable_by_key(|(number, _)| *number);
    Ok(answers)
}

/// What a row that is made is answered.
fn code(row: &Operation) -> &'static str {
    match row.first().change {
        Change::Count(Count {
            from: CountedFrom::Absent,
            ..
        }) => "created",
        Change::Count(_) => "counted",
        _ => "adjusted",
    }
}

fn answer(
    code: &'static str,
    made: Result<Option<i64>, StockError>,
) -> Result<(&'static str, Option<i64>), StockError> {
    made.map(|version| (version.map_or(REPLAYED, |_| code), version))
}

//! Tests of the order in which operations are taken, and of the bounds of a batch.

use super::*;
use crate::ports::AttemptOutcome;
use crate::stock::{Scope, Setting};

mod rows;

const MAX_LINES: usize = 256;
const MAX_IN_FLIGHT: usize = 2;

fn queues() -> Queues {
    Queues::new(MAX_LINES, MAX_IN_FLIGHT)
}

/// An operation that takes units of these SKUs, which have blanks between them.
fn operation(skus: &str) -> Operation {
    let lines = skus.split(' ').flat_map(|sku| Operation::sample(sku).lines);
    Operation {
        lines: lines.collect(),
        ..Operation::sample("a")
    }
}

fn text(waiting: &Waiting) -> String {
    let lines = waiting.operation.lines.iter();
    lines
        .map(|line| line.sku.as_str())
        .collect::<Vec<_>>()
        .join(" ")
}

fn texts(batch: &Batch) -> Vec<String> {
    batch.operations.iter().map(text).collect()
}

impl Queues {
    fn add(&mut self, operation: Operation) {
        let (answer, _) = oneshot::channel::<Result<AttemptOutcome, _>>();
        self.push(operation, Caller::new(answer));
    }

    fn add_all<'a>(&mut self, operations: impl IntoIterator<Item = &'a str>) {
        operations
            .into_iter()
            .for_each(|skus| self.add(operation(skus)));
    }

    /// Takes the next batch, which must have these operations.
    #[track_caller]
    fn expect<const N: usize>(&mut self, expected: [&str; N]) -> Batch {
        let batch = self.take().expect("a batch");
        assert_eq!(texts(&batch), expected);
        batch
    }

    fn end(&mut self, batch: Batch) {
        for number in batch.levels {
            self.release(number, batch.of_rows);
        }
        if batch.counts {
            self.end_count(batch.of_rows);
        }
    }

    /// Nothing waits, and nothing is in flight.
    fn assert_empty(&self) {
        assert!(self.numbers.is_empty() && self.waiting.is_empty() && self.ready.is_idle());
        assert_eq!((self.claimed, self.in_flight), (0, 0));
        assert_eq!(self.unused.len(), self.levels.len());
    }
}

#[test]
fn operations_of_one_level_share_a_batch_in_their_order() {
    let mut queues = queues();
    queues.add_all(["a"]);
    let first = queues.expect(["a"]);
    queues.add_all(["a", "b", "a a", "a"]);
    // A claimed level is not taken twice.
    let other = queues.expect(["b"]);
    assert!(queues.take().is_none());
    assert!(!first.counts && !other.counts);
    queues.end(first);
    let next = queues.expect(["a", "a a", "a"]);
    queues.end(next);
    queues.end(other);
    queues.assert_empty();
}

#[test]
fn nothing_overtakes_an_order_that_waits() {
    let mut queues = queues();
    queues.add_all(["a"]);
    let first = queues.expect(["a"]);
    // The order waits for `a`, and `b` waits for the order.
    queues.add_all(["a b c", "b", "d", "c d"]);
    let other = queues.expect(["d"]);
    assert!(queues.take().is_none());
    queues.end(first);
    let order = queues.expect(["a b c", "b"]);
    queues.end(other);
    assert!(queues.take().is_none());
    queues.end(order);
    let last = queues.expect(["c d"]);
    queues.end(last);
    queues.assert_empty();
}

#[test]
fn batch_has_at_most_256_lines() {
    let mut queues = queues();
    let wide = vec!["a"; 100].join(" ");
    queues.add_all([&*wide; 3]);
    queues.add_all(["a", "b"]);
    let batch = queues.expect([&*wide, &*wide]);
    // The third has no room, and nothing takes its place.
    assert!(queues.take().is_some_and(|batch| texts(&batch) == ["b"]));
    queues.end(batch);
    let batch = queues.expect([&*wide, "a"]);
    queues.end(batch);
    // An operation that is larger than a batch is taken alone.
    queues.add_all([&*vec!["a"; 300].join(" ")]);
    assert!(queues.take().is_some());
}

#[test]
fn batch_has_at_most_128_levels() {
    let mut queues = queues();
    let names: Vec<_> = (0..130).map(|number| format!("s{number}")).collect();
    queues.add_all(names[1..].iter().map(|name| &**name));
    queues.add(operation(&format!("{} {}", names[0], names[1])));
    let batch = queues.take().expect("a batch");
    assert_eq!((batch.levels.len(), batch.operations.len()), (128, 128));
    assert_eq!(queues.take().map(|batch| batch.levels.len()), Some(1));
    assert!(queues.take().is_none());
}

#[test]
fn batch_does_not_count_while_few_levels_are_claimed() {
    let mut queues = queues();
    let alone = ["a", "b", "c"].map(|level| {
        queues.add_all([level]);
        queues.expect([level])
    });
    assert!(alone.iter().all(|batch| !batch.counts));
    queues.add_all(["d e"]);
    let first = queues.expect(["d e"]);
    // Five levels are claimed.
    queues.add_all(["f"]);
    let second = queues.expect(["f"]);
    assert!(first.counts && second.counts);
    queues.add_all(["g", "h i"]);
    assert!(queues.take().is_none());
    for batch in alone {
        queues.end(batch);
    }
    // Three are claimed: one level can be made alone, but no order.
    let alone = queues.expect(["g"]);
    assert!(!alone.counts && queues.take().is_none());
    queues.end(first);
    let order = queues.expect(["h i"]);
    for batch in [alone, second, order] {
        queues.end(batch);
    }
    queues.assert_empty();
}

#[test]
fn operation_that_is_put_back_comes_before_younger_ones() {
    let mut queues = queues();
    queues.add_all(["a b", "b"]);
    let mut batch = queues.expect(["a b", "b"]);
    queues.add_all(["a", "b c", "c"]);
    let order = batch.operations.swap_remove(0);
    queues.end(batch);
    // Ready now, and no longer when the order is back.
    assert_eq!(queues.ready.of(false).len(), 2);
    queues.put_back(order);
    assert_eq!(queues.ready.of(false).len(), 1);
    let batch = queues.expect(["a b", "a", "b c", "c"]);
    queues.end(batch);
    queues.assert_empty();
}

#[test]
fn operation_with_two_misses_is_alone() {
    let mut queues = queues();
    queues.add_all(["a b", "c"]);
    let mut batch = queues.expect(["a b", "c"]);
    let mut order = batch.operations.swap_remove(0);
    order.caller.misses = MISSES;
    queues.put_back(order);
    queues.add_all(["d"]);
    queues.end(batch);
    let order = queues.expect(["a b"]);
    assert!(!order.counts);
    let other = queues.expect(["d"]);
    for batch in [order, other] {
        queues.end(batch);
    }
    queues.assert_empty();
}

#[test]
fn level_that_is_set_shares_no_batch() {
    let mut queues = queues();
    let mut set = operation("b");
    set.lines[0].change = Change::Set(Setting {
        on_hand: Some(1),
        backorder_limit: None,
        precondition: None,
        scope: Scope::Level,
    });
    queues.add_all(["a"]);
    queues.add(set);
    queues.add_all(["b", "c"]);
    let first = queues.expect(["a"]);
    let set = queues.expect(["b"]);
    let last = queues.expect(["c"]);
    assert!(queues.take().is_none());
    queues.end(set);
    let next = queues.expect(["b"]);
    for batch in [first, last, next] {
        queues.end(batch);
    }
    queues.assert_empty();
}

#[test]
fn strategies_share_no_batch() {
    let mut queues = queues();
    let other = |name| Operation {
        strategy: name,
        ..operation("a")
    };
    queues.add(other(None));
    queues.add(other(Some("redis-lua")));
    queues.add(other(None));
    queues.add(other(Some("group-commit")));
    let batch = queues.expect(["a", "a", "a"]);
    queues.end(batch);
    let batch = queues.expect(["a"]);
    assert_eq!(batch.strategy, Some("group-commit"));
}

#[tokio::test(start_paused = true)]
async fn operations_that_wait_too_long_leave_all_queues() {
    let mut queues = queues();
    queues.add_all(["a"]);
    let first = queues.expect(["a"]);
    queues.add_all(["a b", "a"]);
    let early = Instant::now();
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    queues.add_all(["b", "a b"]);
    let number = first.levels[0];
    assert_eq!(
        queues
            .pop_before(number, early)
            .as_ref()
            .map(text)
            .as_deref(),
        Some("a b")
    );
    // Its other level is free.
    let other = queues.expect(["b"]);
    assert_eq!(
        queues
            .pop_before(number, early)
            .as_ref()
            .map(text)
            .as_deref(),
        Some("a")
    );
    assert!(queues.pop_before(number, early).is_none());
    queues.end(first);
    queues.end(other);
    assert!(queues.pop_ready_before(early).is_none());
    assert!(queues.pop_ready_before(Instant::now()).is_some());
    queues.assert_empty();
}

/// The rule, by a scan of all that wait.
#[derive(Default)]
struct Rule {
    waiting: Vec<Vec<u32>>,
    claimed: Vec<u32>,
}

impl Rule {
    fn take(&mut self) -> Vec<Vec<u32>> {
        let (mut taken, mut passed_over, mut own) =
            (Vec::new(), self.claimed.clone(), Vec::<u32>::new());
        self.waiting.retain(|levels| {
            if levels.iter().any(|level| passed_over.contains(level)) {
                passed_over.extend(levels.iter());
                return true;
            }
            own.extend(levels.iter());
            taken.push(levels.clone());
            false
        });
        self.claimed.extend(own);
        taken
    }
}

#[test]
fn random_operations_are_taken_by_the_rule() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        // No bound but the claims is reached.
        let mut queues = Queues::new(MAX_LINES, usize::MAX);
        let (mut rule, mut flying) = (Rule::default(), Vec::<Batch>::new());
        for _ in 0..60 {
            let mut levels: Vec<_> = (0..random.u32(1..4)).map(|_| random.u32(0..6)).collect();
            queues.add(operation(
                &levels
                    .iter()
                    .map(u32::to_string)
                    .collect::<Vec<_>>()
                    .join(" "),
            ));
            levels.sort_unstable();
            levels.dedup();
            rule.waiting.push(levels);
            if random.bool() {
                let expected = rule.take();
                let batch = queues.take();
                let taken = batch.as_ref().map_or(0, |batch| batch.operations.len());
                assert_eq!(taken, expected.len(), "seed {seed}");
                flying.extend(batch);
            }
            if random.bool() && !flying.is_empty() {
                let batch = flying.swap_remove(random.usize(..flying.len()));
                let name = |number: &Number| queues.levels[*number].name.0.as_str().parse();
                let ended: Vec<u32> = batch.levels.iter().map(|it| name(it).unwrap()).collect();
                rule.claimed.retain(|level| !ended.contains(level));
                queues.end(batch);
            }
        }
        while let Some(batch) = queues.take().or_else(|| flying.pop()) {
            queues.end(batch);
        }
        queues.assert_empty();
    }
}

//! The verdict of one run in words, for a reader who sees the race for the first time.

use serde::Serialize;

use super::plan::RacePlan;
use super::replica_client::Audit;
use super::tally::Answers;
use super::verdict::Verdict;
use stocklock_core::strategy::Strategy;

/// What happened in a run, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Words {
    /// The verdict as a sentence.
    pub headline: String,
    /// The figures that it follows from.
    pub sentence: String,
    /// Why, from the strategy's own file.
    pub why: String,
}

impl Words {
    /// Describes a run that was judged.
    pub(super) fn new(
        plan: &RacePlan,
        strategy: Strategy,
        verdict: Verdict,
        answers: &Answers,
        audit: &Audit,
        findings: &[String],
    ) -> Self {
        let sold = answers.sold * plan.units_of_order();
        let (stock, left) = (grouped(plan.units_in_stock()), grouped(audit.on_hand));
        let skus = match plan.lines {
            1 => String::new(),
            lines => format!(" of {lines} SKUs"),
        };
        let figures = format!("{stock} in stock{skus}, {} sold", grouped(sold));
        let (headline, sentence) = match verdict {
            Verdict::Exact => (
                format!("{strategy} sold exactly what was there."),
                format!("{figures}, {left} left: answers, level and ledger{skus} agree."),
            ),
            Verdict::NotCaught => (
                format!("{strategy} lost nothing this time."),
                format!(
                    "{figures}, {left} left. It promises nothing: start it again, with more buyers or a \
                     longer round trip."
                ),
            ),
            Verdict::NotProven => (
                format!("Nothing is proven about {strategy}."),
                format!(
                    "{figures}, {left} left, but {} orders failed: {}.",
                    grouped(answers.failed),
                    answers.failures.join("; ")
                ),
            ),
            Verdict::Caught | Verdict::Broken if audit.oversold > 0 => (
                format!("{strategy} oversold {}.", units(audit.oversold)),
                format!(
                    "{figures}: {}. {}",
                    unserved(audit.oversold, plan.units_of_order()),
                    noticed(audit)
                ),
            ),
            Verdict::Caught | Verdict::Broken if audit.drift != 0 => (
                format!("{strategy} lost count of {}.", units(audit.drift.abs())),
                format!("{figures}, but the level shows {left} left. It noticed nothing."),
            ),
            Verdict::Caught | Verdict::Broken => (
                format!("{strategy} broke its promise."),
                format!("{figures}, {left} left. {}.", findings.join("; ")),
            ),
        };
        let card = strategy.card();
        let why = match verdict {
            Verdict::Exact => ["Guarantees", "Costs"],
            Verdict::NotProven | Verdict::Broken => ["Guarantees", "Fails when"],
            Verdict::Caught | Verdict::NotCaught => ["Fails when", "Use when"],
        };
        let why = why.map(|heading| format!("{heading}: {}", card.line(heading)));
        Self {
            headline,
            sentence,
            why: why.join(" "),
        }
    }
}

/// Who does not get units that never existed.
fn unserved(oversold: i64, quantity: i64) -> String {
    match (oversold, quantity) {
        (1, 1) => "one buyer will not get theirs".to_owned(),
        (buyers, 1) => format!("{} buyers will not get theirs", grouped(buyers)),
        (sold, _) => format!("{} do not exist", units(sold)),
    }
}

/// What the level shows of it.
fn noticed(audit: &Audit) -> String {
    let left = grouped(audit.on_hand);
    match audit.on_hand {
        0.. => format!("The level still shows {left} left and noticed nothing."),
        _ => format!("The level shows {left}."),
    }
}

fn units(count: i64) -> String {
    match count {
        1 => "one unit".to_owned(),
        _ => format!("{} units", grouped(count)),
    }
}

/// The digits in groups of three.
fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::from(if number < 0 { "-" } else { "" });
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a run of 10 units that sold `sold` orders.
    fn words(strategy: Strategy, verdict: Verdict, sold: i64, left: i64, quantity: i64) -> Words {
        let mut plan = RacePlan::new(10, 20, 1);
        plan.quantity = quantity;
        let answers = Answers {
            sold,
            failed: 2,
            failures: vec!["500 internal".to_owned()],
            ..Answers::default()
        };
        let units = sold * quantity;
        let audit = Audit {
            on_hand: left,
            drift: left - (10 - units),
            oversold: (units - 10).max(0),
            ..Audit::default()
        };
        Words::new(
            &plan,
            strategy,
            verdict,
            &answers,
            &audit,
            &["it is wrong".to_owned()],
        )
    }

    #[test]
    fn words_give_the_figures() {
        use Strategy::{NoLock, SingleSql};
        use Verdict::{Broken, Caught, Exact, NotCaught, NotProven};
        for (strategy, verdict, sold, left, quantity, expected) in [
            (SingleSql, Exact, 10, 0, 1, "10 in stock, 10 sold, 0 left"),
            (
                NoLock,
                Caught,
                12,
                3,
                1,
                "12 sold: 2 buyers will not get theirs. The level still shows 3",
            ),
            (
                NoLock,
                Caught,
                11,
                -1,
                1,
                "one buyer will not get theirs. The level shows -1.",
            ),
            (NoLock, Caught, 6, 3, 2, "12 sold: 2 units do not exist"),
            (
                NoLock,
                Caught,
                8,
                7,
                1,
                "8 sold, but the level shows 7 left",
            ),
            (NoLock, NotCaught, 10, 0, 1, "It promises nothing"),
            (
                SingleSql,
                NotProven,
                8,
                2,
                1,
                "2 orders failed: 500 internal.",
            ),
            (SingleSql, Broken, 8, 2, 1, "it is wrong."),
        ] {
            let words = words(strategy, verdict, sold, left, quantity);
            assert!(words.sentence.contains(expected), "{words:?}");
        }
    }

    #[test]
    fn reasons_are_from_the_file_of_the_strategy() {
        let words = words(Strategy::NoLock, Verdict::Caught, 12, 3, 1);
        assert_eq!(words.headline, "no-lock oversold 2 units.");
        let card = Strategy::NoLock.card();
        assert!(words.why.contains(card.line("Fails when")), "{words:?}");
        assert!(words.why.contains(card.line("Use when")), "{words:?}");
    }

    #[test]
    fn digits_are_grouped() {
        for (number, expected) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (-1_234_567, "-1,234,567"),
        ] {
            assert_eq!(grouped(number), expected);
        }
    }
}

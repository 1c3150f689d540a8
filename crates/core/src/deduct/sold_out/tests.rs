//! Tests of what is remembered and for how long, in paused time.

use super::*;
use crate::ports::StoreError;

fn short(available: i64) -> AttemptOutcome {
    AttemptOutcome::Unrecorded { available }
}

fn sold(remaining: i64) -> AttemptOutcome {
    AttemptOutcome::Deducted { remaining }
}

impl SoldOut {
    fn answer(&self, mut sending: Sending, answers: &[BatchAnswer]) {
        for answer in answers {
            sending.saw(answer);
        }
        self.answered(sending);
    }
}

#[tokio::test(start_paused = true)]
async fn age_counts_from_before_the_batch_was_sent() {
    let (sold_out, one) = (SoldOut::default(), Operation::sample("a"));
    let sending = sold_out.sending(&one);
    tokio::time::advance(MAX_AGE / 2).await;
    sold_out.answer(sending, &[Ok(short(0))]);
    assert_eq!(sold_out.available(&one), Some(0));
    assert_eq!(sold_out.available(&Operation::sample("b")), None);
    let mut elsewhere = one.clone();
    elsewhere.lines[0].warehouse = Warehouse::parse("north").expect("a name");
    assert_eq!(sold_out.available(&elsewhere), None);
    tokio::time::advance(MAX_AGE / 2).await;
    assert_eq!(sold_out.available(&one), Some(0));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(sold_out.available(&one), None);
    // A batch that takes longer is too old when it ends.
    let sending = sold_out.sending(&one);
    tokio::time::advance(2 * MAX_AGE).await;
    sold_out.answer(sending, &[Ok(short(0))]);
    assert_eq!(sold_out.available(&one), None);
}

#[tokio::test(start_paused = true)]
async fn change_ends_what_is_remembered() {
    let (sold_out, one) = (SoldOut::default(), Operation::sample("a"));
    sold_out.answer(sold_out.sending(&one), &[Ok(short(0))]);
    assert!(sold_out.sending(&one).was_sold_out);
    sold_out.forget(&one.owned_level());
    assert_eq!(sold_out.available(&one), None);
    assert!(!sold_out.sending(&one).was_sold_out);
}

#[tokio::test(start_paused = true)]
async fn last_answer_decides_whether_a_level_is_sold_out() {
    let (sold_out, one) = (SoldOut::default(), Operation::sample("a"));
    for (outcomes, expected) in [
        (vec![sold(1), sold(0), short(0)], Some(0)),
        // Says nothing of the level.
        (vec![AttemptOutcome::Conflict], Some(0)),
        (
            vec![AttemptOutcome::Insufficient { available: -2 }],
            Some(-2),
        ),
        // Too few for one request, but not for another.
        (vec![short(0), short(2)], None),
        (vec![short(0)], Some(0)),
        // Another replica has added units between the two.
        (vec![short(0), sold(4)], None),
        (vec![AttemptOutcome::UnknownSku], None),
    ] {
        let mut answers: Vec<_> = outcomes.into_iter().map(Ok).collect();
        answers.push(Err(StoreError::outcome_unknown("cut")));
        sold_out.answer(sold_out.sending(&one), &answers);
        assert_eq!(sold_out.available(&one), expected, "{answers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn number_of_levels_is_bounded() {
    let sold_out = SoldOut::default();
    let remembered = || -> usize {
        let parts = sold_out.parts.iter();
        parts.map(|part| part.lock().len()).sum()
    };
    let sell_out = |number| {
        let one = Operation::sample(&format!("sku-{number}"));
        sold_out.answer(sold_out.sending(&one), &[Ok(short(0))]);
    };
    (0..4 * PARTS * MAX_LEVELS).for_each(sell_out);
    assert_eq!(remembered(), PARTS * MAX_LEVELS);
    // Those that are too old make room.
    tokio::time::advance(2 * MAX_AGE).await;
    (0..4 * PARTS).for_each(sell_out);
    assert!(remembered() < PARTS * MAX_LEVELS / 2);
    let last = Operation::sample(&format!("sku-{}", 4 * PARTS - 1));
    assert_eq!(sold_out.available(&last), Some(0));
}

//! The ticks of one run: counts of the answers, the level of the SKU, and the waits for locks.

use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::counts::lock_wait_seconds;
use super::event::{Event, Observer, Tick};
use super::replica_client::ReplicaClient;
use super::sale::Sale;
use super::tally::percentiles_ms;
use super::target::Target;
use stocklock_core::strategy::{Strategy, Tier};

/// The time between two ticks, and between two readings of the level.
const TICK: Duration = Duration::from_millis(200);

/// A level that is older is not shown.
const PATIENCE: Duration = Duration::from_secs(2);

/// The time between two readings of the metrics, which are a longer text.
const METRICS: Duration = Duration::from_secs(1);

/// One run, as it is shown while it runs.
pub(super) struct Live<'a> {
    pub(super) sale: &'a Sale,
    pub(super) strategy: Strategy,
    pub(super) targets: &'a [Target],
    pub(super) started: Instant,
    pub(super) observer: Observer<'a>,
    pub(super) shown: Mutex<Shown>,
}

/// What the ticks show besides the counts of the answers.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// Exchanges that earlier ticks have counted, and when the last one was.
    exchanges: usize,
    at: Duration,
    left: Option<i64>,
    lock_waits_ms: Option<f64>,
}

impl Live<'_> {
    /// Ticks until it is dropped.
    pub(super) async fn run(&self) -> Infallible {
        let (never, _, _) = tokio::join!(self.tick_on(), self.read_level(), self.read_waits());
        never
    }

    async fn tick_on(&self) -> Infallible {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            self.tick();
        }
    }

    /// Reports the counts since the tick before.
    pub(super) fn tick(&self) {
        let at = self.started.elapsed();
        let mut shown = self.shown();
        let (answers, mut latencies) = {
            let tally = self.sale.tally();
            let latencies = tally.latencies_from(shown.exchanges).to_vec();
            (tally.answers.clone(), latencies)
        };
        shown.exchanges += latencies.len();
        let seconds = at.saturating_sub(shown.at).as_secs_f64();
        let rate = if seconds > 0.0 {
            latencies.len() as f64 / seconds
        } else {
            0.0
        };
        shown.at = at;
        let [p50_ms, p99_ms] = percentiles_ms(&mut latencies);
        let tick = Tick {
            strategy: self.strategy,
            ms: u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
            sold: answers.sold * self.sale.plan.units_of_order(),
            left: shown.left,
            refused: answers.refused,
            failed: answers.failed,
            retried: answers.retried.total(),
            rate,
            p50_ms,
            p99_ms,
            lock_waits_ms: shown.lock_waits_ms,
        };
        drop(shown);
        (self.observer)(Event::Tick(tick));
    }

    /// Reads the levels from the first replica. While that does not answer, the level is not known.
    async fn read_level(&self) -> Infallible {
        let mut client = ReplicaClient::new(&self.targets[0]);
        loop {
            let answered = timeout(PATIENCE, client.on_hand(&self.sale.skus)).await;
            if answered.is_err() {
                // The connection still waits for the answer.
                client = ReplicaClient::new(&self.targets[0]);
            }
            self.shown().left = answered.ok().and_then(Result::ok);
            sleep(TICK).await;
        }
    }

    /// Reads from the metrics of all replicas how long requests wait for the strategy's lock.
    async fn read_waits(&self) -> Infallible {
        if self.strategy.tier() != Tier::Guarded {
            return std::future::pending().await;
        }
        let mut clients: Vec<_> = self.targets.iter().map(ReplicaClient::new).collect();
        let mut before: Option<(f64, Instant)> = None;
        loop {
            let (mut sum, at) = (Some(0.0), Instant::now());
            for client in &mut clients {
                let seconds = client.metrics(self.strategy, lock_wait_seconds).await.ok();
                sum = sum.zip(seconds).map(|(sum, seconds)| sum + seconds);
            }
            let now = sum.map(|sum| (sum, at));
            if let (Some((earlier, since)), Some((sum, at))) = (before, now) {
                let rate = (sum - earlier) / (at - since).as_secs_f64();
                self.shown().lock_waits_ms = Some(rate * 1_000.0);
            }
            before = now;
            sleep(METRICS).await;
        }
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().expect("nothing panics with it")
    }
}

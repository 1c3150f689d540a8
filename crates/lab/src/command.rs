//! The command `stocklock race`: its flags, and what it does. The service adds the settings of the replicas.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use clap::{Args, ValueEnum};
use tokio_util::sync::CancellationToken;

use crate::delay::DelayedServers;
use crate::description::describe;
use crate::race::{Event, Observer, RacePlan, Report, TableStyle, Target};
use crate::recording::Recording;
use crate::runner::{RaceFailure, RaceSettings, delay, race_on, race_on_new_replicas};

mod progress;

use progress::Progress;

/// The flags of the command, without the settings of the replicas.
#[derive(Debug, Args)]
pub struct RaceArgs {
    #[command(flatten)]
    plan: RacePlan,

    /// A known race instead of --stock, --buyers, --orders and --connections
    #[arg(long, value_enum, conflicts_with_all = ["stock", "buyers", "orders", "connections"])]
    case: Option<Case>,

    /// Use this running replica instead, `http://host:port`; repeatable. All targets must be in lab
    /// mode, share one database, and serve nothing else. Name each replica, not a proxy in front of
    /// them: the race reads /metrics of each target
    #[arg(long = "target", value_name = "URL")]
    targets: Vec<Target>,

    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write a report with charts to this file; it needs no network to open
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Show every column, in up to 170 characters
    #[arg(long)]
    wide: bool,

    /// Show no progress
    #[arg(long)]
    quiet: bool,
}

/// Known races.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Case {
    /// 100 in stock, 10,000 buyers over 256 connections, one order each
    Seckill,
    /// 5,000 in stock, 100 buyers with 50 orders each: enough for all
    Jmeter,
}

/// A race that was run.
#[derive(Debug)]
pub struct Finished {
    report: Report,
    recording: Recording,
}

impl RaceArgs {
    /// Whether the race starts its own replicas.
    #[must_use]
    pub fn starts_replicas(&self) -> bool {
        self.targets.is_empty()
    }

    /// The number of connections of this process: one per buyer, and two for each connection of a replica
    /// through a delaying proxy. `of_a_replica`: its connections to servers.
    #[must_use]
    pub fn connections(&self, of_a_replica: u32) -> u64 {
        let plan = self.plan();
        let delayed = if plan.rtt.is_zero() {
            0
        } else {
            2 * plan.replicas * of_a_replica
        };
        plan.connections() as u64 + u64::from(delayed)
    }

    /// Runs the race. `place` is where the stock is. `migrate` prepares the database for new replicas. Ctrl-C
    /// stops the replicas, a second one kills them.
    ///
    /// # Errors
    /// If no strategy could be run to its end.
    pub async fn run(
        &self,
        place: &str,
        settings: &RaceSettings,
        migrate: impl Future<Output = Result<(), RaceFailure>>,
    ) -> Result<Finished, RaceFailure> {
        let plan = self.plan();
        let progress = Progress::new(self.quiet, settings.log);
        let recording = Mutex::new(Recording::default());
        let observer = |event: Event| {
            progress.show(&event);
            let mut recording = lock(&recording);
            if let Event::Lineup(lineup) = &event {
                *recording = Recording::new(describe(&plan, &self.targets, "", place, lineup));
            }
            recording.observe(&event);
        };
        let stop = CancellationToken::new();
        let racing = async {
            if self.starts_replicas() {
                let prepared = async {
                    let delayed = delay(&plan, &settings.servers).await?;
                    migrate.await?;
                    Ok(delayed)
                };
                self.start(&plan, place, settings, prepared, &observer, &stop)
                    .await
            } else {
                race_on(&plan, &self.targets, &observer, &stop).await
            }
        };
        tokio::pin!(racing);
        let report = tokio::select! {
            report = &mut racing => report?,
            _ = tokio::signal::ctrl_c() => {
                stop.cancel();
                tokio::select! {
                    report = racing => report?,
                    _ = tokio::signal::ctrl_c() => return Err(RaceFailure::Stopped),
                }
            }
        };
        let mut recording = std::mem::take(&mut *lock(&recording));
        let problem = report.stopped.as_deref();
        let state = problem.map_or("finished", |_| "failed");
        recording.end(state, problem, Some(&report));
        Ok(Finished { report, recording })
    }

    async fn start(
        &self,
        plan: &RacePlan,
        place: &str,
        settings: &RaceSettings,
        prepared: impl Future<Output = Result<Option<DelayedServers>, RaceFailure>>,
        observer: Observer<'_>,
        stop: &CancellationToken,
    ) -> Result<Report, RaceFailure> {
        let delayed = tokio::select! {
            delayed = prepared => delayed?,
            () = stop.cancelled() => return Err(RaceFailure::Stopped),
        };
        if !self.quiet {
            (settings.log)(&match &delayed {
                None => format!("racing on {place}"),
                Some(delayed) => format!("racing on {place}; {}", delayed.distance),
            });
        }
        race_on_new_replicas(plan, settings, delayed.as_ref(), observer, stop).await
    }

    /// The table for standard output.
    #[must_use]
    pub fn table(&self, finished: &Finished) -> String {
        finished.report.table(TableStyle {
            wide: self.wide,
            coloured: std::io::stdout().is_terminal(),
        })
    }

    /// Writes the files of `--json` and `--html`.
    ///
    /// # Errors
    /// If one cannot be written.
    pub fn write(&self, finished: &Finished) -> Result<(), RaceFailure> {
        if let Some(file) = &self.json {
            write(
                file,
                "--json",
                &format!("{:#}\n", finished.recording.json()),
            )?;
        }
        if let Some(file) = &self.html {
            write(file, "--html", &finished.recording.html())?;
        }
        Ok(())
    }

    fn plan(&self) -> RacePlan {
        let plan = self.plan.clone();
        let known = match self.case {
            None => return plan,
            Some(Case::Seckill) => RacePlan::seckill(),
            Some(Case::Jmeter) => RacePlan::jmeter(),
        };
        RacePlan {
            stock: known.stock,
            buyers: known.buyers,
            orders: known.orders,
            connections: known.connections,
            ..plan
        }
    }
}

impl Finished {
    /// Whether a strategy broke its promise, or the race did not prove that it kept it.
    #[must_use]
    pub fn broken(&self) -> bool {
        self.report.broken()
    }
}

fn lock(recording: &Mutex<Recording>) -> MutexGuard<'_, Recording> {
    recording.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(file: &Path, flag: &str, text: &str) -> Result<(), RaceFailure> {
    std::fs::write(file, text).map_err(|error| {
        RaceFailure::Other(format!("{flag}: cannot write {}: {error}", file.display()))
    })
}

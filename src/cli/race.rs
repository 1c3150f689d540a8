//! `stocklock race`: starts replicas, runs the race on them, prints the report.

mod args;
mod progress;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

pub(super) use self::args::RaceArgs;
use self::progress::Progress;
use super::{Failure, migrate, print_output, start_logging};
use crate::config::UNCOUNTED_CONNECTIONS;
use crate::descriptors::allow_connections;
use crate::race::{RaceFailure, RaceSettings, race_on};
use crate::telemetry;
use stocklock_lab::TempDir;
use stocklock_lab::delay::ServerUrls;
use stocklock_lab::race::{Event, Observer, Report};
use stocklock_lab::recording::Recording;

impl From<RaceFailure> for Failure {
    fn from(failure: RaceFailure) -> Self {
        match failure {
            RaceFailure::Setting(problem) => Self::Setting(problem),
            other => Self::Other(other.to_string()),
        }
    }
}

/// Runs the race and prints the report.
pub(super) async fn race(args: RaceArgs) -> Result<(), Failure> {
    start_logging(&args.settings.parsed.log)?;
    allow_connections(connections(&args));
    let progress = Progress::new(args.quiet);
    let recording = Mutex::new(None);
    let observer = |event: Event| {
        progress.show(&event);
        if args.html.is_some() {
            record(&recording, &args, &event);
        }
    };
    let stop = CancellationToken::new();
    let racing = async {
        if args.target.is_empty() {
            race_on_new_replicas(&args, &observer, &stop).await
        } else {
            Ok(race_on(&args.plan(), &args.target, &observer, &stop).await?)
        }
    };
    tokio::pin!(racing);
    let report = tokio::select! {
        report = &mut racing => report?,
        _ = tokio::signal::ctrl_c() => {
            stop.cancel();
            // A second Ctrl-C kills the replicas.
            tokio::select! {
                report = racing => report?,
                _ = tokio::signal::ctrl_c() => return Err(RaceFailure::Stopped.into()),
            }
        }
    };
    // The table comes after the lines on standard error, also if both are the same file.
    telemetry::flush();
    let printed = print_output(&report.table(args.table()));
    if let Some(file) = &args.json {
        write(file, "--json", &json(&report, &args.place()))?;
    }
    let recording = lock(&recording).take();
    if let (Some(file), Some(mut recording)) = (&args.html, recording) {
        let state = if report.stopped.is_some() {
            "failed"
        } else {
            "finished"
        };
        recording.end(state, report.stopped.as_deref());
        write(file, "--html", &recording.html())?;
    }
    printed?;
    if report.broken() {
        return Err(Failure::PromiseBroken);
    }
    Ok(())
}

/// Keeps the event for the report. The line-up begins the recording.
fn record(recording: &Mutex<Option<Recording>>, args: &RaceArgs, event: &Event) {
    let mut recording = lock(recording);
    if let Event::Lineup(lineup) = event {
        let plan = args.race().describe("", &args.place(), lineup);
        *recording = Some(Recording::new(plan));
    }
    if let Some(recording) = &mut *recording {
        recording.observe(event);
    }
}

fn lock(recording: &Mutex<Option<Recording>>) -> MutexGuard<'_, Option<Recording>> {
    recording.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of connections of this process: one per buyer, and two for each connection of a
/// replica through a delaying proxy.
fn connections(args: &RaceArgs) -> u64 {
    let settings = &args.settings.parsed;
    let pools = settings.database.database_pool_size + settings.services.redis_pool_size;
    let pools = pools + UNCOUNTED_CONNECTIONS;
    let delayed = args.rtt().map_or(0, |_| 2 * args.replicas * pools);
    args.plan().connections as u64 + u64::from(delayed)
}

async fn race_on_new_replicas(
    args: &RaceArgs,
    observer: Observer<'_>,
    stop: &CancellationToken,
) -> Result<Report, Failure> {
    let settings = &args.settings.parsed;
    let mut database = settings.database.clone();
    let temporary = match database.database_url {
        Some(_) => None,
        None => Some(TempDir::with_prefix("stocklock-race-").map_err(|error| {
            Failure::Other(format!("cannot create a temporary directory: {error}"))
        })?),
    };
    if let Some(directory) = &temporary {
        let url = format!("sqlite://{}", directory.path().join("race.db").display());
        database.database_url = Some(url.into());
    }
    let race_settings = RaceSettings {
        variables: args.settings.variables.clone(),
        servers: ServerUrls {
            database: database.url().into(),
            redis: settings.services.redis_url.clone(),
            redlock: settings.services.redlock_urls.clone(),
            zookeeper: settings.services.zookeeper_connect.clone(),
        },
        drain_limit: settings.limits.drain_limit_ms,
    };
    let race = args.race();
    let prepare = async {
        let delayed = race.delay(&race_settings.servers).await?;
        migrate(&database).await?;
        Ok::<_, Failure>(delayed)
    };
    let delayed = tokio::select! {
        delayed = prepare => delayed?,
        () = stop.cancelled() => return Err(RaceFailure::Stopped.into()),
    };
    if !args.quiet {
        let place = args.place();
        telemetry::print_line(&match &delayed {
            None => format!("racing on {place}"),
            Some(delayed) => format!("racing on {place}; {}", delayed.distance),
        });
    }
    let report = race
        .run(&race_settings, delayed.as_ref(), observer, stop)
        .await;
    Ok(report?)
}

fn json(report: &Report, place: &str) -> String {
    let mut json = report.json();
    json["place"] = place.into();
    format!("{json:#}\n")
}

fn write(file: &Path, flag: &str, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|error| {
        Failure::Other(format!("{flag}: cannot write {}: {error}", file.display()))
    })
}

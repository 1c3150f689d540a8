//! Runs a race on new replicas: child processes of this program, which are stopped afterwards.
//!
//! The command `race` and the page of the lab use it.

use std::env;
use std::ffi::OsString;
use std::time::{Duration, SystemTime};

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::cli::EXIT_CONFIGURATION;
use crate::telemetry::print_line;
use stocklock_lab::delay::{DelayedServers, ServerUrls};
use stocklock_lab::processes::ReplicaProcesses;
use stocklock_lab::race::{Entrants, Lineup, Observer, RacePlan, Report, Target, run};

/// Time that a replica gets to exit, in addition to its drain limit.
const EXIT_MARGIN: Duration = Duration::from_secs(5);

/// A race could not be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RaceFailure {
    /// A setting is wrong.
    #[error("{0}")]
    Setting(String),
    /// Something else is wrong.
    #[error("{0}")]
    Other(String),
    /// The caller has stopped it.
    #[error("stopped")]
    Stopped,
}

/// What the replicas of a race are started with.
#[derive(Debug, Clone)]
pub(crate) struct RaceSettings {
    /// Environment variables that give a replica the settings of this process.
    pub(crate) variables: Vec<(OsString, SecretString)>,
    /// The servers, which replace those of the variables.
    pub(crate) servers: ServerUrls,
    /// How long a replica finishes its requests.
    pub(crate) drain_limit: Duration,
}

/// A race on new replicas.
#[derive(Debug)]
pub(crate) struct Race {
    /// What is sold, and by which strategies.
    pub(crate) plan: RacePlan,
    /// The number of replicas.
    pub(crate) replicas: u32,
    /// The round trip to add between the replicas and their servers.
    pub(crate) rtt: Option<Duration>,
    /// Running replicas that [`race_on`] uses instead of new ones.
    pub(crate) targets: Vec<Target>,
}

impl Race {
    /// Starts what delays the servers, if a round trip is added.
    pub(crate) async fn delay(
        &self,
        servers: &ServerUrls,
    ) -> Result<Option<DelayedServers>, RaceFailure> {
        let Some(rtt) = self.rtt else {
            return Ok(None);
        };
        let delayed = DelayedServers::start(rtt, servers.clone()).await;
        delayed.map(Some).map_err(RaceFailure::Setting)
    }

    /// Starts the replicas, races on them, and stops them, also if `stop` is cancelled. The database has
    /// been migrated.
    ///
    /// # Cancel safety
    /// Dropping the future kills the replicas.
    pub(crate) async fn run(
        &self,
        settings: &RaceSettings,
        delayed: Option<&DelayedServers>,
        observer: Observer<'_>,
        stop: &CancellationToken,
    ) -> Result<Report, RaceFailure> {
        let servers = delayed.map_or(&settings.servers, |delayed| &delayed.urls);
        let program = env::current_exe().map_err(|error| {
            RaceFailure::Other(format!("cannot find this program's file: {error}"))
        })?;
        let command = |number: u32| {
            let mut command = Command::new(&program);
            command.args(["lab", "--replica", &number.to_string()]);
            for (name, value) in &settings.variables {
                command.env(name, value.expose_secret());
            }
            command
                .env("STRATEGY", "single-sql")
                // Its locks are in the Redis that the race delays. Empty, because `.env` may name another.
                .env("LOCK_REDIS_URL", "")
                .env("ALLOW_UNSAFE", "false")
                .env("LISTEN", "127.0.0.1:0")
                .env("REPLICA_ID", format!("replica-{number}"))
                .env("DATABASE_URL", servers.database.expose_secret());
            if let Some(redis) = &servers.redis {
                command.env("REDIS_URL", redis.expose_secret());
            }
            if let Some(masters) = &servers.redlock {
                command.env("REDLOCK_URLS", masters.expose_secret());
            }
            if let Some(zookeeper) = &servers.zookeeper {
                command.env("ZOOKEEPER_CONNECT", zookeeper);
            }
            command
        };
        let starting = ReplicaProcesses::start(self.replicas, command, print_line);
        let replicas = tokio::select! {
            replicas = starting => replicas,
            () = stop.cancelled() => return Err(RaceFailure::Stopped),
        };
        let replicas = replicas.map_err(|error| match error.exit_code {
            Some(code) if code == i32::from(EXIT_CONFIGURATION) => {
                RaceFailure::Setting(error.to_string())
            }
            _ => RaceFailure::Other(error.to_string()),
        })?;
        let report = race_on(&self.plan, replicas.targets(), observer, stop).await;
        for problem in replicas.stop(settings.drain_limit + EXIT_MARGIN).await {
            tracing::warn!("{problem}");
        }
        let mut report = report?;
        report.distance = delayed.map(|delayed| delayed.distance.clone());
        Ok(report)
    }

    /// Describes the race for the page and for its report. `place` is where the stock is.
    pub(crate) fn describe(&self, id: &str, place: &str, lineup: &Lineup) -> Value {
        let plan = &self.plan;
        json!({
            "id": id,
            "command": self.command(),
            "place": place,
            "plan": {
                "strategies": plan.strategies,
                "stock": plan.stock,
                "buyers": plan.buyers,
                "orders": plan.orders,
                "quantity": plan.quantity,
                "connections": plan.connections,
                "replicas": match self.targets.len() {
                    0 => self.replicas as usize,
                    targets => targets,
                },
                "rtt_ms": self.rtt.unwrap_or_default().as_secs_f64() * 1_000.0,
                "guard": plan.safeguards.guard,
                "check": plan.safeguards.check,
            },
            "strategies": lineup.strategies.iter().map(|strategy| strategy.name()).collect::<Vec<_>>(),
            "skipped": lineup.skipped,
            "machine": {
                "cores": std::thread::available_parallelism().map_or(0, usize::from),
                "os": env::consts::OS,
                "arch": env::consts::ARCH,
                "version": env!("CARGO_PKG_VERSION"),
                "started_at": date(),
            },
        })
    }

    /// The command that runs the same race.
    fn command(&self) -> String {
        let plan = &self.plan;
        let strategies = match &plan.strategies {
            Entrants::Everyone => "all".to_owned(),
            Entrants::Only(strategies) => {
                let names: Vec<_> = strategies.iter().map(|strategy| strategy.name()).collect();
                names.join(",")
            }
        };
        let (stock, buyers, orders) = (plan.stock, plan.buyers, plan.orders);
        let mut replicas = format!(" --replicas {}", self.replicas);
        if !self.targets.is_empty() {
            let targets: Vec<_> = self.targets.iter().map(ToString::to_string).collect();
            replicas = format!(" --target {}", targets.join(" --target "));
        }
        let mut command = format!(
            "stocklock race --strategy {strategies} --stock {stock} --buyers {buyers} --orders {orders}{replicas}"
        );
        let mut add = |is_needed: bool, flag: String| {
            if is_needed {
                command.push(' ');
                command.push_str(&flag);
            }
        };
        let quantity = plan.quantity;
        add(quantity != 1, format!("--quantity {quantity}"));
        let connections = plan.connections;
        add(
            connections != plan.buyers,
            format!("--connections {connections}"),
        );
        let rtt = self.rtt.unwrap_or_default();
        let rtt_text = humantime::format_duration(rtt).to_string().replace(' ', "");
        add(!rtt.is_zero(), format!("--rtt {rtt_text}"));
        add(!plan.safeguards.guard, "--guard off".to_owned());
        add(!plan.safeguards.check, "--check off".to_owned());
        command
    }
}

/// Races on running replicas until `stop` is cancelled.
pub(crate) async fn race_on(
    plan: &RacePlan,
    targets: &[Target],
    observer: Observer<'_>,
    stop: &CancellationToken,
) -> Result<Report, RaceFailure> {
    tokio::select! {
        report = run(plan, targets, observer) => {
            report.map_err(|error| RaceFailure::Other(error.to_string()))
        }
        () = stop.cancelled() => Err(RaceFailure::Stopped),
    }
}

/// The date, for people.
#[expect(clippy::disallowed_methods, reason = "no decision depends on it")]
fn date() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stocklock_core::strategy::Strategy;

    #[test]
    fn command_repeats_the_race() {
        let mut race = Race {
            plan: RacePlan::new(5, 2, 3),
            replicas: 2,
            rtt: None,
            targets: Vec::new(),
        };
        let command = "stocklock race --strategy all --stock 5 --buyers 2 --orders 3 --replicas 2";
        assert_eq!(race.command(), command);
        race.plan.strategies = Entrants::Only(vec![Strategy::NoLock, Strategy::SingleSql]);
        race.plan.quantity = 4;
        race.plan.connections = 1;
        race.plan.safeguards.guard = false;
        race.plan.safeguards.check = false;
        race.rtt = Some(Duration::from_micros(1_500));
        let more = " --quantity 4 --connections 1 --rtt 1ms500us --guard off --check off";
        let command = command.replace("all", "no-lock,single-sql") + more;
        assert_eq!(race.command(), command);
        race.targets = vec!["http://127.0.0.1:1".parse().unwrap()];
        let command = command.replace("--replicas 2", "--target http://127.0.0.1:1");
        assert_eq!(race.command(), command);
    }
}

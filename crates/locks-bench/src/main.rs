//! `make bench-locks`: compares the lock crate with rslock, zookeeper-client and a mutex in one
//! process, on private servers, and prints the figures as JSON.
//!
//! Each run starts one or four processes, which start together and use one lock for a fixed time. The
//! runs of one round follow each other, so a slow phase of the machine affects all.

mod run;
mod servers;
mod worker;

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use run::{Run, SCENARIOS, TIME};
use serde_json::{Value, json};

const ROUNDS: usize = 5;
const USAGE: &str = "usage: bench-locks PATH_OF_TESTKIT [ROUNDS]";

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (testkit, rounds) = match arguments[..] {
        ["worker", ..] => return worker::main(&arguments[1..]).await,
        [testkit] => (testkit, ROUNDS),
        [testkit, rounds] => (testkit, rounds.parse()?),
        _ => bail!(USAGE),
    };
    let servers = servers::Servers::start(testkit).await?;
    let mut figures: BTreeMap<Run, Vec<Value>> = BTreeMap::new();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for scenario in SCENARIOS {
            for run in scenario.runs() {
                let name = format!("bench-{round}-{scenario:?}-{}", run.processes);
                let measured = run.measure(&servers, &name).await?;
                figures.entry(run).or_default().push(measured);
            }
        }
    }
    let runs = figures.iter().map(|(run, rounds)| {
        json!({
            "scenario": format!("{:?}", run.scenario),
            "processes": run.processes,
            "library": run.implementation.name(),
            "rounds": rounds,
        })
    });
    let runs: Vec<_> = runs.collect();
    println!("{}", json!({"seconds": TIME.as_secs_f64(), "runs": runs}));
    Ok(())
}

//! `make bench-locks`: compares the lock crate with rslock, zookeeper-client and a mutex in one
//! process, on private servers, and prints the figures as JSON.
//!
//! Each run starts one or four processes, which start together and use one lock for a fixed time. The
//! runs of one round follow each other, so a slow phase of the machine affects all.

mod run;
mod servers;
mod worker;

use anyhow::{Result, bail};

use run::TIME;
use serde_json::json;

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
    let mut runs: Vec<_> = run::runs()
        .into_iter()
        .map(|run| (run, Vec::new()))
        .collect();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for (run, figures) in &mut runs {
            let name = format!("bench-{round}-{}-{}", run.scenario.name, run.processes);
            figures.push(run.measure(&servers, &name).await?);
        }
    }
    let runs = runs.into_iter().map(|(run, rounds)| {
        json!({
            "scenario": run.scenario.name,
            "processes": run.processes,
            "library": run.library,
            "rounds": rounds,
        })
    });
    let runs: Vec<_> = runs.collect();
    println!("{}", json!({"seconds": TIME.as_secs_f64(), "runs": runs}));
    Ok(())
}

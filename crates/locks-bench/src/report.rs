//! The table of medians, and the ratios between them.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::run::{Figures, Implementation, Run, Scenario};

/// Each line compares two implementations in one scenario.
pub(crate) fn table(figures: &BTreeMap<Run, Vec<Figures>>) -> String {
    let mut text = String::new();
    let mut line = |cells: [&str; 6]| {
        let [scenario, processes, name, rate, p99, spread] = cells;
        writeln!(
            text,
            "{scenario:<12} {processes:>9}  {name:<17} {rate:>10} {p99:>9} {spread:>17}"
        )
        .expect("a string can be written to");
    };
    line([
        "scenario",
        "processes",
        "library",
        "locks/s",
        "p99 ms",
        "busiest/quietest",
    ]);
    for (run, rounds) in figures {
        let median = medians(rounds);
        line([
            &format!("{:?}", run.scenario),
            &run.processes.to_string(),
            run.implementation.name(),
            &format!("{:.0}", median.rate),
            &format!("{:.2}", median.p99),
            &format!("{:.2}", median.spread),
        ]);
    }
    text.push_str("\nratios of the medians\n");
    let get = |scenario, processes, implementation| {
        let run = Run {
            scenario,
            processes,
            implementation,
        };
        figures.get(&run).map(|rounds| medians(rounds))
    };
    let mut ratio = |what: &str, ours: Option<f64>, theirs: Option<f64>| {
        if let (Some(ours), Some(theirs)) = (ours, theirs) {
            writeln!(text, "{:>7.2}  {what}", ours / theirs).expect("a string can be written to");
        }
    };
    let rate = |figures: Option<Figures>| figures.map(|figures| figures.rate);
    let p99 = |figures: Option<Figures>| figures.map(|figures| figures.p99);
    for (ours, theirs) in [
        (Implementation::Redis, Implementation::Rslock),
        (Implementation::ZooKeeper, Implementation::ZooKeeperClient),
    ] {
        for (scenario, processes) in [
            (Scenario::Uncontended, 1),
            (Scenario::Contended, 1),
            (Scenario::Contended, 4),
            (Scenario::HandOff, 1),
            (Scenario::HandOff, 4),
        ] {
            let what = |unit: &str| {
                let (ours, theirs) = (ours.name(), theirs.name());
                format!("{scenario:?} in {processes}, {unit}: {ours} / {theirs}")
            };
            let [ours, theirs] = [ours, theirs].map(|name| get(scenario, processes, name));
            ratio(&what("locks/s"), rate(ours), rate(theirs));
            ratio(&what("p99"), p99(ours), p99(theirs));
        }
    }
    let ideal = rate(get(Scenario::HandOff, 1, Implementation::Mutex));
    for implementation in [Implementation::Redis, Implementation::ZooKeeper] {
        for processes in [1, 4] {
            let ours = rate(get(Scenario::HandOff, processes, implementation));
            let name = implementation.name();
            let what = format!("HandOff in {processes}, locks/s: {name} / tokio Mutex in 1");
            ratio(&what, ours, ideal);
        }
    }
    text
}

fn medians(rounds: &[Figures]) -> Figures {
    let median = |figure: fn(&Figures) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(figure).collect();
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Figures {
        rate: median(|figures| figures.rate),
        p99: median(|figures| figures.p99),
        spread: median(|figures| figures.spread),
    }
}

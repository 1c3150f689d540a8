//! Describes a race: what the buyers do, on which machine, and the command that repeats it.

use std::env;
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::race::{Entrants, Lineup, RacePlan, Target};

/// Describes a race for the page and the report. `place` is where the stock is. `targets` are running replicas,
/// if it starts none.
pub(crate) fn describe(
    plan: &RacePlan,
    targets: &[Target],
    id: &str,
    place: &str,
    lineup: &Lineup,
) -> Value {
    let mut shown = json!(plan);
    shown["connections"] = plan.connections().into();
    if !targets.is_empty() {
        shown["replicas"] = targets.len().into();
    }
    let Lineup {
        strategies,
        skipped,
    } = lineup;
    json!({
        "id": id,
        "command": command(plan, targets),
        "place": place,
        "plan": shown,
        "strategies": strategies.iter().map(|strategy| strategy.name()).collect::<Vec<_>>(),
        "skipped": skipped,
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
fn command(plan: &RacePlan, targets: &[Target]) -> String {
    let strategies = match &plan.strategies {
        Entrants::Everyone => "all".to_owned(),
        Entrants::Only(strategies) => {
            let names: Vec<_> = strategies.iter().map(|strategy| strategy.name()).collect();
            names.join(",")
        }
    };
    let (stock, buyers, orders) = (plan.stock, plan.buyers, plan.orders);
    let mut command = format!(
        "stocklock race --strategy {strategies} --stock {stock} --buyers {buyers} --orders {orders}"
    );
    let mut add = |is_needed: bool, flag: &str, value: &str| {
        if is_needed {
            command.extend([" --", flag, " ", value]);
        }
    };
    add(targets.is_empty(), "replicas", &plan.replicas.to_string());
    for target in targets {
        add(true, "target", &target.to_string());
    }
    add(plan.quantity != 1, "quantity", &plan.quantity.to_string());
    add(plan.lines != 1, "lines", &plan.lines.to_string());
    if let Some(connections) = plan.connections {
        add(true, "connections", &connections.to_string());
    }
    let rtt = humantime::format_duration(plan.rtt).to_string();
    add(!plan.rtt.is_zero(), "rtt", &rtt.replace(' ', ""));
    add(!plan.guard, "guard", "off");
    add(!plan.check, "check", "off");
    if plan.holds {
        command.push_str(" --holds");
    }
    command
}

/// The date, for people.
#[expect(clippy::disallowed_methods, reason = "no decision depends on it")]
fn date() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use stocklock_core::strategy::Strategy;

    #[test]
    fn command_repeats_the_race() {
        let mut plan = RacePlan::new(5, 2, 3);
        let expected = "stocklock race --strategy all --stock 5 --buyers 2 --orders 3 --replicas 2";
        assert_eq!(command(&plan, &[]), expected);
        plan.strategies = Entrants::Only(vec![Strategy::NoLock, Strategy::SingleSql]);
        plan.quantity = 4;
        plan.lines = 3;
        plan.holds = true;
        plan.connections = Some(1);
        plan.guard = false;
        plan.check = false;
        plan.rtt = Duration::from_micros(1_500);
        let more = " --quantity 4 --lines 3 --connections 1 --rtt 1ms500us --guard off --check off --holds";
        let expected = expected.replace("all", "no-lock,single-sql") + more;
        assert_eq!(command(&plan, &[]), expected);
        let target = "http://127.0.0.1:1".parse().unwrap();
        let expected = expected.replace("--replicas 2", "--target http://127.0.0.1:1");
        assert_eq!(command(&plan, &[target]), expected);
    }
}

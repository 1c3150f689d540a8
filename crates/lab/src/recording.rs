//! A race as it was seen: every event, for the page of the lab, for the report, and as JSON.

use serde_json::{Value, json};

use crate::page;
use crate::race::{Event, Report};

/// An event of a race with its name in `GET /lab/races/{id}/events`.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    /// `plan`, `start`, `tick`, `row` or `end`.
    pub name: &'static str,
    /// What it says.
    pub data: Value,
}

/// The events of one race in their order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recording {
    events: Vec<Recorded>,
}

impl Recording {
    /// A race that is described by `plan`.
    pub(crate) fn new(plan: Value) -> Self {
        let mut recording = Self::default();
        recording.add("plan", plan);
        recording
    }

    /// Adds an event of the race. The line-up is part of the plan.
    pub(crate) fn observe(&mut self, event: &Event) {
        match event {
            Event::Lineup(_) => {}
            Event::Start(start) => self.add("start", json!(start)),
            Event::Tick(tick) => self.add("tick", json!(tick)),
            Event::Row(row) => self.add("row", json!(row)),
        }
    }

    /// Adds the last event: `finished`, `stopped` or `failed`, why it failed, and what the report adds to the
    /// rows, if there is one.
    pub(crate) fn end(&mut self, state: &str, problem: Option<&str>, report: Option<&Report>) {
        let result = report.map(Report::result);
        self.add(
            "end",
            json!({"state": state, "problem": problem, "result": result}),
        );
    }

    /// Every event.
    pub(crate) fn events(&self) -> &[Recorded] {
        &self.events
    }

    /// The race as JSON: its plan, the events of each strategy's run, and its end.
    pub(crate) fn json(&self) -> Value {
        let (mut plan, mut end) = (Value::Null, Value::Null);
        let mut runs: Vec<Value> = Vec::new();
        for Recorded { name, data } in &self.events {
            match (*name, runs.last_mut()) {
                ("plan", _) => plan = data.clone(),
                ("end", _) => end = data.clone(),
                ("start", _) => runs.push(json!({"start": data, "ticks": [], "row": null})),
                ("tick", Some(run)) => {
                    let ticks = run["ticks"].as_array_mut();
                    ticks.expect("a run has ticks").push(data.clone());
                }
                (_, Some(run)) => run["row"] = data.clone(),
                (_, None) => {}
            }
        }
        json!({"plan": plan, "runs": runs, "end": end})
    }

    /// One self-contained HTML file.
    pub(crate) fn html(&self) -> String {
        page::report(&self.json())
    }

    fn add(&mut self, name: &'static str, data: Value) {
        self.events.push(Recorded { name, data });
    }
}

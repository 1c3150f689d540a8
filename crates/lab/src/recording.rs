//! A race as it was seen: every event, for the page of the lab and for the report.

use serde_json::{Value, json};

use crate::page;
use crate::race::Event;

/// An event of a race with its name in `GET /lab/races/{id}/events`.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// `plan`, `start`, `tick`, `row` or `end`.
    pub name: &'static str,
    /// What it says.
    pub data: Value,
}

/// The events of one race in their order.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    events: Vec<Recorded>,
}

impl Recording {
    /// A race that is described by `plan`: what the buyers do, on which machine, and the command that
    /// repeats it.
    #[must_use]
    pub fn new(plan: Value) -> Self {
        let mut recording = Self::default();
        recording.add("plan", plan);
        recording
    }

    /// Adds an event of the race. The line-up is part of the plan.
    pub fn observe(&mut self, event: &Event) {
        match event {
            Event::Lineup(_) => {}
            Event::Start(start) => self.add("start", json!(start)),
            Event::Tick(tick) => self.add("tick", json!(tick)),
            Event::Row(row) => self.add("row", json!(row)),
        }
    }

    /// Adds the last event: `finished`, `stopped` or `failed`, and why it failed.
    pub fn end(&mut self, state: &str, problem: Option<&str>) {
        self.add("end", json!({"state": state, "problem": problem}));
    }

    /// Every event.
    #[must_use]
    pub fn events(&self) -> &[Recorded] {
        &self.events
    }

    /// The events by strategy.
    #[must_use]
    pub fn json(&self) -> Value {
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
        json!({"events": {"plan": plan, "runs": runs, "end": end}})
    }

    /// One self-contained HTML file.
    #[must_use]
    pub fn html(&self) -> String {
        page::report(&self.json())
    }

    fn add(&mut self, name: &'static str, data: Value) {
        self.events.push(Recorded { name, data });
    }
}

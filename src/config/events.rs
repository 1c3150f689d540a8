//! Settings: the events.

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::webhooks::Network;

/// Whether changes are published as events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Publish {
    /// No
    Off,
    /// Yes: GET /events and webhooks
    On,
}

/// The events.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Events")]
pub struct EventsConfig {
    /// Publish each change of stock as an event; the same value for all replicas
    #[arg(long, env, value_name = "SWITCH", value_enum, default_value_t = Publish::Off)]
    pub events: Publish,

    /// How many days events are kept
    #[arg(long, env, value_name = "DAYS", default_value = "7", value_parser = days)]
    pub events_retention_days: Duration,

    /// Networks that webhooks may reach although they are not public: addresses such as 10.0.0.7, or networks
    /// such as 10.0.0.0/8, with commas between them
    #[arg(long, env, value_name = "NETWORKS", value_delimiter = ',')]
    pub webhook_allow: Vec<Network>,
}

impl EventsConfig {
    /// Whether changes are published.
    #[must_use]
    pub fn are_on(&self) -> bool {
        self.events == Publish::On
    }
}

fn days(text: &str) -> Result<Duration, String> {
    match text.parse::<u32>() {
        Ok(days @ 1..=3_650) => Ok(Duration::from_hours(24) * days),
        _ => Err("expected whole days from 1 to 3650".to_owned()),
    }
}

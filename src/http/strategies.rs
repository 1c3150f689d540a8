//! `GET /strategies`: the strategies, their promises and their costs.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use stocklock_core::strategy::{Dependency, Strategy};

/// One strategy.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StrategyBody {
    /// The name.
    name: &'static str,
    /// The promise: `safe`, `guarded` or `unsafe`.
    tier: &'static str,
    /// The servers that it needs besides the SQL database.
    needs: Vec<&'static str>,
    /// Whether this replica can use it.
    available: bool,
    /// Why it cannot be used.
    reason: Option<String>,
    /// What it guarantees.
    guarantees: &'static str,
    /// What it costs.
    costs: &'static str,
    /// When it fails, and how.
    fails_when: &'static str,
    /// When to choose it.
    use_when: &'static str,
}

/// All strategies.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StrategyList {
    /// Every strategy.
    strategies: Vec<StrategyBody>,
}

/// List all strategies, with their promises and costs
#[utoipa::path(get, path = "/strategies", tag = "strategies",
    responses((status = 200, description = "All strategies", body = StrategyList)))]
pub(super) async fn strategies(State(api): State<Arc<Api>>) -> Json<StrategyList> {
    let body = |strategy: Strategy| {
        let card = strategy.card();
        let reason = api.available.why_not(strategy);
        StrategyBody {
            name: card.name,
            tier: card.tier.as_str(),
            needs: card.needs.iter().copied().map(Dependency::name).collect(),
            available: reason.is_none(),
            reason,
            guarantees: card.line("Guarantees"),
            costs: card.line("Costs"),
            fails_when: card.line("Fails when"),
            use_when: card.line("Use when"),
        }
    };
    let strategies = Strategy::ALL.into_iter().map(body).collect();
    Json(StrategyList { strategies })
}

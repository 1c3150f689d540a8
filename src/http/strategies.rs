//! `GET /strategies`: how a deduction may be protected, and what each way is worth.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use stocklock_core::strategy::{Available, Dependency, Strategy};

/// One strategy.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StrategyBody {
    /// Its name.
    name: &'static str,
    /// What it promises: `safe`, `guarded`, `volatile` or `unsafe`.
    tier: &'static str,
    /// Where the stock lives that it works on: `sql`, `redis` or `either`.
    home: &'static str,
    /// The services that it needs beside the SQL database.
    needs: Vec<&'static str>,
    /// Whether it can be used here and now.
    available: bool,
    /// Why not.
    reason: Option<String>,
    /// What holds when it is used.
    guarantees: &'static str,
    /// What it costs.
    costs: &'static str,
    /// When it does not do what one might hope.
    fails_when: &'static str,
    /// When to choose it.
    use_when: &'static str,
}

impl StrategyBody {
    fn of(strategy: Strategy, available: &Available) -> Self {
        let card = strategy.card();
        let reason = available.why_not(strategy);
        Self {
            name: card.name,
            tier: card.tier.as_str(),
            home: card.homes.as_str(),
            needs: card.needs.iter().copied().map(Dependency::name).collect(),
            available: reason.is_none(),
            reason,
            guarantees: card.guarantees(),
            costs: card.costs(),
            fails_when: card.fails_when(),
            use_when: card.use_when(),
        }
    }
}

/// All strategies.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StrategyList {
    /// Every strategy.
    strategies: Vec<StrategyBody>,
}

/// Every strategy, and what it is worth
#[utoipa::path(get, path = "/strategies", tag = "strategies",
    responses((status = 200, description = "All of them", body = StrategyList)))]
pub(super) async fn strategies(State(api): State<Arc<Api>>) -> Json<StrategyList> {
    let body = |strategy| StrategyBody::of(strategy, &api.available);
    let strategies = Strategy::ALL.into_iter().map(body).collect();
    Json(StrategyList { strategies })
}

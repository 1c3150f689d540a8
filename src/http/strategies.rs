//! `GET /strategies`: how a deduction may be protected, and what each way is worth.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

use crate::strategy::Strategy;

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
    needs: &'static [&'static str],
    /// Whether it can be used here and now.
    available: bool,
    /// Why not.
    reason: Option<&'static str>,
    /// What holds when it is used.
    guarantees: &'static str,
    /// What it costs.
    costs: &'static str,
    /// When it does not do what one might hope.
    fails_when: &'static str,
    /// When to choose it.
    use_when: &'static str,
}

impl From<Strategy> for StrategyBody {
    fn from(strategy: Strategy) -> Self {
        let card = strategy.card();
        Self {
            name: card.name,
            tier: card.tier.as_str(),
            home: card.home,
            needs: card.needs,
            available: card.unavailable.is_none(),
            reason: card.unavailable,
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
    /// The closed set, those still to come included.
    strategies: Vec<StrategyBody>,
}

/// Every strategy, and what it is worth
#[utoipa::path(get, path = "/strategies", tag = "strategies",
    responses((status = 200, description = "All of them", body = StrategyList)))]
pub(super) async fn strategies() -> Json<StrategyList> {
    let strategies = Strategy::ALL.into_iter().map(StrategyBody::from).collect();
    Json(StrategyList { strategies })
}

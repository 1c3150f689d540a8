//! `GET /lab/failures`: the gallery of failures, as the page plays it.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::stories;
use crate::story::{Seen, Story, Variant};

/// The route, with its documentation.
pub fn router<S: Clone + Send + Sync + 'static>() -> OpenApiRouter<S> {
    OpenApiRouter::new().routes(routes!(failures))
}

/// One variant of a story.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VariantBody {
    /// What the servers have at the end, in words.
    finding: String,
    /// The steps, in order.
    steps: Vec<Seen>,
}

/// One classic way to get stock wrong.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StoryBody {
    /// Its name.
    name: &'static str,
    /// A few words.
    title: &'static str,
    /// Stories of one group belong together.
    group: &'static str,
    /// What happens.
    summary: &'static str,
    /// Why it happens.
    why: &'static str,
    /// What to do instead.
    right_way: &'static str,
    /// Which strategies are affected.
    strategy: &'static str,
    /// The servers that it needs.
    servers: Vec<&'static str>,
    /// Who acts.
    actors: Vec<&'static str>,
    /// What goes wrong.
    naive: VariantBody,
    /// What does not.
    right: VariantBody,
}

/// The gallery.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Gallery {
    /// All stories, by group.
    stories: Vec<StoryBody>,
}

/// List the gallery of failures, with every step
#[utoipa::path(get, path = "/lab/failures", tag = "lab",
    responses((status = 200, description = "All stories", body = Gallery)))]
pub(crate) async fn failures() -> Json<Gallery> {
    let stories = stories::all().iter().map(body).collect();
    Json(Gallery { stories })
}

fn body(story: &'static Story) -> StoryBody {
    let variant = |variant| VariantBody {
        finding: story.finding(variant),
        steps: story.written(variant),
    };
    StoryBody {
        name: story.name,
        title: story.title,
        group: story.group,
        summary: story.summary,
        why: story.why,
        right_way: story.right_way,
        strategy: story.strategy,
        servers: story.servers.clone(),
        actors: story.actors(),
        naive: variant(Variant::Naive),
        right: variant(Variant::Right),
    }
}

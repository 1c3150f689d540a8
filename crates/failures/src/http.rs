//! `GET /lab/failures`: the gallery of failures, as the page plays it.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::stories;
use crate::story::Story;

/// The route, with its documentation.
pub fn router<S: Clone + Send + Sync + 'static>() -> OpenApiRouter<S> {
    OpenApiRouter::new().routes(routes!(failures))
}

/// The gallery.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Gallery {
    /// All stories, by group.
    stories: &'static [Story],
}

/// List the gallery of failures, with every step
#[utoipa::path(get, path = "/lab/failures", tag = "lab",
    responses((status = 200, description = "All stories", body = Gallery)))]
pub(crate) async fn failures() -> Json<Gallery> {
    Json(Gallery {
        stories: stories::all(),
    })
}

//! `/` in the lab: what to try first.

use axum::response::Html;

/// What to try first
#[utoipa::path(get, path = "/", tag = "operation",
    responses((status = 200, description = "A page for people", content_type = "text/html", body = String)))]
pub(super) async fn start_page() -> Html<&'static str> {
    Html(include_str!("start_page.html"))
}

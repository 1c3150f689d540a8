//! `/` in the lab: commands to try first.

use axum::response::Html;

/// Get the start page of the lab
#[utoipa::path(get, path = "/", tag = "operation",
    responses((status = 200, description = "A page of HTML", content_type = "text/html", body = String)))]
pub(super) async fn start_page() -> Html<&'static str> {
    Html(include_str!("start_page.html"))
}

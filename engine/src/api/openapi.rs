//! The document of this API, kept by hand in `openapi.json`. A test holds its paths to the routes, and
//! its types to what the readers refuse.

use axum::http::{HeaderName, header};

/// The document's text.
pub(super) const DOCUMENT: &str = include_str!("openapi.json");

pub(super) async fn document() -> ([(HeaderName, &'static str); 1], &'static str) {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}

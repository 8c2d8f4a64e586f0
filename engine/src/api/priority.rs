//! The header by which a request says how urgent it is.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::rejection::Rejection;
use crate::error::Error;
use crate::scheduler::Priority;

/// The header's name.
const HEADER: &str = "x-slipstream-priority";

/// The priority of a request: what its header says, `interactive` without one.
pub(super) struct PriorityHeader(pub(super) Priority);

impl<S: Send + Sync> FromRequestParts<S> for PriorityHeader {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejection> {
        let mut priority = None;
        for value in parts.headers.get_all(HEADER) {
            let words = String::from_utf8_lossy(value.as_bytes());
            let named = Priority::named(&words).ok_or_else(|| unknown(&words))?;
            if priority.replace(named).is_some_and(|before| before != named) {
                return Err(Error::invalid(HEADER, format!("`{HEADER}` came twice")).into());
            }
        }
        Ok(Self(priority.unwrap_or_default()))
    }
}

fn unknown(words: &str) -> Error {
    let known = Priority::ALL.map(|priority| format!("`{}`", priority.name())).join(" or ");
    Error::invalid(HEADER, format!("`{HEADER}` must be {known}, got `{words}`"))
}

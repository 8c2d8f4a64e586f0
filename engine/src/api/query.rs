//! The words of a query: `?name=value`.

use std::collections::HashMap;

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;

use crate::error::{Error, Result};
use crate::wire::models;

/// What a handler is given of a query.
pub(super) type Words = Result<Query<HashMap<String, String>>, QueryRejection>;

/// The words of `query`, of which `param` was asked for.
///
/// # Errors
/// `InvalidRequest`, naming `param`, for a query that cannot be read.
pub(super) fn words(query: Words, param: &str) -> Result<HashMap<String, String>> {
    let unreadable = |_| Error::invalid(param, "the query cannot be read");
    query.map(|Query(words)| words).map_err(unreadable)
}

/// The switch `name` of `query`.
///
/// # Errors
/// `InvalidRequest`, naming it, for anything but `true` and `false`.
pub(super) fn flag(query: Words, name: &str) -> Result<bool> {
    models::flag(name, words(query, name)?.get(name).map(String::as_str))
}

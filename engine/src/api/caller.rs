//! Who asks, and how urgent it is: what a request says in its headers.
//!
//! A *client* is named by the API key that it used; else by its `x-slipstream-client` header; else by
//! what its `User-Agent` begins with, without a version. Names are for people and statistics alone.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};

use super::rejection::Rejection;
use crate::config::KeepAlive;
use crate::error::Error;
use crate::gateway::{GenerateRequest, UNNAMED_CLIENT};
use crate::limits;
use crate::scheduler::Priority;

const PRIORITY: &str = "x-slipstream-priority";
const CLIENT: &str = "x-slipstream-client";
const KEEP_ALIVE: &str = "x-slipstream-keep-alive";

/// What the headers say.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    /// `interactive` unless it says otherwise.
    pub(super) priority: Priority,
    /// The client's name.
    pub(super) client: Arc<str>,
    /// The name of its API key, if it came with one.
    pub(super) key: Option<Arc<str>>,
    /// What its silent streams send, if it says so.
    pub(super) keep_alive: Option<KeepAlive>,
}

impl Caller {
    /// `request` as this caller makes it.
    pub(super) fn asks(self, request: GenerateRequest) -> GenerateRequest {
        GenerateRequest { priority: self.priority, client: self.client, ..request }
    }
}

/// The name of the API key that a request came with.
#[derive(Debug, Clone)]
pub(super) struct KeyName(pub(super) Arc<str>);

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejection> {
        let priority = priority(&parts.headers)?;
        let key = parts.extensions.get::<KeyName>().map(|key| Arc::clone(&key.0));
        let client = key.clone().unwrap_or_else(|| client_name(&parts.headers));
        let keep_alive = keep_alive(&parts.headers)?;
        Ok(Self { priority, client, key, keep_alive })
    }
}

fn priority(headers: &HeaderMap) -> Result<Priority, Error> {
    let mut priority = None;
    for value in headers.get_all(PRIORITY) {
        let words = String::from_utf8_lossy(value.as_bytes());
        let named = Priority::named(&words).ok_or_else(|| unknown(&words))?;
        if priority.replace(named).is_some_and(|before| before != named) {
            return Err(Error::invalid(PRIORITY, format!("`{PRIORITY}` came twice")));
        }
    }
    Ok(priority.unwrap_or_default())
}

fn keep_alive(headers: &HeaderMap) -> Result<Option<KeepAlive>, Error> {
    let Some(value) = headers.get(KEEP_ALIVE) else {
        return Ok(None);
    };
    let named = String::from_utf8_lossy(value.as_bytes()).parse();
    named.map(Some).map_err(|error: Error| {
        Error::invalid(KEEP_ALIVE, format!("`{KEEP_ALIVE}` {}", error.message()))
    })
}

fn unknown(words: &str) -> Error {
    let known = Priority::ALL.map(|priority| format!("`{}`", priority.name())).join(" or ");
    Error::invalid(PRIORITY, format!("`{PRIORITY}` must be {known}, got `{words}`"))
}

fn client_name(headers: &HeaderMap) -> Arc<str> {
    let text = |name: &str| {
        headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let own = text(CLIENT).map(|name| shown(&name));
    let agent = || text(header::USER_AGENT.as_str()).map(|agent| shown(product(&agent)));
    let named = |name: &String| !name.is_empty();
    own.filter(named).or_else(|| agent().filter(named)).map_or(UNNAMED_CLIENT.into(), Into::into)
}

/// The first word of a `User-Agent`, without the version that may follow a slash.
fn product(agent: &str) -> &str {
    let word = agent.split_whitespace().next().unwrap_or_default();
    match word.split_once('/') {
        Some((name, version)) if version.starts_with(|first: char| first.is_ascii_digit()) => name,
        _ => word,
    }
}

/// A name as it may stand in logs and statistics: short, and of visible ASCII.
fn shown(name: &str) -> String {
    let visible = name.trim().chars().map(|each| if each.is_ascii_graphic() { each } else { '_' });
    visible.take(limits::CLIENT_NAME_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn named(headers: &[(&'static str, &'static [u8])]) -> String {
        let pairs = headers.iter().map(|(name, value)| {
            ((*name).parse().unwrap(), HeaderValue::from_bytes(value).unwrap())
        });
        client_name(&pairs.collect()).to_string()
    }

    #[test]
    fn a_client_is_called_what_it_calls_itself_and_else_by_its_software() {
        for (agent, name) in [
            ("claude-cli/2.0.14 (external, cli)", "claude-cli"),
            ("OpenAI/Python 3.57.0", "OpenAI/Python"),
            ("Anthropic/JS 0.54", "Anthropic/JS"),
            ("curl/8.5.0", "curl"),
            ("codex_cli_rs", "codex_cli_rs"),
            ("", "unknown"),
            ("   ", "unknown"),
        ] {
            assert_eq!(named(&[("user-agent", agent.as_bytes())]), name, "{agent}");
        }
        let both: [(&str, &[u8]); 2] = [("user-agent", b"curl/8"), (CLIENT, b"opencode")];
        assert_eq!(named(&both), "opencode");
        assert_eq!(named(&[]), "unknown");
    }

    #[test]
    fn a_name_is_short_and_of_visible_characters() {
        assert_eq!(named(&[(CLIENT, "a b\u{e9}\"c".as_bytes())]), "a_b_\"c");
        static LONG: [u8; 500] = [b'x'; 500];
        assert_eq!(named(&[(CLIENT, &LONG)]).len(), limits::CLIENT_NAME_CHARS_MAX);
    }
}

//! API keys: whether a request may use the server, and as whom.
//!
//! A key comes as `Authorization: Bearer KEY`, as OpenAI's clients send it, or as `x-api-key: KEY`, as
//! Anthropic's do. `/health` needs none, so that whatever watches the process needs none. A server
//! without keys is open to all who reach it; [`check_exposure`] sees to it that only this machine does.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::caller::KeyName;
use super::rejection::Rejection;
use crate::config::{ApiKey, ServeConfig};
use crate::error::{Code, Error, Result};

const X_API_KEY: &str = "x-api-key";
/// Answered without a key.
const OPEN_PATH: &str = "/health";

/// The keys of a server.
#[derive(Debug, Clone)]
pub(super) struct Keys(Arc<[ApiKey]>);

/// Lets a request through under the name of its key, or answers it with a rejection.
pub(super) async fn check(State(keys): State<Keys>, mut request: Request, next: Next) -> Response {
    if keys.0.is_empty() || request.uri().path() == OPEN_PATH {
        return next.run(request).await;
    }
    match keys.judge(request.headers()) {
        Ok(name) => {
            request.extensions_mut().insert(name);
            next.run(request).await
        }
        Err(rejection) => rejection.into_response(),
    }
}

/// Refuses to serve beyond loopback without keys.
///
/// # Errors
/// `InvalidRequest`, in one line that says what to do.
pub fn check_exposure(address: SocketAddr, config: &ServeConfig) -> Result<()> {
    if address.ip().is_loopback() || !config.api_keys.is_empty() {
        return Ok(());
    }
    let message = format!("{address} can be reached from other machines, and no API key is set");
    let hint = "`--api-key NAME=KEY` or `--api-key-file FILE` sets one";
    Err(Error::new(Code::InvalidRequest, message).with_hint(hint))
}

impl Keys {
    pub(super) fn new(config: &ServeConfig) -> Self {
        Self(config.api_keys.clone().into())
    }

    fn judge(&self, headers: &HeaderMap) -> Result<KeyName, Rejection> {
        let mut given = presented(headers).peekable();
        if given.peek().is_none() {
            return Err(Rejection::NoKey);
        }
        let name = given.find_map(|key| self.name_of(key));
        name.map(KeyName).ok_or(Rejection::UnknownKey)
    }

    /// Whose key `given` is. Every key is compared, and each in a time that does not depend on how much
    /// of it is right.
    fn name_of(&self, given: &[u8]) -> Option<Arc<str>> {
        let mut found = None;
        for key in &*self.0 {
            if bool::from(key.secret().ct_eq(given)) {
                found = Some(key.name().into());
            }
        }
        found
    }
}

/// The keys that a request shows.
fn presented(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let bearers = headers.get_all(header::AUTHORIZATION).iter().filter_map(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked("bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
    });
    let plain = headers.get_all(X_API_KEY).iter().map(|value| value.as_bytes().trim_ascii());
    bearers.chain(plain)
}

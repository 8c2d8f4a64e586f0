//! What answers of one API have in common: the shape of errors, and the request's id.
//!
//! The path tells the dialect, so that errors from anywhere (guards, readers of bodies, unknown paths)
//! come in the shape that the path's clients understand. A request's id is what its `x-request-id`
//! header says, or else made here; Anthropic's clients look for it under `request-id`.

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use uuid::Uuid;

use super::rejection::Rejection;

/// The header with a request's id.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The same in Anthropic's answers.
pub(super) const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

const REQUEST_ID_BYTES_MAX: usize = 128;

/// Whose API a path belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    OpenAi,
    Anthropic,
}

impl Dialect {
    /// The dialect of `path`; what nobody's API has is told in OpenAI's.
    pub(super) fn of(path: &str) -> Self {
        match path.strip_prefix("/v1/messages") {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }

    fn error(self, rejection: &Rejection, request_id: &str) -> Response {
        let status = rejection.status();
        match self {
            Self::OpenAi => (status, Json(rejection.openai())).into_response(),
            Self::Anthropic => {
                // Its clients know an overloaded server by a status of its own.
                let overloaded = status == StatusCode::SERVICE_UNAVAILABLE;
                let own = StatusCode::from_u16(529).ok().filter(|_| overloaded);
                let body = rejection.anthropic().of_request(request_id);
                (own.unwrap_or(status), Json(body)).into_response()
            }
        }
    }
}

/// Gives a rejection the body of its dialect, and every answer the id of its request.
pub(super) async fn speak(request: Request, next: Next) -> Response {
    let dialect = Dialect::of(request.uri().path());
    let id = request_id(request.headers());
    let mut response = next.run(request).await;
    if let Some(rejection) = response.extensions_mut().remove::<Rejection>() {
        let shown = id.to_str().unwrap_or_default();
        let (body, error) = (dialect.error(&rejection, shown), response);
        response = body;
        response.headers_mut().extend(error.headers().clone());
    }
    let headers = response.headers_mut();
    if dialect == Dialect::Anthropic {
        headers.insert(ANTHROPIC_REQUEST_ID, id.clone());
    }
    headers.insert(REQUEST_ID, id);
    response
}

/// The id that the client gave, if it can be one, or a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let fits = |id: &&HeaderValue| {
        let bytes = id.as_bytes();
        let visible = bytes.iter().all(u8::is_ascii_graphic);
        (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len()) && visible
    };
    headers.get(REQUEST_ID).filter(fits).cloned().unwrap_or_else(|| {
        let id = format!("req_{}", Uuid::new_v4().simple());
        HeaderValue::from_str(&id).expect("hexadecimal digits are visible")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_messages_speak_anthropics_dialect_and_no_others_do() {
        for path in ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/nothing"] {
            assert_eq!(Dialect::of(path), Dialect::Anthropic, "{path}");
        }
        for path in ["/v1/chat/completions", "/v1/messagesx", "/", "/messages"] {
            assert_eq!(Dialect::of(path), Dialect::OpenAi, "{path}");
        }
    }

    #[test]
    fn a_clients_request_id_is_kept_if_it_is_short_and_visible() {
        let id = |text: &[u8]| {
            let value = HeaderValue::from_bytes(text).unwrap();
            request_id(&HeaderMap::from_iter([(REQUEST_ID, value)]))
        };
        assert_eq!(id(b"abc-123"), "abc-123");
        for odd in [b"".as_slice(), b"a b", "\u{e9}".as_bytes(), &[b'x'; 129]] {
            assert!(id(odd).to_str().unwrap().starts_with("req_"), "{odd:?}");
        }
    }
}

//! Who may talk to the server.
//!
//! *Hosts*: a page that rebinds its DNS name to loopback still sends that name as `Host`, so only
//! known names are answered. *Origins*: browsers name the page that sends a request; pages of other
//! origins are refused before their request runs, because keeping CORS closed only hides the answer
//! from them. Programs send no `Origin` and are not concerned.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::dialect::{ANTHROPIC_REQUEST_ID, REQUEST_ID};
use super::rejection::Rejection;
use super::responses::WARNING;
use crate::config::ServeConfig;
use crate::error::{Code, Error, Result};

const LOOPBACK_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// The allow-lists.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    /// Lower case, without ports; IPv6 in brackets.
    hosts: Vec<String>,
    origins: Vec<HeaderValue>,
}

/// Lets a request through, or answers it with a rejection.
pub(super) async fn check(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    match guard.judge(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(rejection) => rejection.into_response(),
    }
}

impl Guard {
    pub(super) fn new(config: &ServeConfig) -> Result<Self> {
        let listening = listening_host(&config.host);
        let configured = config.allowed_hosts.iter().map(|host| allowed_host(host));
        let hosts = LOOPBACK_HOSTS
            .iter()
            .map(|host| Ok((*host).to_owned()))
            .chain(listening.map(Ok))
            .chain(configured)
            .collect::<Result<_>>()?;
        let origins = config.allowed_origins.iter().map(|origin| allowed_origin(origin));
        Ok(Self { hosts, origins: origins.collect::<Result<_>>()? })
    }

    /// Tells the browsers of allowed origins that they are.
    pub(super) fn cors(&self) -> CorsLayer {
        CorsLayer::new()
            .allow_origin(AllowOrigin::list(self.origins.clone()))
            .allow_methods([Method::GET, Method::POST, Method::PUT, Method::DELETE])
            .expose_headers([REQUEST_ID, ANTHROPIC_REQUEST_ID, WARNING])
            // OpenAI's own client adds headers of its own making.
            .allow_headers(AllowHeaders::mirror_request())
    }

    fn judge(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Rejection> {
        // A request target with an authority overrides the header (RFC 9112, section 3.2.2).
        let header = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let authority = uri.authority().map(axum::http::uri::Authority::as_str).or(header);
        let authority = authority.unwrap_or_default().to_ascii_lowercase();
        if !self.hosts.iter().any(|host| *host == without_port(&authority)) {
            return Err(Rejection::ForeignHost(authority));
        }
        match headers.get(header::ORIGIN) {
            Some(origin) if !self.allows_origin(origin, &authority) => {
                let origin = String::from_utf8_lossy(origin.as_bytes()).into_owned();
                Err(Rejection::ForeignOrigin(origin))
            }
            _ => Ok(()),
        }
    }

    /// Whether it is listed, or the page came from this very server.
    fn allows_origin(&self, origin: &HeaderValue, authority: &str) -> bool {
        let own = origin.to_str().ok().and_then(|origin| origin.strip_prefix("http://"));
        own == Some(authority) || self.origins.contains(origin)
    }
}

/// The name under which a server that listens on `host` is reached, unless that is any address.
fn listening_host(host: &str) -> Option<String> {
    match host.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => None,
        Ok(IpAddr::V6(address)) => Some(format!("[{address}]")),
        Ok(IpAddr::V4(_)) | Err(_) => Some(host.to_ascii_lowercase()),
    }
}

fn allowed_host(host: &str) -> Result<String> {
    let bad = || {
        Error::new(Code::InvalidRequest, format!("`{host}` is not a host name to allow"))
            .with_hint("a name or an address, without scheme and port")
    };
    if let Ok(IpAddr::V6(address)) = host.parse() {
        return Ok(format!("[{address}]"));
    }
    let plain = without_port(host) == host && !host.is_empty();
    let named = host.chars().all(|each| each.is_ascii_graphic() && !"/*@".contains(each));
    if plain && named { Ok(host.to_ascii_lowercase()) } else { Err(bad()) }
}

fn allowed_origin(origin: &str) -> Result<HeaderValue> {
    let (scheme, rest) = origin.split_once("://").unwrap_or_default();
    let origin_like = !scheme.is_empty() && !rest.is_empty() && !rest.contains(['/', '*']);
    let value = HeaderValue::from_str(origin).ok().filter(|_| origin_like || origin == "null");
    value.ok_or_else(|| {
        Error::new(Code::InvalidRequest, format!("`{origin}` is not an origin to allow"))
            .with_hint("scheme, host and port as browsers send them: `https://example.org`")
    })
}

fn without_port(authority: &str) -> &str {
    let name_end = authority.rfind(']').map_or(0, |bracket| bracket + 1);
    match authority[name_end..].find(':') {
        Some(colon) => &authority[..name_end + colon],
        None => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(hosts: &[&str], origins: &[&str]) -> Guard {
        let strings = |items: &[&str]| items.iter().map(|&item| item.to_owned()).collect();
        Guard::new(&ServeConfig {
            allowed_hosts: strings(hosts),
            allowed_origins: strings(origins),
            ..ServeConfig::default()
        })
        .unwrap()
    }

    fn passes(guard: &Guard, host: &str, origin: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        guard.judge(&Uri::from_static("/health"), &headers).is_ok()
    }

    #[test]
    fn only_known_names_pass_on_any_port_and_in_any_case() {
        let guard = guard(&["Studio.local", "fd00::1"], &[]);
        let known = ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:80", "[::1]"];
        let listed = ["studio.local:8080", "[fd00::1]:8080"];
        for host in known.iter().chain(&listed) {
            assert!(passes(&guard, host, None), "{host}");
        }
        let foreign = ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8080"];
        let odd = ["", ":8080", "[::2]", "localhost@evil.example", "evil.example@localhost"];
        for host in foreign.iter().chain(&odd) {
            assert!(!passes(&guard, host, None), "{host}");
        }
    }

    #[test]
    fn a_request_target_with_another_name_does_not_pass_under_our_host_header() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("localhost"));
        let uri = Uri::from_static("http://evil.example/health");
        assert!(guard(&[], &[]).judge(&uri, &headers).is_err());
    }

    #[test]
    fn pages_pass_from_this_server_and_from_listed_origins_only() {
        let guard = guard(&[], &["https://chat.example"]);
        assert!(passes(&guard, "localhost:8080", Some("http://localhost:8080")));
        assert!(passes(&guard, "localhost:8080", Some("https://chat.example")));
        for origin in ["http://localhost:3000", "https://evil.example", "null", "http://"] {
            assert!(!passes(&guard, "localhost:8080", Some(origin)), "{origin}");
        }
    }

    #[test]
    fn a_host_or_origin_that_can_be_none_is_refused_at_start() {
        for host in ["", "http://a", "a:80", "*", "a b"] {
            assert!(allowed_host(host).is_err(), "{host}");
        }
        for origin in
            ["", "*", "example.org", "https://", "https://a/", "https://*.a", "https://a\n"]
        {
            assert!(allowed_origin(origin).is_err(), "{origin}");
        }
        assert!(allowed_origin("null").is_ok());
    }

    #[test]
    fn a_server_on_one_address_goes_by_it_and_one_on_all_addresses_by_no_extra_name() {
        assert_eq!(listening_host("192.168.1.5").as_deref(), Some("192.168.1.5"));
        assert_eq!(listening_host("fd00::1").as_deref(), Some("[fd00::1]"));
        assert_eq!(listening_host("0.0.0.0"), None);
        assert_eq!(listening_host("::"), None);
    }
}

//! The hub over HTTP: requests, redirects, refusals, and trying again.
//!
//! The token goes to the hub's own scheme, host and port only. Redirects are followed here rather than by the
//! client, so that this can be seen: a request to any other place, such as a CDN, is made without it, and none goes
//! from `https` to `http`.

mod config;
mod listing;
mod patience;
mod refusal;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::RwLock;
use rand::RngExt;
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, IF_RANGE, LOCATION, RANGE};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use serde_json::Value;

use crate::clock::Clock;
use crate::error::{Code, Error, Result};
use crate::hub::repo::{Commit, RepoFile, RepoId, Revision};
use crate::hub::token::Token;
use crate::limits;

pub use config::RemoteConfig;
pub(crate) use listing::is_gated;
pub use listing::{ListedFile, Repository};
pub use patience::Patience;
pub(crate) use patience::{Attempts, Trouble};

/// A hub that can be asked. Its clones share connections.
#[derive(Debug, Clone)]
pub struct Remote {
    client: Client,
    config: RemoteConfig,
    /// What is shown to the hub; its clones show the same.
    token: Arc<RwLock<Option<Token>>>,
    clock: Clock,
}

/// Where an answer is to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Beginning {
    /// Bytes that are there already.
    pub(crate) bytes: u64,
    /// The tag of the content that they are of, if one was told.
    pub(crate) tag: Option<String>,
}

impl Remote {
    /// A hub as `config` has it. Pauses are read from `clock`.
    ///
    /// # Errors
    /// `HubUnreachable` when this machine has no certificates to check it with, or a proxy's address is wrong.
    pub fn new(config: RemoteConfig, clock: Clock) -> Result<Self> {
        // Only the first call of a process installs it; a later one finds the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = Client::builder()
            .user_agent(concat!("slipstream/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .connect_timeout(Duration::from_millis(limits::HUB_CONNECT_MS_MAX))
            .read_timeout(config.silence_max);
        // A mirror on this machine is not asked through a proxy.
        let builder = if is_loopback(&config.endpoint) { builder.no_proxy() } else { builder };
        let client = builder.build().map_err(|error| {
            Error::new(Code::HubUnreachable, format!("failed to set up HTTP: {}", told(&error)))
        })?;
        let token = Arc::new(RwLock::new(config.token.clone()));
        Ok(Self { client, config, token, clock })
    }

    /// Shows `token` from now on, or none; clones do too.
    pub fn show(&self, token: Option<Token>) {
        *self.token.write() = token;
    }

    /// The same hub, asked with other patience.
    #[must_use]
    pub fn with_patience(&self, patience: Patience) -> Self {
        let config = RemoteConfig { patience, ..self.config.clone() };
        Self { config, ..self.clone() }
    }

    /// How it is asked.
    pub fn config(&self) -> &RemoteConfig {
        &self.config
    }

    /// The clock that pauses are read from.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Waits before another attempt after `trouble`.
    ///
    /// # Errors
    /// The trouble's own, when there is to be none.
    pub(crate) async fn pause(&self, attempts: &mut Attempts, trouble: Trouble) -> Result<()> {
        let pause = attempts.after(trouble, rand::rng().random())?;
        self.clock.sleep_until(self.clock.now().saturating_add(pause)).await;
        Ok(())
    }

    /// Where file `path` of `repo` at `commit` is.
    pub(crate) fn file_url(&self, repo: &RepoId, commit: &Commit, path: &RepoFile) -> Url {
        let steps =
            repo_steps(repo).chain(["resolve", commit.as_str()]).chain(path.as_str().split('/'));
        self.url(steps)
    }

    /// The address of the API that describes `repo` at `revision`.
    fn repository_url(&self, repo: &RepoId, revision: &Revision) -> Url {
        let steps = ["api", "models"].into_iter().chain(repo_steps(repo));
        self.url(steps.chain(["revision", revision.as_str()]))
    }

    /// The address of the API that lists the files of `repo` at `commit`.
    fn tree_url(&self, repo: &RepoId, commit: &Commit) -> Url {
        let steps = ["api", "models"].into_iter().chain(repo_steps(repo));
        let mut url = self.url(steps.chain(["tree", commit.as_str()]));
        url.set_query(Some("recursive=true"));
        url
    }

    /// The address below the endpoint with these steps, each made harmless.
    pub(crate) fn url<'a>(&self, steps: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.config.endpoint.clone();
        url.path_segments_mut().expect("an endpoint has a host").pop_if_empty().extend(steps);
        url
    }

    /// Asks for JSON, as often as patience has it, and returns it with the answer's head. `about` is what messages
    /// say was asked for.
    pub(crate) async fn json(&self, url: &Url, about: &str) -> Result<(Value, HeaderMap)> {
        let (body, headers) = self.bytes(url, about, limits::HUB_ANSWER_BYTES_MAX).await?;
        let value = serde_json::from_slice(&body).map_err(|error| {
            Error::new(
                Code::HubUnreachable,
                format!("the hub's answer about {about} is no JSON: {error}"),
            )
            .with_hint("is `HF_ENDPOINT` a hub, and does no login page stand before it?")
        })?;
        Ok((value, headers))
    }

    /// Asks for at most `bytes_max` bytes, as often as patience has it.
    pub(crate) async fn bytes(
        &self,
        url: &Url,
        about: &str,
        bytes_max: usize,
    ) -> Result<(Bytes, HeaderMap)> {
        let mut attempts = Attempts::new(self.config.patience);
        loop {
            match self.try_bytes(url, about, bytes_max).await {
                Ok(answer) => return Ok(answer),
                Err(trouble) => self.pause(&mut attempts, trouble).await?,
            }
        }
    }

    async fn try_bytes(
        &self,
        url: &Url,
        about: &str,
        bytes_max: usize,
    ) -> Result<(Bytes, HeaderMap), Trouble> {
        let mut response = self.get(url, about, None).await?;
        let headers = response.headers().clone();
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|error| broken(about, &error))? {
            if body.len() + piece.len() > bytes_max {
                let message =
                    format!("the hub's answer about {about} is longer than {bytes_max} bytes");
                return Err(Trouble::Lasting(Error::new(Code::HubUnreachable, message)));
            }
            body.extend_from_slice(&piece);
        }
        Ok((body.into(), headers))
    }

    /// Asks once, from a place on if `from` says so, follows redirects, and returns an answer that is no refusal. Its
    /// body is unread.
    pub(crate) async fn get(
        &self,
        url: &Url,
        about: &str,
        from: Option<&Beginning>,
    ) -> Result<Response, Trouble> {
        if self.config.offline {
            return Err(Trouble::Lasting(offline(about)));
        }
        let mut url = url.clone();
        for _ in 0..=limits::HUB_REDIRECTS_MAX {
            let response = self.ask(&url, about, from).await?;
            if !response.status().is_redirection() {
                let shown = self.token.read().is_some();
                return refusal::check(response, about, shown).await;
            }
            url = redirected(&url, response.headers(), about).map_err(Trouble::Lasting)?;
        }
        let message =
            format!("failed to fetch {about}: more than {} redirects", limits::HUB_REDIRECTS_MAX);
        Err(Trouble::Lasting(Error::new(Code::HubUnreachable, message)))
    }

    async fn ask(
        &self,
        url: &Url,
        about: &str,
        from: Option<&Beginning>,
    ) -> Result<Response, Trouble> {
        let mut headers = HeaderMap::new();
        // Lengths and places are those of the files themselves.
        headers.insert(ACCEPT_ENCODING, "identity".parse().expect("it is a word"));
        if let Some(token) = &*self.token.read()
            && url.origin() == self.config.endpoint.origin()
        {
            headers.insert(AUTHORIZATION, token.header());
        }
        if let Some(from) = from {
            headers
                .insert(RANGE, format!("bytes={}-", from.bytes).parse().expect("it is a number"));
            if let Some(tag) = from.tag.as_ref().and_then(|tag| tag.parse().ok()) {
                headers.insert(IF_RANGE, tag);
            }
        }
        let sent = self.client.get(url.clone()).headers(headers).send().await;
        sent.map_err(|error| unreachable(about, url, &error))
    }
}

fn repo_steps(repo: &RepoId) -> impl Iterator<Item = &str> {
    repo.owner().into_iter().chain([repo.name()])
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let address = host.parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Where a redirect leads.
fn redirected(url: &Url, headers: &HeaderMap, about: &str) -> Result<Url> {
    let target = headers.get(LOCATION).and_then(|target| target.to_str().ok());
    let target = target.and_then(|target| url.join(target).ok());
    let known = target.filter(|target| ["http", "https"].contains(&target.scheme()));
    let safe = known.filter(|target| url.scheme() == "http" || target.scheme() == "https");
    safe.ok_or_else(|| {
        Error::new(
            Code::HubUnreachable,
            format!("failed to fetch {about}: it is redirected to nowhere safe"),
        )
    })
}

fn offline(about: &str) -> Error {
    Error::new(
        Code::HubUnreachable,
        format!("failed to fetch {about}: this process is told to stay offline"),
    )
    .with_hint("unset `HF_HUB_OFFLINE` to ask the hub")
}

/// That no answer came. An address may hold a signature behind its `?`, so only its host is told.
fn unreachable(about: &str, url: &Url, error: &reqwest::Error) -> Trouble {
    let host = url.host_str().unwrap_or_default();
    let message = format!("failed to fetch {about}: no answer from `{host}`: {}", told(error));
    Trouble::passing(
        Error::new(Code::HubUnreachable, message)
            .with_hint("is this machine connected? Proxies are taken from `HTTPS_PROXY`"),
    )
}

/// That an answer broke off.
pub(crate) fn broken(about: &str, error: &reqwest::Error) -> Trouble {
    let message = format!("failed to fetch {about}: the answer broke off: {}", told(error));
    Trouble::passing(Error::new(Code::HubUnreachable, message))
}

/// The innermost reason of an error, which holds no address.
fn told(error: &reqwest::Error) -> String {
    let mut reason: &dyn std::error::Error = error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    if reason.is::<reqwest::Error>() {
        let kind = if error.is_timeout() { "it took too long" } else { "it failed" };
        return kind.to_owned();
    }
    reason.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(endpoint: &str) -> Remote {
        Remote::new(RemoteConfig::at(endpoint).unwrap(), Clock::manual()).unwrap()
    }

    #[test]
    fn addresses_lie_below_the_endpoint_and_keep_odd_characters_harmless() {
        let repo = "owner/name".parse().unwrap();
        let commit = "0123456789abcdef0123456789abcdef01234567".parse().unwrap();
        let path: RepoFile = "a b/100%#.json".parse().unwrap();
        let remote = remote("http://127.0.0.1:9/mirror/");
        assert_eq!(
            remote.file_url(&repo, &commit, &path).as_str(),
            "http://127.0.0.1:9/mirror/owner/name/resolve/0123456789abcdef0123456789abcdef01234567/a%20b/100%25%23.json"
        );
        let revision = "refs/pr/1".parse().unwrap();
        assert_eq!(
            remote.repository_url(&repo, &revision).as_str(),
            "http://127.0.0.1:9/mirror/api/models/owner/name/revision/refs%2Fpr%2F1"
        );
    }

    #[test]
    fn redirects_lead_to_the_web_and_never_from_a_safe_connection_to_an_open_one() {
        let lead = |from: &str, to: &str| {
            let headers = HeaderMap::from_iter([(LOCATION, to.parse().unwrap())]);
            redirected(&Url::parse(from).unwrap(), &headers, "x").map(String::from).ok()
        };
        assert_eq!(lead("https://a/b/c", "../d").as_deref(), Some("https://a/d"));
        assert_eq!(lead("http://a/b", "https://c/d").as_deref(), Some("https://c/d"));
        assert_eq!(lead("http://a/b", "http://c:1/d").as_deref(), Some("http://c:1/d"));
        assert_eq!(lead("https://a/b", "http://a/b"), None);
        assert_eq!(lead("http://a/b", "file:///etc/passwd"), None);
        assert!(redirected(&Url::parse("http://a").unwrap(), &HeaderMap::new(), "x").is_err());
    }

    #[test]
    fn loopback_is_known_by_name_and_number() {
        for (endpoint, loopback) in [
            ("http://localhost:1", true),
            ("http://127.0.0.9:1", true),
            ("http://[::1]:1", true),
            ("https://huggingface.co", false),
            ("http://10.0.0.1", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(endpoint).unwrap()), loopback, "{endpoint}");
        }
    }
}

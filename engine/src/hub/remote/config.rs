//! Which hub is asked, and how.

use std::time::Duration;

use reqwest::Url;

use crate::error::{Error, Result};
use crate::hub::remote::Patience;
use crate::hub::token::{Token, find_token};
use crate::limits;

/// The hub that is asked unless `HF_ENDPOINT` names a mirror.
const ENDPOINT: &str = "https://huggingface.co";

/// How a [`Remote`](crate::hub::remote::Remote) asks.
#[derive(Debug, Clone)]
pub struct RemoteConfig {
    /// The hub's address: a scheme, a host, and perhaps a port and a path below which it answers.
    pub endpoint: Url,
    /// The token that is shown to it first, and to nobody else.
    pub token: Option<Token>,
    /// Nothing is asked at all (`HF_HUB_OFFLINE`).
    pub offline: bool,
    /// What failed attempts may come to.
    pub patience: Patience,
    /// How long it may be silent in the middle of an answer.
    pub silence_max: Duration,
}

impl RemoteConfig {
    /// What the environment of this process says: `HF_ENDPOINT`, `HF_HUB_OFFLINE`, and where tokens are kept.
    ///
    /// # Errors
    /// `InvalidRequest` for an address or a token that is none, `Io` when a token cannot be read.
    pub fn of_process() -> Result<Self> {
        let text = |name: &str| {
            let value = std::env::var_os(name).filter(|value| !value.is_empty());
            value.map(|value| value.to_string_lossy().into_owned())
        };
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let offline = text("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value));
        // Where nothing is asked there is nobody to show a token to, and a keychain may ask the user for it.
        let token = if offline { None } else { find_token()?.map(|(token, _)| token) };
        Ok(Self { token, offline, ..Self::at(&endpoint)? })
    }

    /// The hub at `endpoint`, without a token.
    ///
    /// # Errors
    /// `InvalidRequest` for what is no address of a hub.
    pub fn at(endpoint: &str) -> Result<Self> {
        Ok(Self {
            endpoint: parse_endpoint(endpoint)?,
            token: None,
            offline: false,
            patience: Patience::default(),
            silence_max: Duration::from_millis(limits::HUB_SILENCE_MS_MAX),
        })
    }
}

fn parse_endpoint(text: &str) -> Result<Url> {
    let refused = || {
        Error::invalid("HF_ENDPOINT", format!("`{}` is no address of a hub", text.escape_debug()))
            .with_hint("write it as `https://huggingface.co`")
    };
    let url = Url::parse(text.trim_end_matches('/')).map_err(|_| refused())?;
    let plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    if !["http", "https"].contains(&url.scheme()) || url.host_str().is_none() || !plain {
        return Err(refused());
    }
    Ok(url)
}

/// As huggingface_hub reads switches.
fn is_true(text: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&text.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_address_of_the_web_without_a_name_in_it() {
        for text in ["https://huggingface.co", "https://huggingface.co/", "http://127.0.0.1:80/hf"]
        {
            assert!(parse_endpoint(text).is_ok(), "{text}");
        }
        for text in
            ["", "huggingface.co", "file:///etc", "ftp://x", "https://u:p@x", "https://x?y=z"]
        {
            assert!(parse_endpoint(text).is_err(), "{text}");
        }
    }

    #[test]
    fn switches_are_read_as_hugging_faces_tools_do() {
        assert!(["1", "ON", "yes", "True"].into_iter().all(is_true));
        assert!(!["0", "", "off", "no", "2"].into_iter().any(is_true));
    }
}

//! The token that opens gated and private repositories: where it is found, kept and hidden.
//!
//! It is looked for where Hugging Face's tools keep theirs, and in a store of our own: the keychain on macOS, a file
//! for the user alone elsewhere. Nothing shows it: its `Debug` has none of it, and only a request's header is made of
//! it, which is marked as sensitive.

mod store;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use reqwest::header::HeaderValue;

use crate::error::{Code, Error, Result};

pub use store::TokenStore;

/// Characters of a token: those of today have 37.
const TOKEN_CHARS_MAX: usize = 512;

/// A token. See the module.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Reads a token, without the spaces around it.
    ///
    /// # Errors
    /// `InvalidRequest` for what cannot be one; the text is not told.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let fine = (1..=TOKEN_CHARS_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !fine {
            return Err(Error::invalid("token", "the text given is no token of the hub")
                .with_hint(
                    "a token is one word; make one at https://huggingface.co/settings/tokens",
                ));
        }
        Ok(Self(text.to_owned()))
    }

    /// The header that shows it to the hub.
    pub(super) fn header(&self) -> HeaderValue {
        let value = HeaderValue::from_str(&format!("Bearer {}", self.0));
        let mut value = value.expect("a token is made of visible ASCII characters");
        value.set_sensitive(true);
        value
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(hidden)")
    }
}

/// Where a token was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// A variable of the environment.
    Variable(&'static str),
    /// A file of Hugging Face's tools.
    File(PathBuf),
    /// Our own store.
    Store,
}

impl fmt::Display for TokenSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => write!(formatter, "the variable `{name}`"),
            Self::File(path) => write!(formatter, "the file `{}`", path.display()),
            Self::Store => formatter.write_str(TokenStore::NAME),
        }
    }
}

/// The token of this process and where it comes from: `HF_TOKEN`, the file that `HF_TOKEN_PATH` names, our own store,
/// or the file that Hugging Face's tools keep, whichever comes first. `None` without any.
///
/// # Errors
/// `InvalidRequest` when the first of them holds no token, `Io` when it cannot be read.
pub fn find_token() -> Result<Option<(Token, TokenSource)>> {
    find_token_with(&TokenStore::of_process(), true)
}

/// As [`find_token`], in `store` alone where `everywhere` does not hold, else with that in our own store's place.
///
/// # Errors
/// As [`find_token`].
pub fn find_token_with(
    store: &TokenStore,
    everywhere: bool,
) -> Result<Option<(Token, TokenSource)>> {
    match everywhere {
        true => find(&|name| std::env::var_os(name), dirs::home_dir().as_deref(), store),
        false => Ok(store.get()?.map(|token| (token, TokenSource::Store))),
    }
}

fn find(
    variable: &dyn Fn(&str) -> Option<OsString>,
    home: Option<&Path>,
    store: &TokenStore,
) -> Result<Option<(Token, TokenSource)>> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Some(value) = set(name) {
            let token = Token::parse(&value.to_string_lossy());
            let token = token
                .map_err(|error| error.while_doing(format_args!("failed to read `{name}`")))?;
            return Ok(Some((token, TokenSource::Variable(name))));
        }
    }
    if let Some(found) = set("HF_TOKEN_PATH").and_then(|path| read_file(path.into()).transpose()) {
        return found.map(Some);
    }
    if let Some(token) = store.get()? {
        return Ok(Some((token, TokenSource::Store)));
    }
    // As huggingface_hub's `constants.py` has it.
    let folder = set("HF_HOME").map(PathBuf::from);
    let folder = folder
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| Path::new(&cache).join("huggingface")))
        .or_else(|| home.map(|home| home.join(".cache/huggingface")));
    folder.map_or(Ok(None), |folder| read_file(folder.join("token")))
}

/// The token in a file; `None` where there is no file, or nothing in it.
fn read_file(path: PathBuf) -> Result<Option<(Token, TokenSource)>> {
    let found = store::read(&path)?;
    Ok(found.map(|token| (token, TokenSource::File(path))))
}

/// That a token cannot be kept or read where it should be.
fn store_failed(verb: &str, place: impl fmt::Display, why: impl fmt::Display) -> Error {
    Error::new(Code::Io, format!("failed to {verb} the token in {place}: {why}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_token_is_one_visible_word_and_is_never_shown() {
        let token = Token::parse(" hf_secret\n").unwrap();
        assert_eq!(format!("{token:?}"), "Token(hidden)");
        assert!(!format!("{:?}", token.header()).contains("secret"));
        for text in ["", "  ", "a b", "hf_\n_x", "hf_é", &"x".repeat(513)] {
            let error = Token::parse(text).unwrap_err();
            assert!(text.trim().is_empty() || !error.to_string().contains(text.trim()));
        }
    }

    #[test]
    fn tokens_are_looked_for_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let store = TokenStore::in_file(at("own"));
        fs::create_dir_all(at(".cache/huggingface")).unwrap();
        let mut variables: Vec<(&str, OsString)> = Vec::new();
        let found = |variables: &[(&str, OsString)]| {
            let variable = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.clone())
            };
            find(&variable, Some(folder.path()), &store).unwrap()
        };
        assert_eq!(found(&variables), None);
        fs::write(at(".cache/huggingface/token"), "hf_tools\n").unwrap();
        let token = |text| Token::parse(text).unwrap();
        let tools = (token("hf_tools"), TokenSource::File(at(".cache/huggingface/token")));
        assert_eq!(found(&variables), Some(tools));
        store.set(&token("hf_own")).unwrap();
        assert_eq!(found(&variables), Some((token("hf_own"), TokenSource::Store)));
        variables.push(("HF_TOKEN_PATH", at("named").into()));
        assert_eq!(found(&variables), Some((token("hf_own"), TokenSource::Store)));
        fs::write(at("named"), "hf_named").unwrap();
        assert_eq!(found(&variables), Some((token("hf_named"), TokenSource::File(at("named")))));
        variables.push(("HF_TOKEN", "hf_variable".into()));
        let variable = TokenSource::Variable("HF_TOKEN");
        assert_eq!(found(&variables), Some((token("hf_variable"), variable)));
        assert!(store.remove().unwrap());
        assert!(!store.remove().unwrap());
    }
}

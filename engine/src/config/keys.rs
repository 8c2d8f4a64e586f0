//! API keys: who may use a server, and under which name.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use crate::error::{Code, Error, Result};
use crate::limits;

/// Shorter keys are guessed.
const KEY_CHARS_MIN: usize = 8;

/// A key, and the name of the client that it was given to. Its text shows nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    name: String,
    key: String,
}

impl ApiKey {
    /// Whose key it is.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key itself.
    pub fn secret(&self) -> &[u8] {
        self.key.as_bytes()
    }

    /// The keys of a file: one `NAME=KEY` a line; empty lines and those that start with `#` are none.
    ///
    /// # Errors
    /// `Io` when it cannot be read, `InvalidRequest` naming the line that holds no key.
    pub fn read_file(path: &Path) -> Result<Vec<Self>> {
        let attempt = format!("failed to read API keys from `{}`", path.display());
        let text =
            fs::read_to_string(path).map_err(|error| Error::from(error).while_doing(&attempt))?;
        let lines = text.lines().map(str::trim).zip(1..);
        let keys = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
        keys.map(|(line, number)| {
            line.parse()
                .map_err(|error: Error| error.while_doing(format_args!("{attempt}: line {number}")))
        })
        .collect()
    }
}

impl FromStr for ApiKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |message: String| Err(Error::new(Code::InvalidRequest, message));
        let Some((name, key)) = text.split_once('=') else {
            return bad("an API key is written NAME=KEY".to_owned());
        };
        let visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if name.is_empty() || !visible(name) || name.len() > limits::CLIENT_NAME_CHARS_MAX {
            let most = limits::CLIENT_NAME_CHARS_MAX;
            return bad(format!(
                "an API key's name is 1 to {most} visible ASCII characters, got `{name}`"
            ));
        }
        if key.len() < KEY_CHARS_MIN || !visible(key) {
            return bad(format!(
                "the API key of `{name}` is not {KEY_CHARS_MIN} or more visible ASCII characters"
            ));
        }
        Ok(Self { name: name.to_owned(), key: key.to_owned() })
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ApiKey").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_a_name_and_its_text_may_hold_equal_signs() {
        let key: ApiKey = "laptop=sk-12=34==".parse().unwrap();
        assert_eq!((key.name(), key.secret()), ("laptop", b"sk-12=34==".as_slice()));
        assert!(!format!("{key:?}").contains("sk-"), "{key:?}");
    }

    #[test]
    fn what_can_be_no_key_is_refused_without_repeating_it() {
        for text in
            ["secretsecret", "=secretsecret", "a b=secretsecret", "a=secret", "a=secret secret"]
        {
            let error = text.parse::<ApiKey>().unwrap_err();
            assert_eq!(error.code(), Code::InvalidRequest);
            assert!(!error.message().contains("secret"), "{error}");
        }
        let long = format!("{}=secretsecret", "n".repeat(limits::CLIENT_NAME_CHARS_MAX + 1));
        assert!(long.parse::<ApiKey>().is_err());
    }

    #[test]
    fn a_file_holds_a_key_a_line_and_a_bad_line_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, "# mine\n\nlaptop=sk-laptop\n  studio=sk-studio  \n").unwrap();
        let keys = ApiKey::read_file(file.path()).unwrap();
        assert_eq!(keys.iter().map(ApiKey::name).collect::<Vec<_>>(), ["laptop", "studio"]);
        assert_eq!(keys[1].secret(), b"sk-studio");
        fs::write(&file, "laptop=sk-laptop\nnonsense\n").unwrap();
        let error = ApiKey::read_file(file.path()).unwrap_err();
        assert!(error.message().contains("line 2"), "{error}");
        let missing = ApiKey::read_file(Path::new("/nowhere/keys")).unwrap_err();
        assert!(missing.code() == Code::Io && missing.message().contains("/nowhere/keys"));
    }
}

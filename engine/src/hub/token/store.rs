//! Our own place for the token.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use super::{Token, store_failed};
use crate::error::Result;
#[cfg(not(target_os = "macos"))]
use crate::error::{Code, Error};

/// Bytes of a file with a token that are read.
const FILE_BYTES_MAX: u64 = 4096;

/// Keeps one token for this user: in the keychain on macOS, in a file elsewhere.
#[derive(Debug, Clone)]
pub struct TokenStore(Place);

#[derive(Debug, Clone)]
enum Place {
    /// A file that only the user reads and writes.
    File(PathBuf),
    /// The user's keychain.
    #[cfg(target_os = "macos")]
    Keychain,
    /// This user has no folder for settings.
    #[cfg(not(target_os = "macos"))]
    Nowhere,
}

impl TokenStore {
    /// What the store is called.
    pub const NAME: &'static str =
        if cfg!(target_os = "macos") { "the keychain" } else { "Slipstream's own file" };

    /// The store of whoever runs this process.
    pub fn of_process() -> Self {
        Self(place_of_process())
    }

    /// A store in the file at `path`.
    pub fn in_file(path: PathBuf) -> Self {
        Self(Place::File(path))
    }

    /// The token, if one is kept.
    ///
    /// # Errors
    /// `Io` when it cannot be read, `InvalidRequest` when what is kept is none.
    pub fn get(&self) -> Result<Option<Token>> {
        match &self.0 {
            Place::File(path) => read(path),
            #[cfg(target_os = "macos")]
            Place::Keychain => keychain::get(),
            #[cfg(not(target_os = "macos"))]
            Place::Nowhere => Ok(None),
        }
    }

    /// Keeps `token` in place of the one before.
    ///
    /// # Errors
    /// `Io` when that fails.
    pub fn set(&self, token: &Token) -> Result<()> {
        match &self.0 {
            Place::File(path) => {
                write(path, token).map_err(|error| store_failed("keep", path.display(), error))
            }
            #[cfg(target_os = "macos")]
            Place::Keychain => keychain::set(token),
            #[cfg(not(target_os = "macos"))]
            Place::Nowhere => {
                Err(Error::new(Code::Io, "failed to keep the token: this user has no home")
                    .with_hint("set `HF_TOKEN` instead"))
            }
        }
    }

    /// Forgets the token; false where none was kept.
    ///
    /// # Errors
    /// `Io` when that fails.
    pub fn remove(&self) -> Result<bool> {
        match &self.0 {
            Place::File(path) => match fs::remove_file(path) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
                Err(error) => Err(store_failed("forget", path.display(), error)),
            },
            #[cfg(target_os = "macos")]
            Place::Keychain => keychain::remove(),
            #[cfg(not(target_os = "macos"))]
            Place::Nowhere => Ok(false),
        }
    }
}

#[cfg(target_os = "macos")]
fn place_of_process() -> Place {
    Place::Keychain
}

#[cfg(not(target_os = "macos"))]
fn place_of_process() -> Place {
    let folder = dirs::config_dir();
    folder.map_or(Place::Nowhere, |folder| Place::File(folder.join("slipstream/hub-token")))
}

/// The token in a file; `None` where there is no file, or nothing in it.
pub(super) fn read(path: &Path) -> Result<Option<Token>> {
    let mut text = String::new();
    let outcome =
        File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
    match outcome {
        Ok(_) if text.trim().is_empty() => Ok(None),
        Ok(_) => Token::parse(&text).map(Some).map_err(|error| {
            error.while_doing(format_args!("failed to read `{}`", path.display()))
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(store_failed("read", path.display(), error)),
    }
}

/// The file is for the user alone before anything is in it, and has its name only when it is whole.
fn write(path: &Path, token: &Token) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let aside = path.with_extension("new");
    match fs::remove_file(&aside) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&aside)?;
    file.write_all(token.0.as_bytes())?;
    file.sync_all()?;
    fs::rename(&aside, path)
}

#[cfg(target_os = "macos")]
mod keychain {
    use security_framework::base::Error as KeychainError;
    use security_framework::passwords::{
        delete_generic_password, get_generic_password, set_generic_password,
    };

    use super::{Token, TokenStore, store_failed};
    use crate::error::{Error, Result};

    const SERVICE: &str = "Slipstream";
    const ACCOUNT: &str = "huggingface-token";
    /// `errSecItemNotFound` of `SecBase.h`.
    const NOT_FOUND: i32 = -25_300;

    pub(super) fn get() -> Result<Option<Token>> {
        match get_generic_password(SERVICE, ACCOUNT) {
            Ok(bytes) => Token::parse(&String::from_utf8_lossy(&bytes)).map(Some),
            Err(error) if error.code() == NOT_FOUND => Ok(None),
            Err(error) => Err(failed("read", error)),
        }
    }

    pub(super) fn set(token: &Token) -> Result<()> {
        set_generic_password(SERVICE, ACCOUNT, token.0.as_bytes())
            .map_err(|error| failed("keep", error))
    }

    pub(super) fn remove() -> Result<bool> {
        match delete_generic_password(SERVICE, ACCOUNT) {
            Ok(()) => Ok(true),
            Err(error) if error.code() == NOT_FOUND => Ok(false),
            Err(error) => Err(failed("forget", error)),
        }
    }

    fn failed(verb: &str, error: KeychainError) -> Error {
        store_failed(verb, TokenStore::NAME, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_kept_token_is_for_its_user_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slipstream/hub-token");
        let store = TokenStore::in_file(path.clone());
        for text in ["hf_one", "hf_two"] {
            store.set(&Token::parse(text).unwrap()).unwrap();
            assert_eq!(store.get().unwrap(), Some(Token::parse(text).unwrap()));
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}

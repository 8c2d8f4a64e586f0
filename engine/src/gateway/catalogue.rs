//! Where models come from: what there is to load, as plain data.

use std::collections::BTreeMap;
use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::error::{Code, Error, Result};

/// A model that can be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The name clients call it by.
    pub id: Arc<str>,
    /// Its directory: config.json, tokenizer.json, safetensors.
    pub directory: PathBuf,
    /// What its weights will take in memory, roughly; 0 when nobody knows.
    pub weights_bytes: u64,
    /// How far its download is, while it is not whole.
    pub download: Option<Download>,
}

/// How far a download is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Download {
    /// Bytes that are on disk.
    pub done_bytes: u64,
    /// Bytes of all its files.
    pub total_bytes: u64,
}

/// The models that there are. It may change at any time, so it is asked each time.
pub trait Catalogue: Send + Sync {
    /// The model of that id, or of another name that means only it.
    fn find(&self, id: &str) -> Option<Source>;

    /// All of them, in the order in which people should see them.
    fn sources(&self) -> Vec<Source>;

    /// Looks for models that came since. Resolves to whether a name that was not found may be found now.
    fn refresh(&self) -> BoxFuture<'_, bool> {
        Box::pin(ready(false))
    }

    /// Why a name that is not found cannot be served, where there is more to say than that nobody has it.
    fn refusal(&self, _name: &str) -> Option<Error> {
        None
    }
}

/// The models whose directories were named at start.
#[derive(Debug, Clone, Default)]
pub struct Directories {
    sources: Vec<Source>,
}

impl Directories {
    /// These models, which are not looked for again.
    ///
    /// # Errors
    /// `InvalidRequest` when two have one id.
    pub fn new(sources: Vec<Source>) -> Result<Self> {
        let mut seen = BTreeMap::new();
        for source in &sources {
            if let Some(other) = seen.insert(&source.id, &source.directory) {
                let (here, id) = (source.directory.display(), &source.id);
                let message = format!("`{}` and `{here}` are both called `{id}`", other.display());
                let error = Error::new(Code::InvalidRequest, message);
                return Err(error.with_hint("rename one: a model is called like its directory"));
            }
        }
        Ok(Self { sources })
    }
}

impl Catalogue for Directories {
    fn find(&self, id: &str) -> Option<Source> {
        self.sources.iter().find(|source| *source.id == *id).cloned()
    }

    fn sources(&self) -> Vec<Source> {
        self.sources.clone()
    }
}

/// The name of the model in `directory`: that of the directory.
pub fn directory_id(directory: &Path) -> String {
    let path = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    path.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(id: &str, directory: &str) -> Source {
        Source { id: id.into(), directory: directory.into(), weights_bytes: 1, download: None }
    }

    #[test]
    fn models_keep_their_order_and_are_found_by_their_whole_id() {
        let models = Directories::new(vec![source("b", "/b"), source("a", "/a")]).unwrap();
        let ids: Vec<_> = models.sources().into_iter().map(|source| source.id).collect();
        assert_eq!(ids, ["b".into(), Arc::<str>::from("a")]);
        assert_eq!(models.find("a"), Some(source("a", "/a")));
        assert_eq!((models.find(""), models.find("A")), (None, None));
    }

    #[test]
    fn two_directories_of_one_name_are_refused_with_both_paths() {
        let error = Directories::new(vec![source("m", "/x/m"), source("m", "/y/m")]).unwrap_err();
        assert_eq!(error.code(), Code::InvalidRequest);
        assert!(error.message().contains("/x/m") && error.message().contains("/y/m"), "{error}");
    }
}

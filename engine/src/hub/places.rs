//! Where models lie on this machine: our own folder, and the caches of Hugging Face's tools, which we only read.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::{Code, Error, Result};
use crate::hub::repo::RepoId;

/// The folder in our folder of models where downloads grow until they are whole.
const DOWNLOADS_FOLDER: &str = ".downloads";

/// The folders that hold models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Our own: `<owner>/<name>/` for each model, with its files as in the repository.
    pub models: PathBuf,
    /// Caches of Hugging Face's tools (`models--<owner>--<name>/snapshots/<commit>/`), whether they exist or not.
    pub hugging_face: Vec<PathBuf>,
}

impl Places {
    /// The places of this process: `models` where a flag names one, then what the environment says, then the user's
    /// own folders.
    ///
    /// # Errors
    /// `InvalidRequest` where no flag, variable or home says where models lie.
    pub fn of_process(models: Option<&Path>) -> Result<Self> {
        let folders = UserFolders { data: dirs::data_dir(), home: dirs::home_dir() };
        Self::resolve(models, &|name| std::env::var_os(name), &folders)
    }

    /// As [`Places::of_process`], of any process.
    fn resolve(
        models: Option<&Path>,
        variable: &dyn Fn(&str) -> Option<OsString>,
        folders: &UserFolders,
    ) -> Result<Self> {
        let path = |name: &str| {
            let value = variable(name).filter(|value| !value.is_empty());
            value.map(|value| folders.expand(Path::new(&value)))
        };
        let models = models
            .map(Path::to_owned)
            .or_else(|| path("SLIPSTREAM_MODELS"))
            .or_else(|| folders.data.as_deref().map(default_models))
            .ok_or_else(no_models_folder)?;
        // As huggingface_hub's `constants.py` looks for its cache, on macOS too.
        let hugging_face = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| path("HF_HOME").map(|home| home.join("hub")))
            .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("huggingface/hub")))
            .or_else(|| folders.home.as_deref().map(|home| home.join(".cache/huggingface/hub")));
        Ok(Self { models, hugging_face: hugging_face.into_iter().collect() })
    }

    /// Where the files of `repo` lie in our own folder once they are all there.
    pub fn model(&self, repo: &RepoId) -> PathBuf {
        self.models.join(repo.relative_path())
    }

    /// Where downloads grow.
    pub fn downloads(&self) -> PathBuf {
        self.models.join(DOWNLOADS_FOLDER)
    }

    /// Where the files of `repo` lie while they are being fetched: on the same file system as
    /// [`Places::model`], so that a rename is all that makes a model of them.
    pub fn staging(&self, repo: &RepoId) -> PathBuf {
        self.downloads().join(repo.flat_name())
    }
}

/// The folders that the system gives a user.
#[derive(Debug, Clone)]
struct UserFolders {
    data: Option<PathBuf>,
    home: Option<PathBuf>,
}

impl UserFolders {
    /// `path` with a leading `~` made the home, as Hugging Face's tools read their variables.
    fn expand(&self, path: &Path) -> PathBuf {
        match (path.strip_prefix("~"), &self.home) {
            (Ok(rest), Some(home)) => home.join(rest),
            _ => path.to_owned(),
        }
    }
}

fn default_models(data: &Path) -> PathBuf {
    let name = if cfg!(target_os = "macos") { "Slipstream" } else { "slipstream" };
    data.join(name).join("models")
}

fn no_models_folder() -> Error {
    Error::new(Code::InvalidRequest, "no folder for models is known: this user has no home")
        .with_hint("give `--models DIR` or set `SLIPSTREAM_MODELS`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(flag: Option<&str>, variables: &[(&str, &str)], models: &str, hugging_face: &str) {
        let folders =
            UserFolders { data: Some("/home/x/data".into()), home: Some("/home/x".into()) };
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let places = Places::resolve(flag.map(Path::new), &variable, &folders).unwrap();
        assert_eq!(places.models, Path::new(models));
        assert_eq!(places.hugging_face, [PathBuf::from(hugging_face)]);
    }

    #[test]
    fn a_flag_goes_before_a_variable_and_that_before_the_users_folders() {
        let own = default_models(Path::new("/home/x/data"));
        let own = own.to_str().unwrap();
        let cache = "/home/x/.cache/huggingface/hub";
        check(None, &[], own, cache);
        check(None, &[("SLIPSTREAM_MODELS", "/m")], "/m", cache);
        check(None, &[("SLIPSTREAM_MODELS", "~/m")], "/home/x/m", cache);
        check(Some("f"), &[("SLIPSTREAM_MODELS", "/m")], "f", cache);
        check(None, &[("SLIPSTREAM_MODELS", "")], own, cache);
    }

    #[test]
    fn the_cache_of_hugging_face_is_where_its_tools_look() {
        let own = default_models(Path::new("/home/x/data"));
        let own = own.to_str().unwrap();
        check(None, &[("XDG_CACHE_HOME", "/c")], own, "/c/huggingface/hub");
        check(None, &[("XDG_CACHE_HOME", "/c"), ("HF_HOME", "/hf")], own, "/hf/hub");
        check(None, &[("HF_HOME", "/hf"), ("HUGGINGFACE_HUB_CACHE", "/old")], own, "/old");
        check(
            None,
            &[("HF_HUB_CACHE", "~/new"), ("HUGGINGFACE_HUB_CACHE", "/old")],
            own,
            "/home/x/new",
        );
    }

    #[test]
    fn without_a_home_a_flag_must_say_where_models_lie() {
        let folders = UserFolders { data: None, home: None };
        let error = Places::resolve(None, &|_| None, &folders).unwrap_err();
        assert_eq!(error.code(), Code::InvalidRequest);
        let places = Places::resolve(Some(Path::new("/m")), &|_| None, &folders).unwrap();
        assert_eq!(places, Places { models: "/m".into(), hugging_face: Vec::new() });
    }

    #[test]
    fn a_model_and_its_download_lie_below_the_folder_of_models() {
        let places = Places { models: "/m".into(), hugging_face: Vec::new() };
        let repo = "owner/name".parse().unwrap();
        assert_eq!(places.model(&repo), Path::new("/m/owner/name"));
        assert_eq!(places.staging(&repo), Path::new("/m/.downloads/owner--name"));
    }
}

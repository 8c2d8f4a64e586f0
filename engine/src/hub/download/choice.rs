//! Which files of a repository are fetched: those that a model is read from. What could be code is not among them.

use std::collections::HashMap;

use crate::error::{Code, Error, Result};
use crate::hub::manifest::ManifestFile;
use crate::hub::remote::{ListedFile, Repository};
use crate::hub::repo::RepoFile;

/// The kinds of files that a model is read from, by extension. None of them is ever executed.
const KINDS: [&str; 8] = ["json", "safetensors", "txt", "model", "jinja", "tiktoken", "spm", "md"];
/// Files without an extension that belong to a model's terms.
const TERMS: [&str; 3] = ["LICENSE", "NOTICE", "LICENCE"];
/// What Mistral's and Meta's own programs read; the same weights as in `model.safetensors` again.
const DUPLICATE_PREFIX: &str = "consolidated";

/// What is fetched of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The files, each with what it is checked against.
    pub files: Vec<ManifestFile>,
    /// The paths of those that are left out, as the hub lists them: not to be joined to anything.
    pub left_out: Vec<String>,
}

/// Chooses among the files of `repository`.
///
/// # Errors
/// `BadModel` when it lists a path that would leave the model's folder, or two for one file, or when nothing in it
/// could be loaded.
pub fn choose(repository: &Repository) -> Result<Choice> {
    let mut choice = Choice { files: Vec::new(), left_out: Vec::new() };
    let has_usual_weights = repository
        .files
        .iter()
        .any(|file| file.path.starts_with("model") && is_weights(&file.path));
    for file in &repository.files {
        match wanted(file, has_usual_weights).map_err(|error| hostile(repository, &error))? {
            Some(path) => {
                choice.files.push(ManifestFile { path, bytes: file.bytes, digest: file.digest });
            }
            None => choice.left_out.push(file.path.clone()),
        }
    }
    check_distinct(repository, &choice.files)?;
    check_loadable(repository, &choice)?;
    Ok(choice)
}

/// The path of a file that is fetched; `None` for one that is left out.
fn wanted(file: &ListedFile, has_usual_weights: bool) -> Result<Option<RepoFile>> {
    let text = file.path.as_str();
    if is_hidden(text) {
        return Ok(None);
    }
    let name = text.rsplit(['/', '\\']).next().unwrap_or(text);
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    let known = match &extension {
        Some(extension) => KINDS.contains(&extension.as_str()),
        None => TERMS.contains(&name),
    };
    let duplicate = has_usual_weights && is_weights(text) && name.starts_with(DUPLICATE_PREFIX);
    if !known || duplicate {
        return Ok(None);
    }
    text.parse().map(Some)
}

/// Whether a path is a plain one of which a step begins with a dot, as `.gitattributes`.
fn is_hidden(path: &str) -> bool {
    let steps = || path.split('/');
    let leads_up = |step: &str| step.bytes().all(|byte| byte == b'.') || step.contains('\\');
    steps().any(|step| step.starts_with('.')) && !steps().any(leads_up)
}

fn is_weights(path: &str) -> bool {
    path.ends_with(".safetensors")
}

/// Refuses names that differ in their case alone: on a Mac they are one file.
fn check_distinct(repository: &Repository, files: &[ManifestFile]) -> Result<()> {
    let mut seen = HashMap::new();
    for file in files {
        if let Some(other) = seen.insert(file.path.as_str().to_lowercase(), &file.path) {
            let message = format!(
                "`{}` lists `{other}` and `{}`, which may be one file",
                repository.repo, file.path
            );
            return Err(Error::new(Code::BadModel, message).with_hint("nothing was fetched"));
        }
    }
    Ok(())
}

fn check_loadable(repository: &Repository, choice: &Choice) -> Result<()> {
    let has_config = choice.files.iter().any(|file| file.path.as_str() == "config.json");
    let has_weights = choice.files.iter().any(|file| is_weights(file.path.as_str()));
    if has_config && has_weights {
        return Ok(());
    }
    let missing = if has_config { "weights in safetensors" } else { "`config.json`" };
    let has = |extension: &str| choice.left_out.iter().any(|path| path.ends_with(extension));
    let hint = if has(".gguf") {
        "it has GGUF files: fetch one of them yourself and turn it into a model by `slipstream import`"
    } else if has(".bin") || has(".pth") || has(".pt") {
        "its weights are pickles, which can hold code; look for a conversion, as in `mlx-community`"
    } else {
        "look for a conversion of it, as in `mlx-community`"
    };
    let message = format!("`{}` at `{}` has no {missing}", repository.repo, repository.commit);
    Err(Error::new(Code::BadModel, message).with_hint(hint))
}

fn hostile(repository: &Repository, error: &Error) -> Error {
    let message =
        format!("`{}` lists a file that is refused: {}", repository.repo, error.message());
    Error::new(Code::BadModel, message).with_hint("nothing was fetched")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::manifest::Digest;

    fn repository(paths: &[&str]) -> Repository {
        let file = |path: &&str| ListedFile {
            path: (*path).to_owned(),
            bytes: 1,
            digest: Digest::GitBlob([0; 20]),
        };
        Repository {
            repo: "owner/name".parse().unwrap(),
            commit: "0123456789abcdef0123456789abcdef01234567".parse().unwrap(),
            gated: false,
            files: paths.iter().map(file).collect(),
        }
    }

    fn chosen(paths: &[&str]) -> Vec<String> {
        let choice = choose(&repository(paths)).unwrap();
        choice.files.iter().map(|file| file.path.to_string()).collect()
    }

    #[test]
    fn models_are_fetched_and_code_pickles_and_hidden_files_are_not() {
        let model = [
            "config.json",
            "model.safetensors",
            "tokenizer.model",
            "chat_template.jinja",
            "LICENSE",
        ];
        let other = [
            ".gitattributes",
            "modeling_x.py",
            "pytorch_model.bin",
            "a.pt",
            "a.pth",
            "a.ckpt",
            "a.pkl",
            "a.gguf",
            "a.npz",
            "a.sh",
            "a.dylib",
            "a.so",
            "Makefile",
            "a.h5",
            "a.onnx",
            "a.msgpack",
            ".cache/x.json",
            "x.json.py",
            "consolidated.safetensors",
            "consolidated-00001-of-00002.safetensors",
            "run.PY",
            "image.png",
        ];
        let all: Vec<&str> = model.into_iter().chain(other).collect();
        assert_eq!(chosen(&all), model);
        assert_eq!(choose(&repository(&all)).unwrap().left_out, other);
        assert!(
            chosen(&["config.json", "consolidated.safetensors"])
                .contains(&"consolidated.safetensors".to_owned())
        );
    }

    #[test]
    fn one_path_that_would_leave_the_folder_refuses_the_whole_repository() {
        for path in [
            "../x.json",
            "a/../../x.json",
            "/etc/x.json",
            "a\\b.json",
            "..\\x.json",
            "C:\\x.json",
            "c:x.json",
            "nul.json",
            "COM1.txt",
            "a//b.json",
            "./x.json",
            "a\0.json",
            "a\n.json",
            "~root.json",
            ".\\x.json",
            "..json/../x.json",
        ] {
            let error =
                choose(&repository(&["config.json", "model.safetensors", path])).unwrap_err();
            assert_eq!(error.code(), Code::BadModel, "{path:?}");
            assert!(error.message().contains("is refused"), "{path:?}: {error}");
        }
    }

    #[test]
    fn names_that_are_one_on_a_mac_are_refused() {
        let error =
            choose(&repository(&["config.json", "model.safetensors", "Config.JSON"])).unwrap_err();
        assert!(error.message().contains("may be one file"), "{error}");
    }

    #[test]
    fn what_could_not_be_loaded_is_not_fetched_and_the_hint_says_why() {
        for (paths, words) in [
            (&["config.json", "pytorch_model.bin"][..], "pickles"),
            (&["model-Q4_K_M.gguf"], "slipstream import"),
            (&["model.safetensors"], "`config.json`"),
            (&[], "mlx-community"),
        ] {
            let error = choose(&repository(paths)).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}

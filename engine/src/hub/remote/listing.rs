//! The files of a repository at one commit, as the hub lists them, page by page.

use reqwest::Url;
use reqwest::header::{HeaderMap, LINK};
use serde_json::Value;

use super::Remote;
use crate::error::{Code, Error, Result};
use crate::hub::manifest::Digest;
use crate::hub::repo::{Commit, RepoId, Revision};
use crate::limits;

/// A repository at one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    /// Its name as the hub writes it, which may differ from what was asked for where it was renamed.
    pub repo: RepoId,
    /// The commit that the revision stood for.
    pub commit: Commit,
    /// Whether its files are only for those who accepted its terms.
    pub gated: bool,
    /// All its files.
    pub files: Vec<ListedFile>,
}

/// A file as the hub lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFile {
    /// Its path, as it came: not to be joined to anything.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// What its content is checked against.
    pub digest: Digest,
}

impl Remote {
    /// What `repo` is at `revision`, with all its files.
    ///
    /// # Errors
    /// `ModelNotFound` and `HubDenied` as the hub says, `HubUnreachable` when it cannot be asked or answers nonsense.
    pub async fn repository(&self, repo: &RepoId, revision: &Revision) -> Result<Repository> {
        let about = format!("`{repo}` at `{revision}`");
        let (head, _) = self.json(&self.repository_url(repo, revision), &about).await?;
        let commit: Commit = head["sha"]
            .as_str()
            .unwrap_or_default()
            .parse()
            .map_err(|_| nonsense(&about, "names no commit"))?;
        // A mirror may leave the name out.
        let named = head["id"].as_str().and_then(|id| id.parse().ok());
        let gated = is_gated(&head["gated"]);
        let repo = named.unwrap_or_else(|| repo.clone());
        let files = self.files(&repo, &commit, &about).await?;
        Ok(Repository { repo, commit, gated, files })
    }

    async fn files(&self, repo: &RepoId, commit: &Commit, about: &str) -> Result<Vec<ListedFile>> {
        let mut next = Some(self.tree_url(repo, commit));
        let (mut files, mut listed) = (Vec::new(), 0);
        // Every page but the last must list something, so this ends.
        while let Some(url) = next {
            let (page, headers) = self.json(&url, about).await?;
            let page = read_page(&page).map_err(|why| nonsense(about, why))?;
            next = self.next_page(&url, &headers, about)?.filter(|_| !page.is_empty());
            listed += page.len();
            files.extend(page.into_iter().flatten());
            if listed > limits::HUB_FILES_MAX {
                let why = format!("lists more than {} files", limits::HUB_FILES_MAX);
                return Err(nonsense(about, &why));
            }
        }
        Ok(files)
    }

    /// Where the list goes on. Only the hub itself can say so, because it is shown the token there.
    fn next_page(&self, url: &Url, headers: &HeaderMap, about: &str) -> Result<Option<Url>> {
        let links = headers.get_all(LINK).iter().filter_map(|link| link.to_str().ok());
        let Some(next) = links.filter_map(next_link).next() else {
            return Ok(None);
        };
        let next =
            url.join(next).ok().filter(|next| next.origin() == self.config.endpoint.origin());
        next.map(Some).ok_or_else(|| nonsense(about, "goes on at another place"))
    }
}

/// Whether a repository's files are only for those who accepted its terms: `false`, or how they are let in.
pub(crate) fn is_gated(value: &Value) -> bool {
    value.as_str().is_some() || value.as_bool() == Some(true)
}

/// The target of `<...>; rel="next"` (RFC 8288).
fn next_link(header: &str) -> Option<&str> {
    let mut rest = header;
    while let Some((_, after)) = rest.split_once('<') {
        let (target, parameters) = after.split_once('>')?;
        let end = parameters.find('<').unwrap_or(parameters.len());
        if parameters[..end].contains("rel=\"next\"") || parameters[..end].contains("rel=next") {
            return Some(target);
        }
        rest = &parameters[end..];
    }
    None
}

/// The entries of one page; `None` for a folder.
fn read_page(page: &Value) -> Result<Vec<Option<ListedFile>>, &'static str> {
    let entries = page.as_array().ok_or("is no list of files")?;
    entries.iter().map(read_entry).collect()
}

fn read_entry(entry: &Value) -> Result<Option<ListedFile>, &'static str> {
    if entry["type"] != "file" {
        return Ok(None);
    }
    let path = entry["path"].as_str().ok_or("lists a file without a path")?.to_owned();
    let large = entry.get("lfs").filter(|lfs| lfs.is_object());
    let described = large.unwrap_or(entry);
    let bytes = described["size"].as_u64().ok_or("lists a file without a size")?;
    let digest = described["oid"]
        .as_str()
        .and_then(Digest::from_digits)
        .ok_or("lists a file without a digest")?;
    // The pointer's own digest would pass for the content's otherwise.
    if large.is_some() != matches!(digest, Digest::Sha256(_)) {
        return Err("lists a file with a digest of the wrong kind");
    }
    Ok(Some(ListedFile { path, bytes, digest }))
}

fn nonsense(about: &str, why: &str) -> Error {
    Error::new(Code::HubUnreachable, format!("the hub's answer about {about} {why}"))
        .with_hint("is `HF_ENDPOINT` a hub?")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn files_are_listed_with_the_digest_of_their_content() {
        let (sha256, blob) = ("ab".repeat(32), "cd".repeat(20));
        let page = json!([
            {"type": "directory", "oid": blob, "size": 0, "path": "onnx"},
            {"type": "file", "oid": blob, "size": 7, "path": "config.json"},
            {"type": "file", "oid": blob, "size": 134, "path": "a/model.safetensors",
             "lfs": {"oid": sha256, "size": 9_000_000_000u64, "pointerSize": 134}, "xetHash": "ef"},
        ]);
        let file =
            |path: &str, bytes, digest| Some(ListedFile { path: path.to_owned(), bytes, digest });
        assert_eq!(
            read_page(&page).unwrap(),
            [
                None,
                file("config.json", 7, Digest::GitBlob([0xcd; 20])),
                file("a/model.safetensors", 9_000_000_000, Digest::Sha256([0xab; 32])),
            ]
        );
    }

    #[test]
    fn a_list_that_cannot_be_checked_against_is_refused() {
        let blob = "cd".repeat(20);
        for page in [
            json!({}),
            json!([{"type": "file", "oid": blob, "size": 7}]),
            json!([{"type": "file", "oid": blob, "path": "x"}]),
            json!([{"type": "file", "oid": blob, "path": "x", "size": -1}]),
            json!([{"type": "file", "oid": "zz", "path": "x", "size": 1}]),
            json!([{"type": "file", "path": "x", "size": 1}]),
            json!([{"type": "file", "oid": "ab".repeat(32), "path": "x", "size": 1}]),
            json!([{"type": "file", "oid": blob, "path": "x", "size": 1, "lfs": {"oid": blob, "size": 2}}]),
        ] {
            assert!(read_page(&page).is_err(), "{page}");
        }
    }

    #[test]
    fn the_next_page_is_read_from_the_links_of_the_one_before() {
        for (header, next) in [
            ("<https://x/y?cursor=a,b>; rel=\"next\"", Some("https://x/y?cursor=a,b")),
            ("<https://x/1>; rel=\"first\", <https://x/2>; rel=\"next\"", Some("https://x/2")),
            ("<https://x/1>; rel=\"prev\"", None),
            ("<https://x/1", None),
            ("", None),
        ] {
            assert_eq!(next_link(header), next, "{header}");
        }
    }
}

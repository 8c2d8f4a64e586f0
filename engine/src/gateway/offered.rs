//! The models that a server offers: those that were named at start, and those of the library as it is now.

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};

use super::catalogue::{Catalogue, Directories, Download, Source};
use crate::config::ByteCount;
use crate::error::{Code, Error};
use crate::hub::Hub;
use crate::hub::download::{DownloadProgress, DownloadState};
use crate::hub::library::{Entry, State};

/// See the module's words. A model of the library that is called or lies like a named one is that one.
#[derive(Debug, Clone)]
pub struct Offered {
    named: Directories,
    /// Directories of the named models, as they were given and without links.
    directories: Vec<PathBuf>,
    hub: Hub,
}

impl Offered {
    /// The models `named`, then those of the library of `hub`. It asks the file system where the named ones lie.
    pub fn new(named: Directories, hub: Hub) -> Self {
        let given: Vec<PathBuf> =
            named.sources().into_iter().map(|source| source.directory).collect();
        let real = given.iter().filter_map(|directory| directory.canonicalize().ok());
        let directories = real.chain(given.iter().cloned()).collect();
        Self { named, directories, hub }
    }

    fn is_named(&self, entry: &Entry) -> bool {
        self.named.find(&entry.id).is_some() || self.directories.contains(&entry.directory)
    }

    fn source(&self, entry: &Entry) -> Source {
        Source {
            id: entry.id.as_str().into(),
            directory: entry.directory.clone(),
            weights_bytes: self.hub.weights_bytes(entry).unwrap_or_default(),
            download: None,
        }
    }

    /// What is being downloaded and not there in an older version.
    fn coming(&self) -> Vec<Source> {
        let view = self.hub.view();
        let there = |id: &str| {
            self.named.find(id).is_some()
                || view.entry(id).is_some_and(|entry| entry.state == State::Ready)
        };
        let downloads = self.hub.downloads().into_iter().filter(is_under_way);
        let sources = downloads.map(|progress| Source {
            id: progress.repo.to_string().into(),
            directory: self.hub.places().model(&progress.repo),
            weights_bytes: 0,
            download: Some(Download {
                done_bytes: progress.done_bytes,
                total_bytes: progress.total_bytes,
            }),
        });
        sources.filter(|source| !there(&source.id)).collect()
    }
}

impl Catalogue for Offered {
    fn find(&self, id: &str) -> Option<Source> {
        if let Some(named) = self.named.find(id) {
            return Some(named);
        }
        let view = self.hub.view();
        if let Some(entry) = view.find(id).ok().filter(|entry| entry.state == State::Ready) {
            let named = self.named.sources().into_iter();
            let mut same = named.filter(|named| *named.id == *entry.id);
            return same.next().or_else(|| Some(self.source(entry)));
        }
        self.coming().into_iter().find(|source| *source.id == *id)
    }

    fn sources(&self) -> Vec<Source> {
        let mut sources = self.named.sources();
        let view = self.hub.view();
        let others = view.ready().filter(|entry| !self.is_named(entry));
        sources.extend(others.map(|entry| self.source(entry)));
        sources.extend(self.coming());
        sources
    }

    fn refresh(&self) -> BoxFuture<'_, bool> {
        self.hub.refresh().boxed()
    }

    fn refusal(&self, name: &str) -> Option<Error> {
        let view = self.hub.view();
        let error = match view.find(name) {
            Ok(entry) => Some(entry.check_ready().err()?),
            Err(error) => is_ambiguous(&view.entries, name).then_some(error),
        };
        let error = error.or_else(|| {
            let downloads = self.hub.downloads().into_iter();
            downloads.filter(|progress| progress.repo.to_string() == name).find_map(halted)
        })?;
        let told = Error::new(Code::ModelNotFound, error.message()).with_param("model");
        Some(match error.hint() {
            Some(hint) => told.with_hint(hint),
            None => told,
        })
    }
}

fn is_under_way(progress: &DownloadProgress) -> bool {
    matches!(progress.state, DownloadState::Queued | DownloadState::Running)
}

/// Whether `name` is the short name of several models.
fn is_ambiguous(entries: &[Entry], name: &str) -> bool {
    let called: Vec<Arc<str>> = entries
        .iter()
        .filter(|entry| entry.short_name().eq_ignore_ascii_case(name))
        .map(|entry| entry.id.as_str().into())
        .collect();
    called.len() > 1
}

/// Why a download does not go on.
fn halted(progress: DownloadProgress) -> Option<Error> {
    let (done, total) = (ByteCount(progress.done_bytes), ByteCount(progress.total_bytes));
    let why = match progress.state {
        DownloadState::Paused => "is paused".to_owned(),
        DownloadState::Failed(error) => format!("failed: {}", error.message()),
        DownloadState::Absent
        | DownloadState::Queued
        | DownloadState::Running
        | DownloadState::Done => return None,
    };
    let repo = progress.repo;
    let message = format!("`{repo}` is not whole: its download {why}, at {done} of {total}");
    Some(Error::new(Code::ModelNotFound, message).with_hint("resume the download"))
}

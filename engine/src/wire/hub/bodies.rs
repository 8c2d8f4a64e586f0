//! What the hub tells.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

use crate::error::Error;
use crate::gateway::ModelStatus;
use crate::hub::download::{DownloadProgress, DownloadState, FileProgress};
use crate::hub::fit::{Fit, RowsFit};
use crate::hub::jobs::{Job, JobState, Task};
use crate::hub::library::{Changes, Entry, Removed};
use crate::hub::search::Hit;
use crate::hub::token::TokenSource;
use crate::hub::{Found, Hub, LibraryView, Listed, Reading};
use crate::model::outline::Outline;

/// What an object of a download is.
const DOWNLOAD: &str = "hub.download";
/// What an object of a model of this machine is.
const MODEL: &str = "hub.library_model";

/// The models of this machine.
#[derive(Debug, Clone, Serialize)]
pub struct LibraryBody {
    object: &'static str,
    data: Vec<EntryBody>,
    version: u64,
    folder: String,
    disk_bytes: u64,
    free_bytes: Option<u64>,
}

/// A model of this machine.
#[derive(Debug, Clone, Serialize)]
struct EntryBody {
    id: String,
    object: &'static str,
    short_name: String,
    origin: &'static str,
    revision: Option<String>,
    disk_bytes: u64,
    state: &'static str,
    reason: Option<String>,
    #[serde(flatten)]
    kind: Option<KindBody>,
    parameters: Option<u64>,
    dtype: Option<&'static str>,
    capabilities: Vec<&'static str>,
    fit: Option<FitBody>,
    residency: Option<ResidencyBody>,
}

/// What a config says.
#[derive(Debug, Clone, Serialize)]
struct KindBody {
    family: &'static str,
    quantization: Option<String>,
    caches: Vec<&'static str>,
    context_tokens: usize,
}

/// How a model of this machine stands in memory.
#[derive(Debug, Clone, Serialize)]
struct ResidencyBody {
    state: &'static str,
    pinned: bool,
    leases: usize,
}

#[derive(Debug, Clone, Serialize)]
struct FitBody {
    verdict: &'static str,
    dtype: &'static str,
    weights_bytes: u64,
    load_peak_bytes: u64,
    transient_bytes: u64,
    token_bytes: u64,
    headroom_bytes: u64,
    usable_bytes: u64,
    kv_budget_bytes: u64,
    rows: Vec<RowsBody>,
}

#[derive(Debug, Clone, Serialize)]
struct RowsBody {
    rows: usize,
    context_tokens: usize,
    decode_tokens_per_second_max: Option<f64>,
}

impl LibraryBody {
    /// This library, of which `models` says what is in memory.
    pub fn new(library: &LibraryView, models: &[ModelStatus]) -> Self {
        let standing = Standing::new(models);
        Self {
            object: "list",
            data: library.models.iter().map(|one| EntryBody::new(one, &standing)).collect(),
            version: library.version,
            folder: library.folder.display().to_string(),
            disk_bytes: library.models.iter().map(|one| one.entry.disk_bytes).sum(),
            free_bytes: library.free_bytes,
        }
    }
}

/// How models stand in memory, by their ids.
struct Standing<'a>(HashMap<&'a str, &'a ModelStatus>);

impl<'a> Standing<'a> {
    fn new(models: &'a [ModelStatus]) -> Self {
        Self(models.iter().map(|status| (&*status.id, status)).collect())
    }
}

impl EntryBody {
    fn new(listed: &Listed, standing: &Standing<'_>) -> Self {
        let Listed { entry, fit } = listed;
        let facts = entry.facts.as_ref();
        Self {
            id: entry.id.clone(),
            object: MODEL,
            short_name: entry.short_name().to_owned(),
            origin: entry.origin.name(),
            revision: entry.commit.clone(),
            disk_bytes: entry.disk_bytes,
            state: entry.state.name(),
            reason: entry.state.reason(),
            kind: facts.map(|facts| KindBody::new(&facts.outline)),
            parameters: facts.map(|facts| facts.weights.parameters),
            dtype: facts.and_then(|facts| Some(facts.weights.float_type?.name())),
            capabilities: facts.map(|facts| facts.capabilities.names()).unwrap_or_default(),
            fit: fit.as_ref().map(FitBody::new),
            residency: standing.0.get(&*entry.id).map(|status| ResidencyBody {
                state: status.state,
                pinned: status.pinned,
                leases: status.leases,
            }),
        }
    }
}

impl KindBody {
    fn new(outline: &Outline) -> Self {
        Self {
            family: outline.model_type(),
            quantization: outline.packing.as_ref().map(ToString::to_string),
            caches: outline.cache_kinds(),
            context_tokens: outline.context_tokens,
        }
    }
}

impl FitBody {
    fn new(fit: &Fit) -> Self {
        let rows = |rows: &RowsFit| RowsBody {
            rows: rows.rows,
            context_tokens: rows.context_tokens,
            decode_tokens_per_second_max: rows.decode_tokens_per_second,
        };
        Self {
            verdict: fit.verdict.name(),
            dtype: fit.float_type.name(),
            weights_bytes: fit.weights_bytes,
            load_peak_bytes: fit.load_peak_bytes,
            transient_bytes: fit.transient_bytes,
            token_bytes: fit.token_bytes,
            headroom_bytes: fit.headroom_bytes,
            usable_bytes: fit.usable_bytes,
            kv_budget_bytes: fit.kv_budget_bytes,
            rows: fit.rows.iter().map(rows).collect(),
        }
    }
}

/// What a look at the models on disk found to be otherwise.
#[derive(Debug, Clone, Serialize)]
pub struct ChangesBody {
    object: &'static str,
    version: u64,
    added: Vec<String>,
    removed: Vec<String>,
    changed: Vec<String>,
}

impl ChangesBody {
    /// These changes, which made the library's version `version`.
    pub fn new(changes: Changes, version: u64) -> Self {
        let Changes { added, removed, changed } = changes;
        Self { object: "hub.changes", version, added, removed, changed }
    }
}

/// That a model was removed from the disk.
#[derive(Debug, Clone, Serialize)]
pub struct RemovedBody {
    id: String,
    object: &'static str,
    deleted: bool,
    freed_bytes: u64,
}

impl RemovedBody {
    /// The model `id` was.
    pub fn new(id: String, removed: Removed) -> Self {
        Self { id, object: MODEL, deleted: true, freed_bytes: removed.freed_bytes }
    }
}

/// What a search came to.
#[derive(Debug, Clone, Serialize)]
pub struct SearchBody {
    object: &'static str,
    data: Vec<HitBody>,
    library: Vec<EntryBody>,
    offline: bool,
    reason: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
struct HitBody {
    id: String,
    object: &'static str,
    downloads: u64,
    likes: u64,
    updated: Option<String>,
    gated: bool,
    private: bool,
    tags: Vec<String>,
    weights_bytes: Option<u64>,
    fit: Option<&'static str>,
    #[serde(flatten)]
    here: HereBody,
}

/// How far a model of the hub is on this machine.
#[derive(Debug, Clone, Serialize)]
struct HereBody {
    library: Option<&'static str>,
    download: Option<&'static str>,
}

impl HereBody {
    fn new(hub: &Hub, id: &str) -> Self {
        let library = hub.view().entry(id).map(|entry: &Entry| entry.state.name());
        let download = id.parse().ok().and_then(|repo| hub.download(&repo).ok());
        Self { library, download: download.map(|progress| state_name(&progress.state)) }
    }
}

impl SearchBody {
    /// What was found, told beside what `hub` has and `models` says is in memory.
    pub fn new(found: Found, hub: &Hub, models: &[ModelStatus]) -> Self {
        let standing = Standing::new(models);
        let hit = |(hit, fit): (Hit, Option<crate::hub::fit::Verdict>)| HitBody {
            here: HereBody::new(hub, &hit.repo.to_string()),
            id: hit.repo.to_string(),
            object: "hub.model",
            weights_bytes: hit.weight_bytes(),
            downloads: hit.downloads,
            likes: hit.likes,
            updated: hit.updated,
            gated: hit.gated,
            private: hit.private,
            tags: hit.tags,
            fit: fit.map(crate::hub::fit::Verdict::name),
        };
        Self {
            object: "list",
            data: found.hits.into_iter().map(hit).collect(),
            library: found.local.iter().map(|one| EntryBody::new(one, &standing)).collect(),
            offline: found.offline.is_some(),
            reason: found.offline.map(|error| error.to_string()),
        }
    }
}

/// A model as the hub has it.
#[derive(Debug, Clone, Serialize)]
pub struct RepoBody {
    id: String,
    object: &'static str,
    revision: String,
    gated: bool,
    /// Bytes that a download fetches.
    download_bytes: u64,
    files: Vec<FileBody>,
    /// Why it cannot be fetched.
    refusal: Option<String>,
    #[serde(flatten)]
    kind: Option<KindBody>,
    fit: Option<FitBody>,
    /// Why it would not be served.
    unsupported: Option<String>,
    #[serde(flatten)]
    here: HereBody,
}

#[derive(Debug, Clone, Serialize)]
struct FileBody {
    path: String,
    bytes: u64,
}

impl RepoBody {
    /// What was read of a repository, told beside what `hub` has.
    pub fn new(reading: &Reading, hub: &Hub) -> Self {
        let Reading { description, outline, fit, unsupported } = reading;
        let repository = &description.repository;
        let files = description.choice.iter().flat_map(|choice| &choice.files);
        Self {
            id: repository.repo.to_string(),
            object: "hub.repo",
            revision: repository.commit.as_str().to_owned(),
            gated: repository.gated,
            download_bytes: description.fetched_bytes(),
            files: files
                .map(|file| FileBody { path: file.path.to_string(), bytes: file.bytes })
                .collect(),
            refusal: description.choice.as_ref().err().map(Error::to_string),
            kind: outline.as_ref().map(KindBody::new),
            fit: fit.as_ref().map(FitBody::new),
            unsupported: unsupported.as_ref().map(Error::to_string),
            here: HereBody::new(hub, &repository.repo.to_string()),
        }
    }
}

/// All downloads.
#[derive(Debug, Clone, Serialize)]
pub struct DownloadsBody {
    object: &'static str,
    data: Vec<DownloadBody>,
    /// The bandwidth that they keep to together.
    bytes_per_second_max: Option<u64>,
}

/// A download.
#[derive(Debug, Clone, Serialize)]
pub struct DownloadBody {
    id: String,
    object: &'static str,
    revision: String,
    commit: Option<String>,
    state: &'static str,
    error: Option<FailureBody>,
    done_bytes: u64,
    total_bytes: u64,
    bytes_per_second: f64,
    remaining_seconds: Option<f64>,
    files: Vec<FileProgressBody>,
}

#[derive(Debug, Clone, Serialize)]
struct FailureBody {
    code: &'static str,
    message: String,
}

#[derive(Debug, Clone, Serialize)]
struct FileProgressBody {
    path: String,
    done_bytes: u64,
    total_bytes: u64,
}

impl FailureBody {
    fn new(error: &Error) -> Self {
        Self { code: error.code().name(), message: error.to_string() }
    }
}

impl DownloadsBody {
    /// The downloads of `hub`.
    pub fn new(hub: &Hub) -> Self {
        Self {
            object: "list",
            data: hub.downloads().iter().map(DownloadBody::new).collect(),
            bytes_per_second_max: hub.bytes_per_second_max(),
        }
    }
}

impl DownloadBody {
    /// A download that stands like that.
    pub fn new(progress: &DownloadProgress) -> Self {
        let file = |file: &FileProgress| FileProgressBody {
            path: file.path.to_string(),
            done_bytes: file.done_bytes,
            total_bytes: file.total_bytes,
        };
        Self {
            id: progress.repo.to_string(),
            object: DOWNLOAD,
            revision: progress.revision.to_string(),
            commit: progress.commit.as_ref().map(|commit| commit.as_str().to_owned()),
            state: state_name(&progress.state),
            error: match &progress.state {
                DownloadState::Failed(error) => Some(FailureBody::new(error)),
                _ => None,
            },
            done_bytes: progress.done_bytes,
            total_bytes: progress.total_bytes,
            bytes_per_second: progress.bytes_per_second,
            remaining_seconds: progress.remaining.map(|time: Duration| time.as_secs_f64()),
            files: progress.files.iter().map(file).collect(),
        }
    }
}

fn state_name(state: &DownloadState) -> &'static str {
    match state {
        DownloadState::Absent => "absent",
        DownloadState::Queued => "queued",
        DownloadState::Running => "running",
        DownloadState::Paused => "paused",
        DownloadState::Failed(_) => "failed",
        DownloadState::Done => "done",
    }
}

/// That a download was ended.
#[derive(Debug, Clone, Serialize)]
pub struct DeletedDownloadBody {
    id: String,
    object: &'static str,
    deleted: bool,
}

impl DeletedDownloadBody {
    /// That of `id` was.
    pub fn new(id: String) -> Self {
        Self { id, object: DOWNLOAD, deleted: true }
    }
}

/// The imports and conversions.
#[derive(Debug, Clone, Serialize)]
pub struct JobsBody {
    object: &'static str,
    data: Vec<JobBody>,
}

/// An import or a conversion.
#[derive(Debug, Clone, Serialize)]
pub struct JobBody {
    id: String,
    object: &'static str,
    kind: &'static str,
    source: String,
    model: String,
    state: &'static str,
    error: Option<FailureBody>,
    done_bytes: u64,
    total_bytes: u64,
    bits: Option<i32>,
    group_size: Option<i32>,
    dtype: Option<String>,
}

impl JobsBody {
    /// These jobs.
    pub fn new(jobs: &[Job]) -> Self {
        Self { object: "list", data: jobs.iter().map(JobBody::new).collect() }
    }
}

impl JobBody {
    /// A job that stands like that.
    pub fn new(job: &Job) -> Self {
        let (bits, group_size, dtype) = match job.task {
            Task::Import { dtype } => (None, None, Some(dtype.to_string())),
            Task::Convert { bits, group_size } => (Some(bits), Some(group_size), None),
        };
        Self {
            id: job.number.to_string(),
            object: "hub.job",
            kind: job.task.name(),
            source: job.source.display().to_string(),
            model: job.model.to_string(),
            state: job.state.name(),
            error: match &job.state {
                JobState::Failed(error) => Some(FailureBody::new(error)),
                JobState::Running | JobState::Done | JobState::Cancelled => None,
            },
            done_bytes: job.done_bytes,
            total_bytes: job.total_bytes,
            bits,
            group_size,
            dtype,
        }
    }
}

/// How downloads, jobs and the library stand.
#[derive(Debug, Clone, Serialize)]
pub struct EventBody {
    object: &'static str,
    downloads: Vec<DownloadBody>,
    jobs: Vec<JobBody>,
    /// What changed in it last.
    library: ChangesBody,
}

impl EventBody {
    /// How those of `hub` stand.
    pub fn new(hub: &Hub) -> Self {
        let view = hub.view();
        Self {
            object: "hub.event",
            downloads: hub.downloads().iter().map(DownloadBody::new).collect(),
            jobs: hub.jobs().iter().map(JobBody::new).collect(),
            library: ChangesBody::new(view.changes.clone(), view.version),
        }
    }
}

/// Whether there is a token, and from where; never the token.
#[derive(Debug, Clone, Serialize)]
pub struct TokenBody {
    object: &'static str,
    present: bool,
    source: Option<String>,
}

impl TokenBody {
    /// That from `source`, or none.
    pub fn new(source: Option<&TokenSource>) -> Self {
        Self {
            object: "hub.token",
            present: source.is_some(),
            source: source.map(ToString::to_string),
        }
    }
}

//! All of the hub for a process that runs on: what the HTTP layer and the desktop shell call.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::clock::Clock;
use crate::error::{Code, Error, Result};
use crate::hub::download::{DownloadConfig, DownloadProgress, DownloadState, Downloads, Fetching};
use crate::hub::fit::{Fit, Machine, Subject, Verdict, Wish, fit, guess, weights_bytes};
use crate::hub::import::WeightDtype;
use crate::hub::jobs::{self, Job, JobState, Jobs, Task};
use crate::hub::library::{Changes, Entry, Removed};
use crate::hub::places::Places;
use crate::hub::remote::{Patience, Remote};
use crate::hub::repo::{RepoId, Revision};
use crate::hub::search::{Description, Hit, SearchQuery, describe, search};
use crate::hub::shelf::{Shelf, View};
use crate::hub::token::{Token, TokenSource, TokenStore, find_token_with};
use crate::limits;
use crate::model::ModelConfig;
use crate::model::outline::{Outline, WeightTally};

/// How a [`Hub`] works.
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// Where models lie and how they are fetched.
    pub download: DownloadConfig,
    /// The machine that they are to fit, where that is known.
    pub machine: Option<Machine>,
    /// How they would be served.
    pub wish: Wish,
    /// Where the token is kept.
    pub tokens: TokenStore,
    /// Whether tokens of the environment and of other tools count too.
    pub tokens_everywhere: bool,
    /// The `slipstream` binary, which converts; without one nothing does.
    pub program: Option<PathBuf>,
}

/// The models of this machine and of the hub, what is being fetched and what is being made. Clones share it.
#[derive(Debug, Clone)]
pub struct Hub(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: HubConfig,
    remote: Remote,
    fetching: Fetching,
    downloads: Downloads,
    shelf: Arc<Shelf>,
    jobs: Jobs,
    changes: watch::Sender<u64>,
}

/// A model of this machine and whether it fits.
#[derive(Debug, Clone)]
pub struct Listed {
    /// What it is.
    pub entry: Entry,
    /// How it fits, where the machine is known and the model is one that is run.
    pub fit: Option<Fit>,
}

/// The models of this machine.
#[derive(Debug, Clone)]
pub struct LibraryView {
    /// By their ids.
    pub models: Vec<Listed>,
    /// Counts the changes.
    pub version: u64,
    /// Our folder of them.
    pub folder: PathBuf,
    /// Bytes that its disk has left; `None` where there is no such folder yet.
    pub free_bytes: Option<u64>,
}

/// What a search came to.
#[derive(Debug, Clone)]
pub struct Found {
    /// What the hub found, each with whether it may fit.
    pub hits: Vec<(Hit, Option<Verdict>)>,
    /// Models of this machine with the text in their names.
    pub local: Vec<Listed>,
    /// Why only this machine was searched, if so.
    pub offline: Option<Error>,
}

/// A model as the hub has it.
#[derive(Debug, Clone)]
pub struct Reading {
    /// What it is.
    pub description: Description,
    /// What its config says, where that is of a kind that is run.
    pub outline: Option<Outline>,
    /// How it would fit, where the machine is known too.
    pub fit: Option<Fit>,
    /// Why it would not be run.
    pub unsupported: Option<Error>,
}

impl Hub {
    /// The hub over `remote`, once the places were looked at. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// `Io` when the folder of models cannot be read.
    pub async fn open(config: HubConfig, remote: Remote, clock: Clock) -> Result<Self> {
        let changes = watch::Sender::new(0);
        let places = config.download.places.clone();
        let fetching = Fetching::new(remote.clone(), config.download.clone());
        let opened = fetching.clone();
        let open = move || Downloads::open(opened, limits::DOWNLOADS_AT_ONCE);
        let downloads = blocking("open the folder of models", open).await?;
        let shelf = Arc::new(Shelf::new(places, clock, changes.clone()));
        shelf.rescan().await?;
        let jobs = Jobs::new(changes.clone());
        let watched = downloads.watch();
        let follower = (Arc::clone(&shelf), changes.clone());
        let inner = Inner { config, remote, fetching, downloads, shelf, jobs, changes };
        tokio::spawn(follow(watched, follower.0, follower.1));
        Ok(Self(Arc::new(inner)))
    }

    /// Counts what changed: models, downloads, jobs.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// What the last look at the places found.
    pub fn view(&self) -> Arc<View> {
        self.0.shelf.view()
    }

    /// Where models lie.
    pub fn places(&self) -> &Places {
        &self.0.config.download.places
    }

    /// The models of this machine and whether they fit. It asks the file system.
    pub async fn library(&self) -> Result<LibraryView> {
        let hub = self.clone();
        blocking("look at the models on disk", move || Ok(hub.library_now())).await
    }

    fn library_now(&self) -> LibraryView {
        let (view, folder) = (self.view(), self.places().models.clone());
        let models = view.entries.iter().map(|entry| self.listed(entry)).collect();
        let free_bytes = (self.0.config.download.free_bytes)(&folder).ok();
        LibraryView { models, version: view.version, folder, free_bytes }
    }

    fn listed(&self, entry: &Entry) -> Listed {
        Listed { entry: entry.clone(), fit: self.fit(entry) }
    }

    /// Bytes that the weights of `entry` take once they are loaded; `None` as for [`Hub::fit`].
    pub fn weights_bytes(&self, entry: &Entry) -> Option<u64> {
        let (machine, facts) = (self.0.config.machine.as_ref()?, entry.facts.as_ref()?);
        let subject = Subject { outline: &facts.outline, weights: &facts.weights };
        Some(weights_bytes(subject, machine, &self.0.config.wish))
    }

    /// How `entry` fits; `None` where the machine is not known or the model is none that is run.
    pub fn fit(&self, entry: &Entry) -> Option<Fit> {
        let (machine, facts) = (self.0.config.machine.as_ref()?, entry.facts.as_ref()?);
        let subject = Subject { outline: &facts.outline, weights: &facts.weights };
        Some(fit(subject, machine, &self.0.config.wish))
    }

    /// Looks at the places again.
    ///
    /// # Errors
    /// `Internal` when that came to nothing.
    pub async fn rescan(&self) -> Result<Changes> {
        self.0.shelf.rescan().await
    }

    /// Looks at the places again unless that was done a moment ago. Whether they were looked at since the call.
    pub async fn refresh(&self) -> bool {
        self.0.shelf.refresh().await
    }

    /// Takes a model off the disk, once `check` says that nobody needs its directory.
    ///
    /// # Errors
    /// `ModelNotFound`; `InUse`, while it is downloaded or converted too; `InvalidRequest` for one outside of its
    /// place; `Io`.
    pub async fn remove(
        &self,
        id: &str,
        check: impl FnOnce(&Path) -> Result<()> + Send + 'static,
    ) -> Result<Removed> {
        let (hub, id) = (self.clone(), id.to_owned());
        let remove = move || {
            hub.0.shelf.remove(&id, |directory| {
                hub.check_idle(&id, directory)?;
                check(directory)
            })
        };
        blocking("remove a model", remove).await
    }

    /// # Errors
    /// `InUse` while something of this hub reads or writes `directory`, that of the model `id`.
    fn check_idle(&self, id: &str, directory: &Path) -> Result<()> {
        let state = id.parse().map(|repo| self.0.downloads.state(&repo));
        if matches!(state, Ok(DownloadState::Queued | DownloadState::Running)) {
            let error = Error::new(Code::InUse, format!("`{id}` is being downloaded"));
            return Err(error.with_hint("pause or cancel the download first"));
        }
        let jobs = self.0.jobs.list();
        let reads = |job: &&Job| job.state == JobState::Running && job.source == directory;
        match jobs.iter().find(reads) {
            Some(job) => Err(Error::new(Code::InUse, format!("`{}` is made of `{id}`", job.model))),
            None => Ok(()),
        }
    }

    /// Looks for models at the hub and on this machine.
    ///
    /// # Errors
    /// What the hub refuses. That it cannot be reached is no error.
    pub async fn search(&self, query: &SearchQuery) -> Result<Found> {
        // Somebody looks at the screen: minutes of patience are for downloads.
        let patience = Patience { attempts_max: 1, ..self.0.remote.config().patience };
        let found = search(&self.0.remote.with_patience(patience), query).await;
        let (hits, offline) = match found {
            Ok(hits) => (hits, None),
            Err(error) if error.code() == Code::HubUnreachable => (Vec::new(), Some(error)),
            Err(error) => return Err(error),
        };
        let hits = hits.into_iter().map(|hit| (self.badge(&hit), hit)).map(|(fit, hit)| (hit, fit));
        Ok(Found { hits: hits.collect(), local: self.matching(&query.text), offline })
    }

    fn badge(&self, hit: &Hit) -> Option<Verdict> {
        let weights = hit.weights_by_type()?;
        Some(guess(&weights, self.0.config.machine.as_ref()?, &self.0.config.wish))
    }

    fn matching(&self, text: &str) -> Vec<Listed> {
        let wanted: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
        let view = self.view();
        let fits = |entry: &&Entry| {
            let id = entry.id.to_lowercase();
            wanted.iter().all(|word| id.contains(word))
        };
        view.entries.iter().filter(fits).map(|entry| self.listed(entry)).collect()
    }

    /// What `repo` is at `revision`, and whether it would fit.
    ///
    /// # Errors
    /// As [`describe`].
    pub async fn describe(&self, repo: &RepoId, revision: &Revision) -> Result<Reading> {
        let patience = Patience { attempts_max: 2, ..self.0.remote.config().patience };
        let description = describe(&self.0.remote.with_patience(patience), repo, revision).await?;
        let fields = description.config.as_ref().and_then(|config| config.as_object());
        let outline = fields.map_or_else(
            || Err(Error::new(Code::BadModel, "it has no `config.json` that is an object")),
            |fields| Outline::of_config(&ModelConfig::from_fields(fields.clone())),
        );
        let (outline, unsupported) = match outline {
            Ok(outline) => (Some(outline), None),
            Err(error) => (None, Some(error)),
        };
        let fit = outline.as_ref().and_then(|outline| {
            let weights = WeightTally::of_bytes(outline, description.weight_bytes());
            let subject = Subject { outline, weights: &weights };
            Some(fit(subject, self.0.config.machine.as_ref()?, &self.0.config.wish))
        });
        Ok(Reading { description, outline, fit, unsupported })
    }

    /// All downloads, in the order in which they were asked for.
    pub fn downloads(&self) -> Vec<DownloadProgress> {
        self.0.downloads.list()
    }

    /// The download of `repo`, as it stands.
    ///
    /// # Errors
    /// `ModelNotFound` when there is none.
    pub fn download(&self, repo: &RepoId) -> Result<DownloadProgress> {
        self.0.downloads.get(repo).ok_or_else(|| {
            Error::new(Code::ModelNotFound, format!("no download of `{repo}` is known"))
        })
    }

    /// Starts to fetch `repo` at `revision`, or goes on with it. A `limit` in bytes per second holds for all downloads
    /// together from then on; 0 is none.
    ///
    /// # Errors
    /// `InUse` while something else makes that model, `QueueFull` when too many downloads are listed.
    pub fn fetch(&self, repo: &RepoId, revision: &Revision, limit: Option<u64>) -> Result<()> {
        let out = self.places().model(repo);
        let jobs = self.0.jobs.list();
        if jobs.iter().any(|job| job.state == JobState::Running && job.out == out) {
            return Err(Error::new(Code::InUse, format!("`{repo}` is being made on this machine")));
        }
        if let Some(bytes) = limit {
            self.0.fetching.limit(Some(bytes).filter(|bytes| *bytes > 0));
        }
        self.0.downloads.start(repo, revision)
    }

    /// The bytes per second that downloads keep to together, if there is a bound.
    pub fn bytes_per_second_max(&self) -> Option<u64> {
        self.0.fetching.bytes_per_second()
    }

    /// Has the download of `repo` keep what it has and wait.
    ///
    /// # Errors
    /// `ModelNotFound` when there is none.
    pub fn pause(&self, repo: &RepoId) -> Result<()> {
        self.0.downloads.pause(repo)
    }

    /// Has the download of `repo` go on.
    ///
    /// # Errors
    /// `ModelNotFound` when there is none.
    pub fn resume(&self, repo: &RepoId) -> Result<()> {
        self.0.downloads.resume(repo)
    }

    /// Ends the download of `repo` and removes what it has; of one that is done, only the entry goes.
    ///
    /// # Errors
    /// `ModelNotFound` when there is none; what stands in the way.
    pub async fn cancel(&self, repo: &RepoId) -> Result<()> {
        self.0.downloads.cancel(repo).await
    }

    /// Where the token in use comes from, if there is one.
    ///
    /// # Errors
    /// As [`find_token`](crate::hub::token::find_token).
    pub async fn token(&self) -> Result<Option<TokenSource>> {
        Ok(self.found_token().await?.map(|(_, source)| source))
    }

    /// Keeps `token`, and shows the hub whichever now comes first.
    ///
    /// # Errors
    /// `Io` when it cannot be kept.
    pub async fn keep_token(&self, token: Token) -> Result<Option<TokenSource>> {
        let store = self.0.config.tokens.clone();
        blocking("keep the token", move || store.set(&token)).await?;
        self.show_token().await
    }

    /// Forgets the token that was kept.
    ///
    /// # Errors
    /// `Io` when that fails.
    pub async fn forget_token(&self) -> Result<Option<TokenSource>> {
        let store = self.0.config.tokens.clone();
        blocking("forget the token", move || store.remove()).await?;
        self.show_token().await
    }

    async fn show_token(&self) -> Result<Option<TokenSource>> {
        let found = self.found_token().await?;
        let (token, source) = found.unzip();
        self.0.remote.show(token);
        Ok(source)
    }

    async fn found_token(&self) -> Result<Option<(Token, TokenSource)>> {
        let (store, everywhere) = (self.0.config.tokens.clone(), self.0.config.tokens_everywhere);
        blocking("look for the token", move || find_token_with(&store, everywhere)).await
    }

    /// The jobs that run, and the last ones that ended.
    pub fn jobs(&self) -> Vec<Job> {
        self.0.jobs.list()
    }

    /// Begins to import the GGUF file `file`, an absolute path, as `model`, or under the file's own name.
    ///
    /// # Errors
    /// `InvalidRequest` for anything but such a file, or a name that is taken or none; `InUse`, `QueueFull`.
    pub async fn import(
        &self,
        file: PathBuf,
        model: Option<RepoId>,
        dtype: WeightDtype,
    ) -> Result<Job> {
        let looked = file.clone();
        blocking("look at the file", move || check_gguf(&looked)).await?;
        let model = model.map_or_else(|| named_like(&file), Ok)?;
        let (number, out, _) = self.enter(Task::Import { dtype }, &file, &model)?;
        let (hub, jobs) = (self.clone(), self.0.jobs.clone());
        tokio::spawn(async move {
            jobs::run_import(jobs, number, file, out, dtype).await;
            hub.note_made().await;
        });
        self.job(number)
    }

    /// Begins to convert the model called `name` to `bits`, as `model` or under its own name with the bits behind it.
    ///
    /// # Errors
    /// `ModelNotFound`; `BadModel` for one that is not ready; `InvalidRequest` for a name that is taken; `InUse`,
    /// `QueueFull`; `Unsupported` where no binary does it.
    pub fn convert(
        &self,
        name: &str,
        model: Option<RepoId>,
        bits: i32,
        group_size: i32,
    ) -> Result<Job> {
        let program = self.0.config.program.clone().ok_or_else(|| {
            Error::new(Code::Unsupported, "this process cannot convert models")
                .with_hint("`slipstream convert` does")
        })?;
        let view = self.view();
        let entry = view.find(name)?;
        entry.check_ready()?;
        let named = || format!("{}-{bits}bit", entry.id.split('@').next().unwrap_or(name)).parse();
        let model = model.map_or_else(named, Ok)?;
        let task = Task::Convert { bits, group_size };
        let (number, out, cancel) = self.enter(task, &entry.directory, &model)?;
        let arguments = jobs::conversion(&entry.directory, &out, bits, group_size);
        let (hub, jobs) = (self.clone(), self.0.jobs.clone());
        tokio::spawn(async move {
            jobs::run_conversion(jobs, number, program, arguments, cancel).await;
            hub.note_made().await;
        });
        self.job(number)
    }

    /// Stops a job that runs, or forgets one that ended.
    ///
    /// # Errors
    /// `ModelNotFound` when there is none; `Unsupported` for an import that runs.
    pub fn end_job(&self, number: u64) -> Result<Job> {
        self.0.jobs.end(number)
    }

    fn job(&self, number: u64) -> Result<Job> {
        let job = self.jobs().into_iter().find(|job| job.number == number);
        job.ok_or_else(|| Error::new(Code::Internal, format!("job {number} is gone already")))
    }

    fn enter(
        &self,
        task: Task,
        source: &Path,
        model: &RepoId,
    ) -> Result<(u64, PathBuf, Arc<tokio::sync::Notify>)> {
        let fetched =
            !matches!(self.0.downloads.state(model), DownloadState::Absent | DownloadState::Done);
        if fetched || self.view().entry(&model.to_string()).is_some() {
            let message = format!("there is a model `{model}` already");
            return Err(Error::invalid("out", message).with_hint("choose another name by `out`"));
        }
        let out = self.places().model(model);
        let (number, cancel) =
            self.0.jobs.enter(task, source.to_owned(), model.clone(), out.clone())?;
        Ok((number, out, cancel))
    }

    async fn note_made(&self) {
        if let Err(error) = self.rescan().await {
            tracing::warn!(%error, "the models on disk were not looked at");
        }
    }
}

/// Looks at the places whenever a download is done, and passes on that something changed.
async fn follow(
    mut downloads: watch::Receiver<Vec<DownloadProgress>>,
    shelf: Arc<Shelf>,
    changes: watch::Sender<u64>,
) {
    let mut done = done_repos(&downloads.borrow_and_update());
    while downloads.changed().await.is_ok() {
        let now = done_repos(&downloads.borrow_and_update());
        if now.iter().any(|repo| !done.contains(repo))
            && let Err(error) = shelf.rescan().await
        {
            tracing::warn!(%error, "the models on disk were not looked at");
        }
        done = now;
        changes.send_modify(|count| *count += 1);
    }
}

fn done_repos(downloads: &[DownloadProgress]) -> Vec<RepoId> {
    let done = downloads.iter().filter(|progress| progress.state == DownloadState::Done);
    done.map(|progress| progress.repo.clone()).collect()
}

/// # Errors
/// `InvalidRequest` for anything but the absolute path of a file that is called as GGUF files are.
fn check_gguf(file: &Path) -> Result<()> {
    let refused = |why: &str| {
        let message = format!("`{}` {why}", file.display());
        Err(Error::invalid("path", message).with_hint("give the absolute path of a `.gguf` file"))
    };
    let called = file.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
    match (file.is_absolute(), called) {
        (false, _) => refused("is no absolute path"),
        (true, false) => refused("is not called as GGUF files are"),
        (true, true) if !file.is_file() => refused("is no file"),
        (true, true) => Ok(()),
    }
}

/// The name of the model in a GGUF file: that of the file.
fn named_like(file: &Path) -> Result<RepoId> {
    let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    stem.parse().map_err(|_| {
        Error::invalid("out", format!("no model can be called like `{}`", file.display()))
            .with_hint("name it by `out`")
    })
}

/// Does what takes the disk's time on a thread for that.
async fn blocking<T: Send + 'static>(
    attempt: &'static str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = spawn_blocking(work).await;
    done.map_err(|panic| Error::new(Code::Internal, format!("failed to {attempt}: {panic}")))?
}

//! What people see of the models, and do to them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;

use super::machine::{Keeping, Model};
use super::selection::names;
use super::{Asked, Inner, ModelStatus, Overview, Residency, Stage, State};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::gateway::card::ModelCard;
use crate::gateway::catalogue::Source;
use crate::gateway::engine::Engine;
use crate::gateway::rows::Health;
use crate::telemetry::Snapshot;

impl Residency {
    /// All models, as they stand now: those of the catalogue in its order, then those that are loaded and no
    /// longer in it.
    pub fn models(&self) -> Vec<ModelStatus> {
        let inner = &self.0;
        let mut sources = inner.catalogue.sources();
        let default = inner.default_id();
        let state = inner.state.lock();
        let known: Vec<Arc<str>> = sources.iter().map(|source| Arc::clone(&source.id)).collect();
        let stray = state.machine.models().filter(|model| model.held_bytes() > 0);
        sources.extend(
            stray.map(|model| model.source.clone()).filter(|source| !known.contains(&source.id)),
        );
        sources.iter().map(|source| inner.status(&state, source, default.as_deref())).collect()
    }

    /// How the model that `asked` means stands.
    ///
    /// # Errors
    /// `ModelNotFound` with all names.
    pub fn model(&self, asked: Asked<'_>) -> Result<ModelStatus> {
        let source = self.0.select(asked)?.source;
        Ok(self.0.status_of(&source))
    }

    /// Every name by which a request may ask for a model.
    pub fn names(&self) -> Vec<Arc<str>> {
        names(&*self.0.catalogue, &self.0.config.settings)
    }

    /// The id of the model that requests mean which name none, if there is one now.
    pub fn default_id(&self) -> Option<Arc<str>> {
        self.0.default_id()
    }

    /// Looks once more for the model that `asked` means, where it is not known.
    pub async fn look_for(&self, asked: Asked<'_>) {
        // Whoever asks for it next hears what is wrong.
        let _ = self.0.look_for(asked).await;
    }

    /// Has the list of models count as changed whenever `changes` says so, until its sender is gone.
    pub fn follow(&self, mut changes: watch::Receiver<u64>) {
        let Some(runtime) = &self.0.runtime else { return };
        let inner = Arc::downgrade(&self.0);
        runtime.spawn(async move {
            while changes.changed().await.is_ok() {
                let Some(inner) = inner.upgrade() else { return };
                inner.changes.send_modify(|changes| *changes += 1);
            }
        });
    }

    /// Whether nobody needs the files in `directory`. It may ask the file system.
    ///
    /// # Errors
    /// `InUse` while its model is in memory, on its way there, or waited for.
    pub fn check_unused(&self, directory: &Path) -> Result<()> {
        let held: Vec<(Arc<str>, PathBuf, usize)> = {
            let state = self.0.state.lock();
            let held = state.machine.models().filter(|model| model.is_wanted());
            held.map(|model| {
                (Arc::clone(&model.source.id), model.source.directory.clone(), model.leases)
            })
            .collect()
        };
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let wanted = real(directory);
        match held.iter().find(|(_, directory, _)| real(directory) == wanted) {
            None => Ok(()),
            Some((id, _, leases)) => {
                let error = Error::new(
                    Code::InUse,
                    format!("`{id}` is loaded, and {leases} requests use it"),
                );
                Err(error.with_hint("unload it first"))
            }
        }
    }

    /// A receiver that is woken when the list of models changes. How far a load is does not wake it.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Begins to load the model that `asked` means, even if that failed just now.
    ///
    /// # Errors
    /// `ModelNotFound`; `ModelUnavailable` while it is downloaded; `ShuttingDown`.
    pub fn load(&self, asked: Asked<'_>) -> Result<ModelStatus> {
        self.0.commons.check_serving()?;
        let source = self.0.select(asked)?.source;
        self.0.check_whole(&source)?;
        let keeping = self.0.keeping(&source.id);
        self.0.note(|machine, now| machine.load(now, &source, keeping));
        Ok(self.0.status_of(&source))
    }

    /// Begins to unload the model that `asked` means: when its live requests have ended, or with `force` at once,
    /// which ends them where they are.
    ///
    /// # Errors
    /// `ModelNotFound`; `Unsupported` where the one model is always there.
    pub fn unload(&self, asked: Asked<'_>, force: bool) -> Result<ModelStatus> {
        let source = self.0.select(asked)?.source;
        if self.0.runtime.is_none() {
            let message = format!("`{}` is all that this server serves", source.id);
            return Err(Error::new(Code::Unsupported, message));
        }
        self.0.note(|machine, now| machine.unload(now, &source.id, force));
        Ok(self.0.status_of(&source))
    }

    /// Pins or unpins the model that `asked` means, until the server ends.
    ///
    /// # Errors
    /// `ModelNotFound`.
    pub fn pin(&self, asked: Asked<'_>, pinned: bool) -> Result<ModelStatus> {
        let source = self.0.select(asked)?.source;
        let keeping = self.0.keeping_now(&source.id);
        self.0.note(|machine, now| machine.keep(now, &source, Keeping { pinned, ..keeping }));
        Ok(self.0.status_of(&source))
    }

    /// Ends the live request `id` where it is; `false` when no such request is live.
    pub fn cancel(&self, id: &str) -> bool {
        self.engines().iter().any(|engine| engine.cancel(id))
    }

    /// The engines of the models that are loaded, by their ids, without leases: for looks, not for requests.
    pub fn engines(&self) -> Vec<Engine> {
        let state = self.0.state.lock();
        let mut engines: Vec<_> = state.loaded.iter().collect();
        engines.sort_by_key(|(id, _)| Arc::clone(id));
        engines.into_iter().map(|(_, hosted)| hosted.engine.clone()).collect()
    }

    /// Whether requests are worth sending. A model that could not be loaded makes no server ill.
    pub fn health(&self) -> Health {
        match self.0.commons.check_serving() {
            Ok(()) => self.0.host.health(),
            Err(error) => Health::Unavailable { reason: error.message().to_owned() },
        }
    }

    /// What the server does now, the default model first.
    pub fn overview(&self) -> Overview {
        let inner = &self.0;
        let mut models: Vec<(Arc<ModelCard>, Arc<Snapshot>)> = {
            let state = inner.state.lock();
            let shown = |id: &Arc<str>| inner.host.snapshot(id).unwrap_or_default();
            state.cards.iter().map(|(id, card)| (Arc::clone(card), shown(id))).collect()
        };
        let default = inner.default_id();
        let is_default = |card: &ModelCard| default.as_deref() == Some(&*card.id);
        models.sort_by(|(one, _), (other, _)| {
            (!is_default(one), &one.id).cmp(&(!is_default(other), &other.id))
        });
        let uptime = inner.now().saturating_sub(inner.commons.started);
        Overview { models, memory: inner.host.memory(), uptime }
    }

    /// What requests came to since start, in Prometheus' text format.
    pub fn metrics(&self) -> String {
        let Overview { models, memory, .. } = self.overview();
        let shown: Vec<(String, &Snapshot)> =
            models.iter().map(|(card, shown)| (card.id.clone(), &**shown)).collect();
        let healthy = self.health() == Health::Serving;
        let default = self.default_id().unwrap_or_default();
        self.0.commons.meters.of(&default).text_of(&shown, &memory, healthy)
    }

    /// Since when it serves, in Unix seconds.
    pub fn started_unix_seconds(&self) -> u64 {
        self.0.commons.started_unix_seconds
    }
}

impl Inner {
    fn keeping_now(&self, id: &str) -> Keeping {
        let asked = self.state.lock().machine.get(id).map(|model| model.keeping);
        asked.unwrap_or_else(|| self.keeping(id))
    }

    fn status_of(&self, source: &Source) -> ModelStatus {
        let default = self.default_id();
        self.status(&self.state.lock(), source, default.as_deref())
    }

    fn status(&self, state: &State, source: &Source, default: Option<&str>) -> ModelStatus {
        let (id, now) = (&source.id, self.now());
        let said = self.config.settings.of_model(id);
        let model = state.machine.get(id);
        let keeping = model.map_or_else(|| self.keeping(id), |model| model.keeping);
        let stage = model.map_or(&Stage::Absent, |model| &model.stage);
        let expires_at = model.and_then(Model::expires_at);
        ModelStatus {
            id: Arc::clone(id),
            aliases: said.map(|one| one.aliases.clone()).unwrap_or_default(),
            profiles: said.iter().flat_map(|one| one.profiles.keys()).cloned().collect(),
            is_default: default == Some(&**id),
            state: match (stage, source.download) {
                (Stage::Absent, Some(_)) => "downloading",
                (stage, _) => stage.name(),
            },
            failure: match stage {
                Stage::Failed { error, since } => Some((error.clone(), now.saturating_sub(*since))),
                _ => None,
            },
            download: source.download,
            progress: state.loads.get(id).map(|load| load.meter.read()),
            leases: model.map_or(0, |model| model.leases),
            waiting: model.map_or(0, |model| model.waiters.len()),
            pinned: keeping.pinned,
            ttl: keeping.ttl.filter(|_| !keeping.pinned),
            expires_in: expires_at.map(|at: Time| at.saturating_sub(now)),
            idle: model.map(|model| now.saturating_sub(model.used_at)),
            weights_bytes: model.map_or(source.weights_bytes, |model| model.weights_bytes),
            card: state.cards.get(id).cloned(),
        }
    }
}

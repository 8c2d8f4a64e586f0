//! Models that are loaded by script: each is a [`ScriptedExecutor`] after some slices of reading.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slipstream_engine::cache::KvProfile;
use slipstream_engine::config::{ByteBudget, MemoryPlan, SchedulerConfig};
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::gateway::{
    Landed, LoadStep, Loading, ModelCapabilities, ModelCard, ModelLoader, RequestDefaults, Source,
};
use slipstream_engine::limits::KV_HEADROOM_BYTES;
use slipstream_engine::sampling::SamplingParams;

use crate::script::{Script, ScriptedExecutor, SharedJournal};

/// How the next load of a model goes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Course {
    /// Slices that it takes.
    pub slices: u64,
    /// The slice that fails, if one does; 0 is the beginning.
    pub fails_at: Option<u64>,
    /// Whether it panics there instead.
    pub panics: bool,
}

/// What became of the models.
#[derive(Debug, Default)]
pub struct Shipyard {
    /// How loads go, by the names of their models; by default in one slice and well.
    pub courses: BTreeMap<String, Course>,
    /// How often each model is in memory now, or on its way there.
    pub held: BTreeMap<String, usize>,
    /// Slices that were read, of any model.
    pub slices: u64,
    /// What each load's executor did, in the order in which they were begun, with the names of their models.
    pub journals: Vec<(String, SharedJournal)>,
}

impl Shipyard {
    /// KV bytes on the device, of all models that are there.
    pub fn kv_bytes(&self) -> u64 {
        let last = |id: &String| self.journals.iter().rfind(|(name, _)| name == id);
        let journals = self.held.keys().filter_map(last);
        journals.map(|(_, journal)| journal.open().counts.kv_bytes()).sum()
    }

    /// Rows that hold memory on the device, of all models that ever were there.
    pub fn device_rows(&self) -> usize {
        self.journals.iter().map(|(_, journal)| journal.open().counts.device_rows).sum()
    }

    /// Whether a fault hit the row `id`.
    pub fn was_hit(&self, id: &str) -> bool {
        self.journals.iter().any(|(_, journal)| journal.open().hit.contains(id))
    }
}

/// See the module's words.
pub struct ScriptedLoader {
    config: SchedulerConfig,
    yard: Arc<Mutex<Shipyard>>,
    script: Box<dyn Fn(&str) -> Script + Send + Sync>,
}

impl fmt::Debug for ScriptedLoader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ScriptedLoader")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl ScriptedLoader {
    /// Loads models that run under `config` and follow the `script` for their names.
    pub fn new(
        config: SchedulerConfig,
        script: impl Fn(&str) -> Script + Send + Sync + 'static,
    ) -> Self {
        Self { config, yard: Arc::default(), script: Box::new(script) }
    }

    /// What became of the models, for as long as the guard lives.
    pub fn yard(&self) -> MutexGuard<'_, Shipyard> {
        lock(&self.yard)
    }
}

fn lock(yard: &Mutex<Shipyard>) -> MutexGuard<'_, Shipyard> {
    // A scripted panic may poison it; the counts are still good.
    yard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ModelLoader<ScriptedExecutor> for ScriptedLoader {
    fn begin(&self, source: &Source) -> Result<Box<dyn Loading<ScriptedExecutor>>> {
        let id = source.id.to_string();
        let journal = SharedJournal::default();
        let course = {
            let mut yard = self.yard();
            yard.journals.push((id.clone(), journal.clone()));
            yard.courses.get(&id).copied().unwrap_or_default()
        };
        if course.fails_at == Some(0) {
            return Err(broken(&id));
        }
        let (presence, mut script) = (Presence::new(&self.yard, &id), (self.script)(&id));
        let mut inner = script.interrupt.take();
        // The executor owns its script, and so the model's presence.
        script.interrupt = Some(Box::new(move |call| {
            let _held = &presence;
            inner.iter_mut().for_each(|inner| inner(call));
        }));
        let landed = Landed {
            executor: ScriptedExecutor::new(script, journal),
            card: card(&id),
            config: self.config.clone(),
            disk: None,
        };
        let (yard, weights_bytes) = (Arc::clone(&self.yard), source.weights_bytes);
        let landed = Some(landed);
        Ok(Box::new(ScriptedLoad { yard, id, course, done: 0, weights_bytes, landed }))
    }
}

/// The card of a scripted model.
pub fn card(id: &str) -> ModelCard {
    ModelCard {
        id: id.to_owned(),
        context_tokens: 4096,
        vocab_size: 61,
        dtype: "float32".to_owned(),
        back_end: "script".to_owned(),
        kv_scheme: "off".to_owned(),
        capabilities: ModelCapabilities::default(),
        sampling_defaults: SamplingParams::default(),
        max_tokens_default: 4096,
        keeps_billing_line: false,
        request_defaults: RequestDefaults::default(),
        // What rows take is theirs to say: here no row is too large for any budget.
        kv: KvProfile { layers: Vec::new() },
    }
}

/// A source of that name and size.
pub fn source(id: &str, weights_bytes: u64) -> Source {
    Source { id: id.into(), directory: "/scripted".into(), weights_bytes, download: None }
}

/// A server whose KV budget is `kv_bytes` less what weights take.
pub fn plan(kv_bytes: u64) -> MemoryPlan {
    MemoryPlan {
        // Three quarters of it are usable.
        total_bytes: (KV_HEADROOM_BYTES + kv_bytes).div_ceil(3) * 4,
        kv_budget: ByteBudget::Auto,
        prompt_cache: ByteBudget::Auto,
    }
}

struct ScriptedLoad {
    yard: Arc<Mutex<Shipyard>>,
    id: String,
    course: Course,
    done: u64,
    weights_bytes: u64,
    landed: Option<Landed<ScriptedExecutor>>,
}

impl Loading<ScriptedExecutor> for ScriptedLoad {
    fn weights_bytes(&self) -> u64 {
        self.weights_bytes
    }

    fn advance(&mut self) -> Result<LoadStep<ScriptedExecutor>> {
        self.done += 1;
        lock(&self.yard).slices += 1;
        if self.course.fails_at == Some(self.done) {
            assert!(!self.course.panics, "scripted load of {}", self.id);
            return Err(broken(&self.id));
        }
        if self.done < self.course.slices {
            let done_bytes = self.weights_bytes * self.done / self.course.slices;
            return Ok(LoadStep::More { done_bytes });
        }
        let landed = self.landed.take().expect("a load ends once");
        Ok(LoadStep::Done(Box::new(landed)))
    }
}

fn broken(id: &str) -> Error {
    Error::new(Code::BadModel, format!("scripted failure of {id}"))
}

/// Counts a model as in memory for as long as it lives.
struct Presence {
    yard: Arc<Mutex<Shipyard>>,
    id: String,
}

impl Presence {
    fn new(yard: &Arc<Mutex<Shipyard>>, id: &str) -> Self {
        *lock(yard).held.entry(id.to_owned()).or_default() += 1;
        Self { yard: Arc::clone(yard), id: id.to_owned() }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mut yard = lock(&self.yard);
        let left = yard.held.get(&self.id).map_or(0, |count| count - 1);
        match left {
            0 => drop(yard.held.remove(&self.id)),
            left => drop(yard.held.insert(self.id.clone(), left)),
        }
    }
}

//! Requests, leases, deadlines and routes over a host that loads when the test says so.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::clock::Clock;
use crate::config::SchedulerConfig;
use crate::error::{Code, Error, Result};
use crate::gateway::catalogue::{Directories, Download, Source};
use crate::gateway::engine::{Commons, Engine};
use crate::gateway::fleet::LoadMeter;
use crate::gateway::residency::host::{Host, Hosted};
use crate::gateway::residency::{Asked, Residency, ResidencyConfig};
use crate::gateway::rows::Health;
use crate::gateway::script::{ScriptedRows, Step, card, says, tokenizer};
use crate::gateway::settings::ModelSettings;
use crate::gateway::{AnswerEvent, FinishReason, GenerateRequest, ModelCard, ModelStatus, Prompt};
use crate::limits;
use crate::telemetry::{MemorySnapshot, Snapshot};

const S: Duration = Duration::from_secs(1);

/// A load that the test has to end, and of which model.
type PendingLoad = (Arc<str>, oneshot::Sender<Result<()>>);

/// Loads wait for the test; unloads are done at once.
struct ScriptedHost {
    commons: Commons,
    rows: Arc<ScriptedRows>,
    loads: Mutex<Vec<PendingLoad>>,
    begun: watch::Sender<usize>,
    unloaded: watch::Sender<Vec<String>>,
}

impl Host for ScriptedHost {
    fn load(&self, source: Source, _meter: Arc<LoadMeter>) -> BoxFuture<'static, Result<Hosted>> {
        let (end, ended) = oneshot::channel();
        self.loads.lock().push((Arc::clone(&source.id), end));
        self.begun.send_modify(|begun| *begun += 1);
        let card = ModelCard { id: source.id.to_string(), ..card() };
        let (commons, rows) = (self.commons.clone(), Arc::clone(&self.rows));
        Box::pin(async move {
            ended.await.expect("the test ends every load")?;
            let engine =
                Engine::within(&commons, card, tokenizer(), rows, SchedulerConfig::default());
            Ok(Hosted { engine, weights_bytes: source.weights_bytes })
        })
    }

    fn unload(&self, id: &str) -> BoxFuture<'static, ()> {
        self.unloaded.send_modify(|unloaded| unloaded.push(id.to_owned()));
        Box::pin(async {})
    }

    fn health(&self) -> Health {
        Health::Serving
    }

    fn memory(&self) -> MemorySnapshot {
        MemorySnapshot::default()
    }

    fn snapshot(&self, _id: &str) -> Option<Arc<Snapshot>> {
        None
    }
}

/// Three models of 4, 5 and 6 bytes in a room of 10; `a` is the default one, `c` is still being downloaded in
/// some tests.
struct House {
    host: Arc<ScriptedHost>,
    models: Residency,
    clock: Clock,
}

impl House {
    fn new() -> Self {
        Self::of([("a", 4), ("b", 5), ("c", 6)].map(|(id, bytes)| source(id, bytes)).to_vec())
    }

    fn of(sources: Vec<Source>) -> Self {
        let clock = Clock::manual();
        let commons = Commons::new(clock.clone());
        let host = Arc::new(ScriptedHost {
            commons: commons.clone(),
            rows: ScriptedRows::new(|spec| match spec.id.as_str() {
                "endless" => says("x").into_iter().chain([Step::Gate]).collect(),
                _ => says("ok"),
            }),
            loads: Mutex::default(),
            begun: watch::Sender::new(0),
            unloaded: watch::Sender::default(),
        });
        let config = ResidencyConfig {
            default_id: Some("a".into()),
            ttl: Some(30 * S),
            weights_bytes_max: Some(10),
            settings: ModelSettings::of_toml(
                "version = 1\n[models.b]\nprofiles.wild = { temperature = 1.5, max_tokens = 7 }",
            )
            .unwrap(),
        };
        let catalogue = Arc::new(Directories::new(sources).unwrap());
        let models = Residency::on(host.clone(), catalogue, config, commons);
        Self { host, models, clock }
    }

    /// Ends the oldest load once there is one.
    async fn end_load(&self, outcome: Result<()>) -> Arc<str> {
        let mut begun = self.host.begun.subscribe();
        begun.wait_for(|begun| *begun > 0).await.unwrap();
        self.host.begun.send_modify(|begun| *begun -= 1);
        let (id, end) = self.host.loads.lock().remove(0);
        end.send(outcome).unwrap();
        id
    }

    async fn loaded(&self, id: &str) -> Engine {
        let (engine, ended) =
            tokio::join!(self.models.lease(Asked::from(id)), self.end_load(Ok(())));
        assert_eq!(&*ended, id);
        engine.unwrap()
    }

    fn status(&self, id: &str) -> ModelStatus {
        self.models.model(Asked::from(id)).unwrap()
    }

    /// Resolves when the model stands like that.
    async fn stands(&self, id: &str, state: &str) {
        let mut changes = self.models.changes();
        while self.status(id).state != state {
            changes.changed().await.unwrap();
        }
    }
}

fn source(id: &str, weights_bytes: u64) -> Source {
    Source { id: id.into(), directory: "/m".into(), weights_bytes, download: None }
}

fn request(id: &str) -> GenerateRequest {
    GenerateRequest::new(id, Prompt::Text("hello".to_owned()))
}

#[tokio::test]
async fn requests_that_come_during_a_load_share_it_and_hear_its_end() {
    let house = House::new();
    let first = house.models.lease(Asked::from("b"));
    let second = house.models.lease(Asked::from("b"));
    let route = house.models.load(Asked::from("b"));
    let (first, second, id) = tokio::join!(first, second, house.end_load(Ok(())));
    assert_eq!((&*id, route.unwrap().state), ("b", "loading"));
    assert_eq!((first.unwrap().card().id.as_str(), second.unwrap().card().id.as_str()), ("b", "b"));
    assert_eq!(*house.host.begun.borrow(), 0, "there was one load");
    assert_eq!((house.status("b").state, house.status("b").leases), ("ready", 0));
}

#[tokio::test]
async fn a_load_that_fails_is_heard_by_all_and_tried_again_after_a_pause() {
    let house = House::new();
    let error = Error::new(Code::BadModel, "no weights");
    let first = house.models.lease(Asked::from("b"));
    let second = house.models.lease(Asked::from("b"));
    let (first, second, _) = tokio::join!(first, second, house.end_load(Err(error.clone())));
    assert_eq!((first.unwrap_err(), second.unwrap_err()), (error.clone(), error.clone()));
    assert_eq!(house.models.lease(Asked::from("b")).await.unwrap_err(), error);
    assert_eq!(house.status("b").failure.unwrap().0, error);
    assert_eq!(house.models.health(), Health::Serving, "a model that fails makes no server ill");
    house.clock.advance(Duration::from_millis(limits::LOAD_FAILURE_PAUSE_MS));
    house.loaded("b").await;
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_holds_nothing_afterwards() {
    let house = House::new();
    let mut waiting = Box::pin(house.models.lease(Asked::from("b")));
    assert!(waiting.as_mut().now_or_never().is_none());
    assert_eq!(house.status("b").waiting, 1);
    drop(waiting);
    assert_eq!(house.status("b").waiting, 0);
    house.end_load(Ok(())).await;
    house.stands("b", "ready").await;
    assert_eq!(house.status("b").leases, 0);
}

#[tokio::test]
async fn an_idle_model_goes_when_its_time_is_over_and_the_pinned_default_one_stays() {
    let house = House::new();
    drop(house.loaded("a").await);
    let lease = house.loaded("b").await;
    house.clock.advance(100 * S);
    assert_eq!((house.status("b").state, house.status("b").expires_in), ("ready", None));
    drop(lease);
    assert_eq!(house.status("b").expires_in, Some(30 * S));
    house.clock.advance(30 * S);
    house.stands("b", "absent").await;
    assert_eq!(*house.host.unloaded.borrow(), ["b"]);
    let default = house.status("a");
    assert_eq!((default.state, default.pinned, default.ttl), ("ready", true, None));
}

#[tokio::test]
async fn a_generation_keeps_its_model_and_the_next_request_waits_for_it_to_come_back() {
    let house = House::new();
    let engine = house.loaded("b").await;
    let generation = engine.generate(request("endless")).await.unwrap();
    drop(engine);
    assert_eq!(house.models.unload(Asked::from("b"), false).unwrap().state, "draining");
    let next = house.models.lease(Asked::from("b"));
    let let_go = async {
        tokio::task::yield_now().await;
        assert_eq!((house.status("b").state, house.status("b").waiting), ("draining", 1));
        drop(generation);
        house.end_load(Ok(())).await
    };
    let (next, id) = tokio::join!(next, let_go);
    assert_eq!((next.unwrap().card().id.as_str(), &*id), ("b", "b"));
    assert_eq!(*house.host.unloaded.borrow(), ["b"], "it was unloaded in between");
}

#[tokio::test]
async fn unloading_by_force_ends_live_requests_where_they_are() {
    let house = House::new();
    let engine = house.loaded("b").await;
    let mut generation = engine.generate(request("endless")).await.unwrap();
    house.models.unload(Asked::from("b"), true).unwrap();
    let mut end = None;
    while let Some(event) = generation.next().await {
        end = Some(event.unwrap());
    }
    let Some(AnswerEvent::Finished { reason, .. }) = end else { panic!("{end:?}") };
    assert_eq!(reason, FinishReason::Cancelled);
    drop((generation, engine));
    house.stands("b", "absent").await;
}

#[tokio::test]
async fn a_model_makes_room_for_another_one_unless_somebody_uses_it() {
    let house = House::new();
    house.models.pin(Asked::from("a"), false).unwrap();
    drop(house.loaded("a").await);
    let used = house.loaded("b").await;
    let waiting = house.models.lease(Asked::from("c"));
    let let_go = async {
        tokio::task::yield_now().await;
        assert_eq!(house.status("c").state, "loading");
        assert_eq!(house.status("a").state, "ready", "it would not be enough");
        house.clock.advance(S);
        drop(used);
        house.end_load(Ok(())).await
    };
    let (engine, id) = tokio::join!(waiting, let_go);
    assert_eq!((engine.unwrap().card().id.as_str(), &*id), ("c", "c"));
    // `a` was used before `b`, and 4 + 6 fit the room.
    assert_eq!((house.status("a").state, house.status("b").state), ("absent", "absent"));
}

#[tokio::test]
async fn a_model_that_cannot_fit_is_refused_with_what_holds_the_memory() {
    let house = House::new();
    let _default = house.loaded("a").await;
    let other = house.models.pin(Asked::from("b"), true).unwrap();
    assert!(other.pinned);
    drop(house.loaded("b").await);
    let error = house.models.lease(Asked::from("c")).await.unwrap_err();
    assert_eq!(error.code(), Code::ModelUnavailable);
    let words = "failed to load `c`: its weights take 6 B of the 10 B that there are for models, and these are \
                 held by `a` (4 B, pinned), `b` (5 B, pinned)";
    assert_eq!(error.message(), words);
}

#[tokio::test]
async fn a_request_that_waits_for_memory_too_long_is_refused() {
    let house = House::new();
    house.models.pin(Asked::from("a"), false).unwrap();
    let _a = house.loaded("a").await;
    let _b = house.loaded("b").await;
    let waiting = house.models.lease(Asked::from("c"));
    let pass = async {
        tokio::task::yield_now().await;
        house.clock.advance(Duration::from_millis(limits::ROOM_WAIT_MS));
    };
    let (refused, ()) = tokio::join!(waiting, pass);
    let error = refused.unwrap_err();
    assert_eq!(error.code(), Code::ModelUnavailable);
    assert!(error.message().contains("`b` (5 B, requests: 1)"), "{error}");
}

#[tokio::test]
async fn a_profile_sets_defaults_for_its_own_requests_alone() {
    let house = House::new();
    let plain = house.loaded("b").await;
    let wild = house.models.lease(Asked::from("b:wild")).await.unwrap();
    let said = |engine: &Engine| {
        let card = engine.card();
        (card.sampling_defaults.temperature, card.max_tokens_default)
    };
    assert_eq!((said(&plain), said(&wild)), ((0.0, 4096), (1.5, 7)));
    let exempt = |engine: &Engine| engine.card().sampling_defaults.xtc.exempt.clone();
    assert_eq!(exempt(&plain), exempt(&wild), "what XTC never drops is the model's");
    drop(wild.generate(request("profile")).await.unwrap());
    drop(plain.generate(request("plain")).await.unwrap());
    let specs = house.host.rows.specs();
    assert_eq!((specs[0].max_tokens, specs[1].max_tokens > 7), (7, true));
    assert_eq!(house.status("b").leases, 2);
}

#[tokio::test]
async fn a_model_on_its_way_to_the_disk_is_refused_with_how_far_it_is() {
    let download = Some(Download { done_bytes: 30, total_bytes: 100 });
    let half = Source { download, ..source("half", 9) };
    let house = House::of(vec![source("a", 4), half]);
    assert_eq!(house.status("half").state, "downloading");
    let error = house.models.lease(Asked::from("half")).await.unwrap_err();
    assert_eq!(error.code(), Code::ModelUnavailable);
    assert!(error.message().contains("30 B of 100 B"), "{error}");
}

#[tokio::test]
async fn a_server_that_ends_lets_nobody_wait_for_a_model() {
    let house = House::new();
    let waiting = house.models.lease(Asked::from("b"));
    let drain = async {
        tokio::task::yield_now().await;
        house.models.drain();
    };
    let (refused, ()) = tokio::join!(waiting, drain);
    assert_eq!(refused.unwrap_err().code(), Code::ShuttingDown);
    assert_eq!(house.models.lease(Asked::DEFAULT).await.unwrap_err().code(), Code::ShuttingDown);
}

#[tokio::test]
async fn a_load_that_is_given_up_is_unloaded_and_its_requests_hear_so_by_force() {
    let house = House::new();
    let waiting = house.models.lease(Asked::from("b"));
    let force = async {
        tokio::task::yield_now().await;
        house.models.unload(Asked::from("b"), true).unwrap();
    };
    let (refused, ()) = tokio::join!(waiting, force);
    assert_eq!(refused.unwrap_err().code(), Code::ModelUnavailable);
    house.stands("b", "absent").await;
    assert_eq!(*house.host.unloaded.borrow(), ["b"]);
    house.host.loads.lock().clear();
}

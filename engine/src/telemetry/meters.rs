//! What requests came to, counted and timed by model, lane and client, as Prometheus reads it.
//!
//! [`Meters`] hold the series of a whole process; [`RequestMeter`] is one request's pen on them. Every
//! sample carries the served model; those of requests carry their lane and client too. Clients name
//! themselves, so only the first [`limits::CLIENT_SERIES_MAX`] names have series of their own, and all
//! later ones share [`OTHER_CLIENTS`].
//!
//! Times are taken where tokens are read for their client. Invariant: a request that was placed is
//! counted once in `requests`, under its end.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::prometheus_text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::{MemorySnapshot, Snapshot};
use crate::clock::Time;
use crate::limits;

/// The name that all clients share which came after the first ones.
pub const OTHER_CLIENTS: &str = "other";

/// The series of one process, in the hands of one model.
#[derive(Debug, Clone)]
pub struct Meters {
    model: Arc<str>,
    /// Names that have series of their own.
    clients: Arc<Mutex<HashSet<String>>>,
    series: Arc<Series>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabels {
    model: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    model: String,
    lane: &'static str,
    client: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    model: String,
    lane: &'static str,
    client: String,
    end: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    model: String,
    client: String,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RowLabels {
    model: String,
    lane: &'static str,
    client: String,
    state: &'static str,
}

type Times = Family<RequestLabels, Histogram, fn() -> Histogram>;

#[derive(Debug)]
struct Series {
    requests: Family<EndLabels, Counter>,
    refusals: Family<RefusalLabels, Counter>,
    prompt_tokens: Family<RequestLabels, Counter>,
    cached_prompt_tokens: Family<RequestLabels, Counter>,
    generated_tokens: Family<RequestLabels, Counter>,
    first_token_seconds: Times,
    token_gap_seconds: Times,
    queue_seconds: Times,
}

impl Meters {
    /// Empty meters, in the hands of the model `model`.
    pub fn new(model: &str) -> Self {
        Self { model: model.into(), clients: Arc::default(), series: Arc::new(Series::new()) }
    }

    /// The same series in the hands of another model.
    pub fn of(&self, model: &str) -> Self {
        Self { model: model.into(), ..self.clone() }
    }

    /// The meter of a request of `client` that was placed in `lane` and submitted at `submitted`.
    pub fn request(&self, lane: &'static str, client: &str, submitted: Time) -> RequestMeter {
        let model = self.model.to_string();
        let labels = RequestLabels { model, lane, client: self.label(client) };
        let series = &self.series;
        RequestMeter {
            requests: series.requests.clone(),
            prompt_tokens: series.prompt_tokens.get_or_create_owned(&labels),
            cached_prompt_tokens: series.cached_prompt_tokens.get_or_create_owned(&labels),
            generated_tokens: series.generated_tokens.get_or_create_owned(&labels),
            first_token_seconds: series.first_token_seconds.get_or_create_owned(&labels),
            token_gap_seconds: series.token_gap_seconds.get_or_create_owned(&labels),
            queue_seconds: series.queue_seconds.get_or_create_owned(&labels),
            labels,
            submitted,
            heard: None,
            tokens: 0,
            ended: false,
        }
    }

    /// Counts a request of `client` that was not placed, by the name of its error's code.
    pub fn refused(&self, client: &str, code: &'static str) {
        let model = self.model.to_string();
        let labels = RefusalLabels { model, client: self.label(client), code };
        self.series.refusals.get_or_create(&labels).inc();
    }

    /// Everything in Prometheus' text format, version 0.0.4; `snapshot` is what the engine does now.
    pub fn text(&self, snapshot: &Snapshot, healthy: bool) -> String {
        let models = [(self.model.to_string(), snapshot)];
        self.text_of(&models, &snapshot.memory, healthy)
    }

    /// The same for several models with what each of them does now, and the memory of all. What is the server's
    /// own carries the label of the model whose these meters are.
    pub fn text_of(
        &self,
        models: &[(String, &Snapshot)],
        memory: &MemorySnapshot,
        healthy: bool,
    ) -> String {
        let mut registry = Registry::with_prefix("slipstream");
        self.series.register(&mut registry);
        self.register_rows(&mut registry, models);
        register_models(&mut registry, models);
        self.register_server(&mut registry, memory, healthy);
        let mut text = String::new();
        encode(&mut text, &registry).expect("a string takes all that is written to it");
        text
    }

    /// The name under which `client` is counted.
    fn label(&self, client: &str) -> String {
        let mut clients = self.clients.lock();
        if clients.len() < limits::CLIENT_SERIES_MAX {
            clients.insert(client.to_owned());
        }
        let own = clients.contains(client);
        if own { client } else { OTHER_CLIENTS }.to_owned()
    }

    fn register_rows(&self, registry: &mut Registry, models: &[(String, &Snapshot)]) {
        let rows = Family::<RowLabels, Gauge>::default();
        for (model, snapshot) in models {
            for row in &snapshot.rows {
                let (model, client) = (model.clone(), self.label(&row.client));
                let labels = RowLabels { model, lane: row.lane, client, state: row.state };
                rows.get_or_create(&labels).inc();
            }
        }
        registry.register("rows", "Live rows by what they do", rows);
    }

    fn register_server(&self, registry: &mut Registry, memory: &MemorySnapshot, healthy: bool) {
        let mut gauge = |name: &str, help: &str, value: u64| {
            registry.register(name, help, gauge_of([(self.model.to_string(), value)]));
        };
        gauge("healthy", "1 while the engine makes progress or rests", u64::from(healthy));
        gauge("memory_active_bytes", "Bytes of live arrays", memory.active_bytes);
        gauge("memory_cache_bytes", "Bytes kept for reuse", memory.cache_bytes);
        gauge("memory_weights_bytes", "Bytes of the weights", memory.weights_bytes);
    }
}

impl Series {
    fn new() -> Self {
        Self {
            requests: Family::default(),
            refusals: Family::default(),
            prompt_tokens: Family::default(),
            cached_prompt_tokens: Family::default(),
            generated_tokens: Family::default(),
            first_token_seconds: Family::new_with_constructor(waits as fn() -> Histogram),
            token_gap_seconds: Family::new_with_constructor(gaps as fn() -> Histogram),
            queue_seconds: Family::new_with_constructor(waits as fn() -> Histogram),
        }
    }

    fn register(&self, registry: &mut Registry) {
        let mut add = |name: &str, help: &str, family: &Family<RequestLabels, Counter>| {
            registry.register(name, help, family.clone());
        };
        add("prompt_tokens", "Tokens of the prompts that were read", &self.prompt_tokens);
        add("cached_prompt_tokens", "Those that a cache had", &self.cached_prompt_tokens);
        add("generated_tokens", "Tokens of the answers", &self.generated_tokens);
        registry.register("requests", "Requests by how they ended", self.requests.clone());
        registry.register("refused_requests", "Requests that never ran", self.refusals.clone());
        let mut add = |name: &str, help: &str, family: &Times| {
            registry.register(name, help, family.clone());
        };
        let first = "Seconds from a request to its first token";
        add("first_token_seconds", first, &self.first_token_seconds);
        add("token_gap_seconds", "Seconds between two tokens", &self.token_gap_seconds);
        add("queue_seconds", "Seconds before a prompt was begun", &self.queue_seconds);
    }
}

/// From 5 ms to 11 minutes.
fn waits() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 2.0, 18))
}

/// From 1 ms to 16 s.
fn gaps() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

fn register_models(registry: &mut Registry, models: &[(String, &Snapshot)]) {
    let each = |read: &dyn Fn(&Snapshot) -> Option<u64>| -> Vec<(String, u64)> {
        let figures = models.iter().map(|(model, shown)| Some((model.clone(), read(shown)?)));
        figures.flatten().collect()
    };
    let mut gauge = |name: &str, help: &str, read: &dyn Fn(&Snapshot) -> Option<u64>| {
        let figures = each(read);
        if !figures.is_empty() {
            registry.register(name, help, gauge_of(figures));
        }
    };
    gauge("kv_bytes", "KV bytes of the live rows", &|shown| Some(shown.batch.kv_bytes));
    let projected = "KV bytes that they may come to";
    gauge("kv_projected_bytes", projected, &|shown| Some(shown.batch.kv_projected_bytes));
    let budget = "KV bytes that they may never exceed";
    gauge("kv_budget_bytes", budget, &|shown| shown.batch.kv_budget_bytes);
    let rows = "Rows of one decode step at most";
    gauge("batch_rows_max", rows, &|shown| Some(shown.batch.configured as u64));
    let mut counter = |name: &str, help: &str, read: fn(&Snapshot) -> u64| {
        let family = Family::<ModelLabels, Counter>::default();
        for (model, value) in each(&|shown| Some(read(shown))) {
            family.get_or_create(&ModelLabels { model }).inc_by(value);
        }
        registry.register(name, help, family);
    };
    counter("decode_steps", "Decode steps", |shown| shown.totals.decode_steps);
    counter("prefill_chunks", "Prompt chunks", |shown| shown.totals.prefill_chunks);
    let joins = "Rows that joined a running batch";
    counter("joins", joins, |shown| shown.totals.joins);
}

fn gauge_of(figures: impl IntoIterator<Item = (String, u64)>) -> Family<ModelLabels, Gauge> {
    let family = Family::<ModelLabels, Gauge>::default();
    for (model, value) in figures {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        family.get_or_create(&ModelLabels { model }).set(value);
    }
    family
}

/// One request's pen on the meters. Dropped without an end, its client left.
#[derive(Debug)]
pub struct RequestMeter {
    requests: Family<EndLabels, Counter>,
    prompt_tokens: Counter,
    cached_prompt_tokens: Counter,
    generated_tokens: Counter,
    first_token_seconds: Histogram,
    token_gap_seconds: Histogram,
    queue_seconds: Histogram,
    labels: RequestLabels,
    submitted: Time,
    /// When the last token came.
    heard: Option<Time>,
    /// Tokens noted so far.
    tokens: u64,
    ended: bool,
}

impl RequestMeter {
    /// Notes that its prompt of `prompt_tokens` was read, of which a cache had `cached_tokens`, after
    /// `queue_ms` milliseconds in the queue.
    pub fn prefilled(&self, prompt_tokens: usize, cached_tokens: usize, queue_ms: f64) {
        self.prompt_tokens.inc_by(prompt_tokens as u64);
        self.cached_prompt_tokens.inc_by(cached_tokens as u64);
        self.queue_seconds.observe(queue_ms.max(0.0) / 1e3);
    }

    /// Notes a token that came at `now`.
    pub fn token(&mut self, now: Time) {
        match self.heard.replace(now) {
            Some(before) => {
                self.token_gap_seconds.observe(now.saturating_sub(before).as_secs_f64());
            }
            None => {
                let seconds = now.saturating_sub(self.submitted).as_secs_f64();
                self.first_token_seconds.observe(seconds);
            }
        }
        self.tokens += 1;
        self.generated_tokens.inc();
    }

    /// Notes the end and its name, once: later ones do not count. `generated_tokens` are all tokens of
    /// the answer, those included that were not noted.
    pub fn ended(&mut self, end: &'static str, generated_tokens: usize) {
        if self.ended {
            return;
        }
        self.ended = true;
        self.generated_tokens.inc_by((generated_tokens as u64).saturating_sub(self.tokens));
        let RequestLabels { model, lane, client } = self.labels.clone();
        self.requests.get_or_create(&EndLabels { model, lane, client, end }).inc();
    }
}

impl Drop for RequestMeter {
    fn drop(&mut self) {
        self.ended("left", 0);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The lines of the samples whose name starts with `name`.
    fn samples(meters: &Meters, name: &str) -> Vec<String> {
        let text = meters.text(&Snapshot::default(), true);
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn a_request_counts_its_tokens_times_and_its_one_end() {
        let meters = Meters::new("lab/m");
        let mut meter = meters.request("serial", "opencode", 10 * MS);
        meter.prefilled(7, 3, 4.0);
        meter.token(30 * MS);
        meter.token(32 * MS);
        meter.ended("stop", 3);
        meter.ended("length", 9);
        drop(meter);
        let labels = r#"{model="lab/m",lane="serial",client="opencode""#;
        for (name, value) in [
            ("prompt_tokens_total", "7"),
            ("cached_prompt_tokens_total", "3"),
            ("generated_tokens_total", "3"),
            ("first_token_seconds_sum", "0.02"),
            ("first_token_seconds_count", "1"),
            ("token_gap_seconds_sum", "0.002"),
            ("queue_seconds_sum", "0.004"),
        ] {
            let lines = samples(&meters, &format!("slipstream_{name}"));
            assert_eq!(lines, [format!("slipstream_{name}{labels}}} {value}")]);
        }
        let ends = samples(&meters, "slipstream_requests_total");
        assert_eq!(ends, [format!(r#"slipstream_requests_total{labels},end="stop"}} 1"#)]);
    }

    #[test]
    fn a_request_that_is_dropped_without_an_end_was_left() {
        let meters = Meters::new("m");
        drop(meters.request("continuous", "c", Time::ZERO));
        let ends = samples(&meters, "slipstream_requests_total");
        assert!(ends[0].contains(r#"end="left"} 1"#), "{ends:?}");
    }

    #[test]
    fn names_beyond_the_bound_share_one_series_and_known_ones_keep_theirs() {
        let meters = Meters::new("m");
        let count = limits::CLIENT_SERIES_MAX + 50;
        for round in 0..2 {
            for client in 0..count {
                meters.refused(&format!("client-{client}"), "queue_full");
            }
            let series = samples(&meters, "slipstream_refused_requests_total");
            assert_eq!(series.len(), limits::CLIENT_SERIES_MAX + 1, "{round}");
        }
        let others = samples(&meters, "slipstream_refused_requests_total")
            .into_iter()
            .find(|line| line.contains(r#"client="other""#));
        assert!(others.is_some_and(|line| line.ends_with(" 100")));
    }

    #[test]
    fn a_clients_name_cannot_break_out_of_its_label() {
        let meters = Meters::new("m");
        meters.refused("a\"} 1\nslipstream_evil 1\\", "c");
        let series = samples(&meters, "slipstream_");
        assert!(series.iter().all(|line| !line.starts_with("slipstream_evil")), "{series:?}");
        let escaped = r#"client="a\"} 1\nslipstream_evil 1\\",code="c"} 1"#;
        assert!(series.iter().any(|line| line.ends_with(escaped)), "{series:?}");
    }
}

//! Texts to vectors: a request of several texts becomes one row after the other.
//!
//! A row for a vector waits, starts and prefills like any other, so the queue, the KV budget and the pace of
//! prompts hold for it, and rows that decode go on between its chunks. Texts never share a forward: each has
//! the vector that it would have alone.

use std::sync::Arc;

use super::card::ModelCard;
use super::generation;
use super::request;
use super::rows::Rows;
use super::vectors::TextVectors;
use super::{RequestShape, placement};
use crate::config::SchedulerConfig;
use crate::error::{Code, Error, Result};
use crate::sampling::SamplingParams;
use crate::scheduler::{self, EventReceiver, Priority, Purpose, RowEvent, RowSpec, event_channel};

/// Texts that are to become vectors.
#[derive(Debug, Clone)]
pub struct EmbedRequest {
    /// Unique among live requests; the rows have the same.
    pub id: String,
    /// Who asks, for people and statistics.
    pub client: Arc<str>,
    /// Who goes first.
    pub priority: Priority,
    /// The tokens of each text.
    pub texts: Vec<Vec<u32>>,
    /// Leading numbers of the vectors to keep; `None` is all of them.
    pub dimensions: Option<usize>,
}

/// The rows of `request`, one per text, if all of them fit the model and the budget.
pub(super) fn rows(
    request: EmbedRequest,
    card: &ModelCard,
    config: &SchedulerConfig,
) -> Result<Vec<RowSpec>> {
    let vectors = card.text_vectors()?;
    request.dimensions.map_or(Ok(()), |dimensions| vectors.check_dimensions(dimensions))?;
    let dimensions = request.dimensions.filter(|dimensions| *dimensions < vectors.dimensions);
    let EmbedRequest { id, client, priority, texts, .. } = request;
    let row = |prompt: Vec<u32>| {
        check_text(&prompt, vectors, card)?;
        let prompt_tokens = prompt.len();
        let shape = RequestShape { prompt_tokens, max_tokens: 0, greedy: true };
        let batch_rows_max = config.batch_rows_max;
        let ground = placement::Ground { capabilities: &card.capabilities, batch_rows_max };
        let placement = placement::place(shape, &ground);
        let spec = RowSpec {
            id: id.clone(),
            client: Arc::clone(&client),
            lane: placement.lane,
            lane_reasons: placement.reason_texts().into(),
            priority,
            kv_bytes: card.kv.row_bytes(prompt_tokens),
            prompt,
            boundaries: Vec::new(),
            max_tokens: 0,
            stop_tokens: [].into(),
            sampling: SamplingParams::default(),
            grammar: None,
            purpose: Purpose::Vector { dimensions },
        };
        let over = config.kv_budget_bytes.and_then(|most| scheduler::over_budget(&spec, most));
        over.map_or(Ok(spec), Err)
    };
    texts.into_iter().map(row).collect()
}

fn check_text(tokens: &[u32], vectors: &TextVectors, card: &ModelCard) -> Result<()> {
    request::check_tokens(tokens, card, "input")?;
    let most =
        vectors.text_tokens_max.map_or(card.context_tokens, |most| most.min(card.context_tokens));
    if tokens.len() > most {
        let message =
            format!("a text has {} tokens, and the model takes {most} at most", tokens.len());
        return Err(Error::new(Code::ContextLengthExceeded, message).with_param("input"));
    }
    Ok(())
}

/// What became of a row for a vector.
#[derive(Debug)]
pub(super) struct Embedded {
    pub(super) vector: Vec<f32>,
    pub(super) cached_tokens: usize,
    pub(super) queue_ms: f64,
}

/// What a client hears whose request for vectors was ended from outside: there is no part of it to tell.
pub(super) fn cancelled() -> Error {
    Error::new(Code::InvalidRequest, "the request was cancelled before all its vectors were made")
}

/// Runs a row for a vector. Dropping the future drops the row.
pub(super) async fn run(rows: &dyn Rows, spec: RowSpec) -> Result<Embedded> {
    let (sender, events) = event_channel(spec.max_tokens);
    rows.submit(spec, sender)?;
    listen(events).await
}

async fn listen(mut events: EventReceiver) -> Result<Embedded> {
    let mut embedded = None;
    while let Some(event) = events.recv().await {
        match event {
            RowEvent::Vector(vector) => embedded = Some(vector),
            RowEvent::Finished { usage, .. } => {
                let (cached_tokens, queue_ms) = (usage.cached_tokens, usage.queue_ms);
                let told = embedded.map(|vector| Embedded { vector, cached_tokens, queue_ms });
                // We listen still, so it was not our client who cancelled.
                return told.ok_or_else(generation::shutting_down);
            }
            RowEvent::Failed(error) => return Err(error),
            RowEvent::Prefilled { .. } => {}
            RowEvent::Token(_) => {
                return Err(Error::new(Code::Internal, "a row for a vector said a token"));
            }
        }
    }
    Err(generation::engine_gone())
}

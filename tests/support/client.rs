//! A client in memory: it remembers all that it heard, and may leave.

use slipstream_engine::sampling::TokenLogprobs;
use slipstream_engine::scheduler::{
    EventReceiver, EventSender, Executor, FinishReason, RowEvent, RowSpec, RowUsage, Scheduler,
    event_channel,
};

/// The receiving end of one row's events. Events out of their order are a panic.
#[derive(Debug)]
pub struct Client {
    receiver: Option<EventReceiver>,
    prefilled: Option<RowEvent>,
    tokens: Vec<u32>,
    /// Of the tokens that told any.
    logprobs: Vec<TokenLogprobs>,
    vector: Option<Vec<f32>>,
    end: Option<RowEvent>,
}

/// Submits each row `gap_ticks` after the one before, runs until none is live, and returns the clients
/// with all that they heard.
pub fn serve_all<E: Executor>(
    scheduler: &mut Scheduler<E>,
    specs: impl IntoIterator<Item = RowSpec>,
    gap_ticks: usize,
) -> Vec<Client> {
    let mut clients = Vec::new();
    for spec in specs {
        let (client, events) = Client::new(spec.max_tokens);
        scheduler.submit(spec, events);
        clients.push(client);
        for _ in 0..gap_ticks {
            scheduler.tick();
        }
    }
    while scheduler.live_rows() > 0 {
        scheduler.tick();
    }
    clients.iter_mut().for_each(Client::listen);
    clients
}

impl Client {
    /// A client for a row of at most `max_tokens`, and the sender to submit that row with.
    pub fn new(max_tokens: usize) -> (Self, EventSender) {
        let (events, receiver) = event_channel(max_tokens);
        let receiver = Some(receiver);
        let client = Self {
            receiver,
            prefilled: None,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            vector: None,
            end: None,
        };
        (client, events)
    }

    /// Takes in what has arrived.
    pub fn listen(&mut self) {
        while let Some(Ok(event)) = self.receiver.as_mut().map(EventReceiver::try_recv) {
            self.hear(event);
        }
    }

    /// Whether its row was dropped without an end, once it took in all that had arrived.
    pub fn is_cut(&self) -> bool {
        let closed = self.receiver.as_ref().is_some_and(EventReceiver::is_closed);
        closed && self.end.is_none()
    }

    /// Takes in everything until the row's channel closes.
    pub fn listen_to_the_end(&mut self) {
        while let Some(event) = self.receiver.as_mut().and_then(EventReceiver::blocking_recv) {
            self.hear(event);
        }
    }

    /// Hangs up.
    pub fn leave(&mut self) {
        self.receiver = None;
    }

    /// Whether it hung up.
    pub fn has_left(&self) -> bool {
        self.receiver.is_none()
    }

    /// The tokens heard so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// What the tokens told of their log-probabilities, if they were asked to.
    pub fn logprobs(&self) -> &[TokenLogprobs] {
        &self.logprobs
    }

    /// The vector, if one was heard.
    pub fn vector(&self) -> Option<&[f32]> {
        self.vector.as_deref()
    }

    /// What it heard of its prompt, if that is done.
    pub fn prefilled(&self) -> Option<&RowEvent> {
        self.prefilled.as_ref()
    }

    /// The end, if it was heard.
    pub fn end(&self) -> Option<&RowEvent> {
        self.end.as_ref()
    }

    /// The reason and the usage of an end without an error, if that was heard.
    pub fn finish(&self) -> Option<(FinishReason, RowUsage)> {
        match self.end {
            Some(RowEvent::Finished { reason, usage }) => Some((reason, usage)),
            _ => None,
        }
    }

    fn hear(&mut self, event: RowEvent) {
        assert!(self.end.is_none(), "{event:?} after {:?}", self.end);
        match event {
            first @ RowEvent::Prefilled { .. } => {
                assert!(self.prefilled.is_none() && self.tokens.is_empty(), "{first:?} came late");
                self.prefilled = Some(first);
            }
            RowEvent::Token(sampled) => {
                assert!(self.prefilled.is_some(), "a token came before the prompt was done");
                self.tokens.push(sampled.token);
                self.logprobs.extend(sampled.logprobs.map(|told| *told));
            }
            RowEvent::Vector(vector) => {
                let first = self.prefilled.is_some() && self.tokens.is_empty();
                assert!(first && self.vector.is_none(), "{vector:?} came beside something else");
                self.vector = Some(vector);
            }
            end @ (RowEvent::Finished { .. } | RowEvent::Failed(_)) => self.end = Some(end),
        }
    }
}

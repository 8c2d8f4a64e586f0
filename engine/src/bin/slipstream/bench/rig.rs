//! A scheduler with a model, driven tick by tick.

use std::path::Path;

use slipstream_engine::cache::KvScheme;
use slipstream_engine::clock::Clock;
use slipstream_engine::config::{Levers, SchedulerConfig};
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::grammar::Grammar;
use slipstream_engine::limits;
use slipstream_engine::mlx::Device;
use slipstream_engine::prompt_cache::disk::{DiskConfig, DiskTier};
use slipstream_engine::sampling::SamplingParams;
use slipstream_engine::scheduler::{
    Board, EventReceiver, Lane, MlxExecutor, Priority, Purpose, RowEvent, RowSpec, Scheduler,
    event_channel,
};

use crate::load::ModelArguments;

/// See the module's words.
pub(super) struct Rig {
    pub(super) scheduler: Scheduler<MlxExecutor>,
    pub(super) clock: Clock,
    pub(super) kv_scheme: String,
    pub(super) prompt_tokens: usize,
    pub(super) vocabulary: usize,
}

/// What a row told.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) tokens: Vec<u32>,
    /// Milliseconds of its prompt and its first token.
    pub(super) prefill_ms: f64,
}

impl Rig {
    /// The model, under a scheduler that has room for `rows_max` rows and cuts no prompt for them. Prompts are
    /// kept if there is a `folder` to write them to.
    pub(super) fn load(
        model: &ModelArguments,
        rows_max: usize,
        prompt_tokens: usize,
        folder: Option<&Path>,
    ) -> Result<Self> {
        let back_end = Device::select()?.back_end();
        let levers = Levers::from_environment()?;
        let (loaded, scheme) = model.load(back_end, levers)?;
        check_batchable(&scheme, rows_max)?;
        let prompt_cache_bytes = if folder.is_some() { u64::MAX } else { 0 };
        let config = SchedulerConfig {
            batch_rows_max: rows_max,
            prompt_cache_bytes,
            levers,
            ..SchedulerConfig::default()
        };
        let kv_scheme = scheme.name();
        let executor = MlxExecutor::new(loaded.model, loaded.weights_bytes)
            .with_kv_scheme(scheme)
            .with_levers(levers);
        let clock = Clock::monotonic();
        let mut scheduler = Scheduler::new(config, executor, clock.clone(), Board::new());
        if let Some(folder) = folder {
            scheduler = scheduler.with_disk(DiskTier::open(disk(folder), IDENTITY, clock.clone())?);
        }
        Ok(Self { scheduler, clock, kv_scheme, prompt_tokens, vocabulary: loaded.vocabulary })
    }

    /// Queues a greedy row without stop tokens. Equal `number`s have equal prompts.
    pub(super) fn submit(&mut self, number: usize, lane: Lane, max_tokens: usize) -> EventReceiver {
        self.submit_under(number, lane, max_tokens, None)
    }

    /// The same; its answer must match `grammar`, if there is one.
    pub(super) fn submit_under(
        &mut self,
        number: usize,
        lane: Lane,
        max_tokens: usize,
        grammar: Option<Grammar>,
    ) -> EventReceiver {
        let (sender, receiver) = event_channel(max_tokens);
        let token = |index: usize| (index * 7919 + number * 104_729) % self.vocabulary;
        let spec = RowSpec {
            id: format!("bench-{number}"),
            client: "bench".into(),
            lane,
            lane_reasons: [].into(),
            priority: Priority::Interactive,
            prompt: (0..self.prompt_tokens).map(|index| token(index) as u32).collect(),
            boundaries: Vec::new(),
            max_tokens,
            kv_bytes: 0,
            stop_tokens: [].into(),
            sampling: SamplingParams::default(),
            grammar,
            purpose: Purpose::Answer,
        };
        self.scheduler.submit(spec, sender);
        receiver
    }

    /// Runs one tick; returns its seconds.
    pub(super) fn tick(&mut self) -> f64 {
        let began = self.clock.now();
        self.scheduler.tick();
        (self.clock.now() - began).as_secs_f64()
    }

    /// Runs ticks until `rows` rows decode; returns the seconds of each.
    ///
    /// # Errors
    /// When the rows end before that.
    pub(super) fn tick_until_decoding(&mut self, rows: usize) -> Result<Vec<f64>> {
        let mut ticks = Vec::new();
        while self.scheduler.snapshot().batch.active_rows != rows {
            if self.scheduler.live_rows() == 0 {
                let message = format!("the rows ended before {rows} of them decoded together");
                return Err(Error::new(Code::EngineFailed, message));
            }
            ticks.push(self.tick());
        }
        Ok(ticks)
    }

    /// Bytes that were written to the folder.
    pub(super) fn written_bytes(&self) -> u64 {
        self.scheduler.snapshot().disk_cache.map_or(0, |disk| disk.written_bytes)
    }

    /// Runs every live row to its end.
    pub(super) fn tick_until_idle(&mut self) {
        while self.scheduler.live_rows() > 0 {
            self.scheduler.tick();
        }
    }
}

/// Nobody but a benchmark reads what it writes.
const IDENTITY: &str = "00000000";

fn disk(folder: &Path) -> DiskConfig {
    DiskConfig {
        folder: folder.to_owned(),
        max_bytes: limits::DISK_CACHE_BYTES_DEFAULT,
        day_limit_bytes: None,
        queue_bytes: limits::DISK_QUEUE_BYTES_DEFAULT,
    }
}

impl Heard {
    /// Everything that was told so far.
    ///
    /// # Errors
    /// The row's own, if it failed.
    pub(super) fn from(receiver: &mut EventReceiver) -> Result<Self> {
        let mut heard = Self::default();
        while let Ok(event) = receiver.try_recv() {
            match event {
                RowEvent::Prefilled { prefill_ms, .. } => heard.prefill_ms = prefill_ms,
                RowEvent::Token(sampled) => heard.tokens.push(sampled.token),
                RowEvent::Finished { .. } | RowEvent::Vector(_) => {}
                RowEvent::Failed(error) => return Err(error),
            }
        }
        Ok(heard)
    }
}

fn check_batchable(scheme: &KvScheme, rows: usize) -> Result<()> {
    match scheme.serial_reason() {
        Some(reason) if rows > 1 => {
            let message = format!("{rows} rows cannot be measured together: {reason}");
            let hint = "`--batch 1` and `--figures decode,lanes` can";
            Err(Error::new(Code::InvalidRequest, message).with_hint(hint))
        }
        _ => Ok(()),
    }
}

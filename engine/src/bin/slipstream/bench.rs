//! `slipstream bench`: decode speed of the scheduler as it serves, without HTTP.

use serde_json::json;
use slipstream_engine::cache::KvScheme;
use slipstream_engine::clock::Clock;
use slipstream_engine::config::{Levers, SchedulerConfig};
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::mlx::Device;
use slipstream_engine::scheduler::{
    Board, EventReceiver, Lane, MlxExecutor, Priority, RowSpec, Scheduler, event_channel,
};

use crate::load::ModelArguments;

/// What `slipstream bench` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Batch sizes to measure.
    #[arg(long, value_delimiter = ',', default_value = "1,4,8", value_name = "ROWS")]
    batch: Vec<usize>,
    /// Tokens of each prompt.
    #[arg(long, default_value_t = 64)]
    prompt_tokens: usize,
    /// Tokens that each row generates.
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

struct Cell {
    rows: usize,
    decode_tokens_per_second: f64,
    prefill_tokens_per_second: f64,
}

/// Measures each batch size once.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let sizes_are_usable = arguments.batch.iter().all(|rows| *rows > 0);
    if !sizes_are_usable || arguments.prompt_tokens == 0 || arguments.tokens < 2 {
        let message = "a bench needs rows, a prompt and at least 2 tokens";
        return Err(Error::new(Code::InvalidRequest, message));
    }
    let mut bench = Bench::load(arguments)?;
    let cells: Vec<Cell> = arguments.batch.iter().map(|rows| bench.measure(*rows)).collect();
    report(&cells, &bench.kv_scheme, arguments.json);
    Ok(())
}

struct Bench {
    scheduler: Scheduler<MlxExecutor>,
    clock: Clock,
    kv_scheme: String,
    vocabulary: usize,
    prompt_tokens: usize,
    tokens: usize,
}

impl Bench {
    fn load(arguments: &Arguments) -> Result<Self> {
        let back_end = Device::select()?.back_end();
        let (loaded, scheme) = arguments.model.load(back_end)?;
        let clock = Clock::monotonic();
        let batch_rows_max = arguments.batch.iter().copied().max().unwrap_or(1);
        check_batchable(&scheme, batch_rows_max)?;
        let levers = Levers::from_environment()?;
        let config = SchedulerConfig { batch_rows_max, levers, ..SchedulerConfig::default() };
        let kv_scheme = scheme.name();
        let executor = MlxExecutor::new(loaded.model, loaded.weights_bytes)
            .with_kv_scheme(scheme)
            .with_levers(levers);
        Ok(Self {
            scheduler: Scheduler::new(config, executor, clock.clone(), Board::new()),
            clock,
            kv_scheme,
            vocabulary: loaded.vocabulary,
            prompt_tokens: arguments.prompt_tokens,
            tokens: arguments.tokens,
        })
    }

    /// Prefills `rows` rows, then times the steps in which all of them decode.
    fn measure(&mut self, rows: usize) -> Cell {
        let started = self.clock.now();
        let listeners: Vec<EventReceiver> = (0..rows).map(|row| self.submit(row)).collect();
        while self.scheduler.snapshot().batch.active_rows < rows {
            self.scheduler.tick();
        }
        let joined = self.clock.now();
        let before = self.scheduler.snapshot().totals.generated_tokens;
        while self.scheduler.live_rows() > 0 {
            self.scheduler.tick();
        }
        let generated = self.scheduler.snapshot().totals.generated_tokens - before;
        drop(listeners);
        let decode = (self.clock.now() - joined).as_secs_f64();
        let prefill = (joined - started).as_secs_f64();
        Cell {
            rows,
            decode_tokens_per_second: generated as f64 / decode,
            prefill_tokens_per_second: (rows * self.prompt_tokens) as f64 / prefill,
        }
    }

    fn submit(&mut self, row: usize) -> EventReceiver {
        let (sender, receiver) = event_channel(self.tokens);
        let token = |index: usize| (index * 7919 + row * 104_729) % self.vocabulary;
        let spec = RowSpec {
            id: format!("bench-{row}"),
            lane: Lane::Continuous,
            lane_reasons: [].into(),
            priority: Priority::Interactive,
            prompt: (0..self.prompt_tokens).map(|index| token(index) as u32).collect(),
            max_tokens: self.tokens,
            kv_bytes: 0,
            stop_tokens: [].into(),
            sampling: slipstream_engine::sampling::SamplingParams::default(),
        };
        self.scheduler.submit(spec, sender);
        receiver
    }
}

fn check_batchable(scheme: &KvScheme, rows: usize) -> Result<()> {
    match scheme.serial_reason() {
        Some(reason) if rows > 1 => {
            let message = format!("{rows} rows cannot be measured together: {reason}");
            Err(Error::new(Code::InvalidRequest, message).with_hint("`--batch 1` can"))
        }
        _ => Ok(()),
    }
}

fn report(cells: &[Cell], kv_scheme: &str, as_json: bool) {
    if as_json {
        let cells: Vec<_> = cells.iter().map(Cell::as_json).collect();
        println!("{}", json!({ "kv_scheme": kv_scheme, "cells": cells }));
        return;
    }
    println!("KV scheme {kv_scheme}");
    println!("rows  decode tok/s  prefill tok/s");
    for cell in cells {
        let (decode, prefill) = (cell.decode_tokens_per_second, cell.prefill_tokens_per_second);
        println!("{:>4}  {decode:>12.1}  {prefill:>13.1}", cell.rows);
    }
}

impl Cell {
    fn as_json(&self) -> serde_json::Value {
        json!({
            "rows": self.rows,
            "decode_tokens_per_second": self.decode_tokens_per_second,
            "prefill_tokens_per_second": self.prefill_tokens_per_second,
        })
    }
}

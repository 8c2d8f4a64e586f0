//! Rows that write in blocks, over an executor without arrays: what of a block a client hears, and when.

use std::collections::VecDeque;

use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::prompt_cache::Unkept;
use slipstream_engine::scheduler::{
    Board, Executor, FinishReason, Lane, RowEvent, RowSpec, Said, Sampled, Scheduler, Stepped,
    Yield,
};
use slipstream_engine::telemetry::MemorySnapshot;
use slipstream_tests::client::{Client, serve_all};
use slipstream_tests::script;

/// Says its prompt's first token times 100, and counts up from there, in blocks of 4 that take 3 steps.
#[derive(Debug, Default)]
struct Counting {
    row: Option<Row>,
    steps: usize,
    /// The step that fails, from 1.
    fails_at: Option<usize>,
}

#[derive(Debug, Default)]
struct Row {
    prompt: VecDeque<u32>,
    read: Vec<u32>,
    next: u32,
    steps: usize,
}

const BLOCK_TOKENS: u32 = 4;
const BLOCK_STEPS: usize = 3;

impl Executor for Counting {
    type Solo = Row;
    type Snapshot = Unkept;

    fn yields(&self) -> Yield {
        Yield::Blocks
    }

    fn open(&mut self, spec: &RowSpec, _: Option<Unkept>) -> Result<Row> {
        Ok(Row { prompt: spec.prompt.clone().into(), next: spec.prompt[0] * 100, ..Row::default() })
    }

    fn prefill(&mut self, solo: &mut Row, tokens: &[u32]) -> Result<()> {
        for token in tokens {
            assert_eq!(solo.prompt.pop_front(), Some(*token), "a wrong slice of the prompt");
        }
        solo.read.extend(tokens);
        Ok(())
    }

    fn first_token(&mut self, _: &mut Row, _: &[u32]) -> Result<Said> {
        panic!("a row that writes in blocks has no token 0")
    }

    fn join(&mut self, solo: Row) -> Result<()> {
        assert!(self.row.is_none(), "two rows at once");
        assert!(solo.prompt.is_empty(), "a row joins before its prompt is read");
        self.row = Some(solo);
        Ok(())
    }

    fn step(&mut self, _: &Clock) -> Result<Stepped> {
        self.steps += 1;
        if self.fails_at == Some(self.steps) {
            return Err(Error::new(Code::Internal, "scripted"));
        }
        let row = self.row.as_mut().expect("a step without rows");
        row.steps += 1;
        if !row.steps.is_multiple_of(BLOCK_STEPS) {
            return Ok(Stepped::default());
        }
        let block = row.next..row.next + BLOCK_TOKENS;
        row.next = block.end;
        Ok(Stepped {
            said: block.map(|token| Said::from(Sampled::from(token))).collect(),
            ..Stepped::default()
        })
    }

    fn flush(&mut self) -> Result<Vec<Said>> {
        panic!("nothing is in flight")
    }

    fn filter(&mut self, keep: &[usize]) -> Result<()> {
        assert!(keep.is_empty());
        self.reset();
        Ok(())
    }

    fn reset(&mut self) {
        self.row = None;
    }

    fn solo_kv_bytes(&self, solo: &Row) -> u64 {
        solo.read.len() as u64
    }

    fn batch_kv_bytes(&self) -> u64 {
        self.row.as_ref().map_or(0, |row| row.read.len() as u64)
    }

    fn memory(&self) -> MemorySnapshot {
        MemorySnapshot::default()
    }
}

fn scheduler(executor: Counting) -> Scheduler<Counting> {
    let config = SchedulerConfig { prefill_chunk_tokens: 2, ..SchedulerConfig::default() };
    Scheduler::new(config, executor, Clock::manual(), Board::new())
}

fn spec(first: u32, max_tokens: usize, stop_tokens: &[u32]) -> RowSpec {
    RowSpec {
        lane: Lane::Serial,
        stop_tokens: stop_tokens.into(),
        ..script::row(format!("row-{first}"), vec![first, 5, 6, 7, 8], max_tokens)
    }
}

#[track_caller]
fn check(max_tokens: usize, stop: &[u32], said: &[u32], counted: usize, reason: FinishReason) {
    let mut scheduler = scheduler(Counting::default());
    let client = serve_all(&mut scheduler, [spec(1, max_tokens, stop)], 0).remove(0);
    assert_eq!(client.tokens(), said);
    let (end, usage) = client.finish().unwrap();
    assert_eq!((end, usage.generated_tokens, usage.prompt_tokens), (reason, counted, 5));
    let totals = scheduler.snapshot().totals;
    assert_eq!((totals.generated_tokens, totals.prompt_tokens), (counted as u64, 5));
}

#[test]
fn a_row_ends_within_a_block_and_what_comes_behind_was_never_said() {
    let all = [100, 101, 102, 103, 104, 105];
    check(1, &[], &all[..1], 1, FinishReason::Length);
    check(4, &[], &all[..4], 4, FinishReason::Length);
    check(6, &[], &all, 6, FinishReason::Length);
    // A stop token is counted and not delivered, the first of several ends the row.
    check(9, &[106, 105], &all[..5], 6, FinishReason::Stop);
    check(9, &[100], &[], 1, FinishReason::Stop);
    check(6, &[105], &all[..5], 6, FinishReason::Stop);
    check(5, &[105], &all[..5], 5, FinishReason::Length);
}

#[test]
fn a_block_arrives_in_the_step_that_finishes_it_and_nothing_before() {
    let mut scheduler = scheduler(Counting::default());
    let (mut client, events) = Client::new(8);
    scheduler.submit(spec(1, 8, &[]), events);
    let mut heard = Vec::new();
    while scheduler.live_rows() > 0 {
        scheduler.tick();
        client.listen();
        heard.push((client.prefilled().is_some(), client.tokens().len()));
    }
    // Two slices of two prompt tokens; the last one and the first step share the third tick.
    let told: Vec<_> = heard.into_iter().skip_while(|(prefilled, _)| !prefilled).collect();
    assert_eq!(told, [(true, 0), (true, 0), (true, 4), (true, 4), (true, 4), (true, 8)]);
    assert_eq!(scheduler.snapshot().totals.decode_steps, 6);
}

#[test]
fn a_client_that_leaves_within_a_block_frees_the_engine_before_the_next_step() {
    let mut scheduler = scheduler(Counting::default());
    let (mut first, events) = Client::new(8);
    scheduler.submit(spec(1, 8, &[]), events);
    let (mut second, events) = Client::new(4);
    scheduler.submit(spec(2, 4, &[]), events);
    while scheduler.snapshot().batch.active_rows == 0 {
        scheduler.tick();
    }
    let steps = scheduler.snapshot().totals.decode_steps;
    first.leave();
    scheduler.tick();
    let snapshot = scheduler.snapshot();
    assert_eq!((snapshot.totals.cancelled_rows, snapshot.totals.decode_steps), (1, steps));
    assert_eq!(snapshot.rows.len(), 1, "the one behind has started");
    while scheduler.live_rows() > 0 {
        scheduler.tick();
    }
    second.listen();
    assert_eq!(second.tokens(), [200, 201, 202, 203]);
}

#[test]
fn rows_are_served_one_after_the_other() {
    let rows = [1, 2, 3].map(|first| spec(first, 5, &[]));
    let clients = serve_all(&mut scheduler(Counting::default()), rows, 1);
    for (first, client) in [1, 2, 3].into_iter().zip(&clients) {
        let said: Vec<u32> = (first * 100..).take(5).collect();
        assert_eq!(client.tokens(), said);
    }
}

#[test]
fn a_step_that_fails_fails_its_row_and_the_next_one_runs() {
    let mut scheduler = scheduler(Counting { fails_at: Some(4), ..Counting::default() });
    let clients = serve_all(&mut scheduler, [1, 2].map(|first| spec(first, 8, &[])), 0);
    assert_eq!(clients[0].tokens(), [100, 101, 102, 103]);
    assert!(matches!(clients[0].end(), Some(RowEvent::Failed(_))));
    assert_eq!(clients[1].tokens().len(), 8);
}

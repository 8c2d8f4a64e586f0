//! Stories of a few requests on one scheduler.

use std::sync::Arc;
use std::time::Duration;

use slipstream_engine::clock::Clock;
use slipstream_engine::config::{Levers, SchedulerConfig};
use slipstream_engine::error::Code;
use slipstream_engine::limits::OVERTAKES_MAX;
use slipstream_engine::mlx::thread::Activity;
use slipstream_engine::scheduler::{
    Board, FinishReason, Lane, Priority, RowEvent, RowSpec, Scheduler,
};
use slipstream_engine::telemetry::RowSnapshot;

use slipstream_tests::client::Client;
use slipstream_tests::script::{
    Call, Fault, Pace, Script, ScriptedExecutor, SharedJournal, answer, for_vector, kv_bytes, row,
};

/// A scheduler, its clock and what its executor did.
struct Stage {
    scheduler: Scheduler<ScriptedExecutor>,
    clock: Clock,
    board: Board,
    journal: SharedJournal,
}

impl Stage {
    fn new(config: SchedulerConfig) -> Self {
        Self::scripted(config, Script::default())
    }

    fn scripted(config: SchedulerConfig, script: Script) -> Self {
        Self::on_clock(Clock::manual(), config, script)
    }

    fn on_clock(clock: Clock, config: SchedulerConfig, script: Script) -> Self {
        let (board, journal) = (Board::new(), SharedJournal::default());
        let executor = ScriptedExecutor::new(script, journal.clone());
        let scheduler = Scheduler::new(config, executor, clock.clone(), board.clone());
        Self { scheduler, clock, board, journal }
    }

    fn submit(&mut self, spec: &RowSpec) -> Client {
        let (client, events) = Client::new(spec.max_tokens);
        self.scheduler.submit(spec.clone(), events);
        client
    }

    /// Ticks `times`, a millisecond each.
    fn tick(&mut self, times: usize) {
        for _ in 0..times {
            self.clock.advance(Duration::from_millis(1));
            self.scheduler.tick();
        }
    }

    fn run_to_idle(&mut self) {
        for _ in 0..10_000 {
            self.clock.advance(Duration::from_millis(1));
            if self.scheduler.tick() == Activity::Idle {
                return;
            }
        }
        panic!("the rows do not end");
    }

    /// Ids of the rows that started, in that order.
    fn opened(&self) -> Vec<String> {
        self.journal.open().opened.clone()
    }

    fn rows(&self) -> Vec<RowSnapshot> {
        self.scheduler.snapshot().rows
    }

    /// `id:state` of each live row.
    fn states(&self) -> Vec<String> {
        self.rows().iter().map(|row| format!("{}:{}", row.id, row.state)).collect()
    }
}

fn config(batch_rows_max: usize, prefill_chunk_tokens: usize) -> SchedulerConfig {
    SchedulerConfig { batch_rows_max, prefill_chunk_tokens, ..SchedulerConfig::default() }
}

fn background(spec: RowSpec) -> RowSpec {
    RowSpec { priority: Priority::Background, ..spec }
}

fn serial(spec: RowSpec) -> RowSpec {
    RowSpec { lane: Lane::Serial, ..spec }
}

#[track_caller]
fn check_whole_answer(client: &mut Client, spec: &RowSpec) {
    client.listen();
    let expected = answer(spec);
    assert_eq!(client.tokens(), expected.tokens, "{}", spec.id);
    let (reason, usage) = client.finish().expect("the row ended without an error");
    assert_eq!((reason, usage.generated_tokens), (expected.reason, expected.generated_tokens));
}

#[track_caller]
fn check_failed(client: &mut Client, code: Code, message: &str) {
    client.listen();
    let Some(RowEvent::Failed(error)) = client.end() else { panic!("{client:?}") };
    assert_eq!((error.code(), error.message()), (code, message));
}

#[test]
fn eight_rows_share_one_batch() {
    let mut stage = Stage::new(config(8, 2048));
    let specs: Vec<RowSpec> =
        (0..8).map(|index| row(format!("{index}"), vec![index, 5], 20)).collect();
    let mut clients: Vec<Client> = specs.iter().map(|spec| stage.submit(spec)).collect();
    stage.tick(1);
    let snapshot = stage.scheduler.snapshot();
    assert!(snapshot.rows.iter().all(|row| row.state == "decoding"), "{snapshot:?}");
    assert_eq!((snapshot.batch.active_rows, snapshot.batch.batched), (8, true));
    assert_eq!((snapshot.totals.joins, snapshot.totals.peak_rows), (7, 8));
    stage.run_to_idle();
    for (client, spec) in clients.iter_mut().zip(&specs) {
        check_whole_answer(client, spec);
    }
    assert_eq!(stage.journal.open().step_rows, vec![8; 19], "19 steps gave 8 rows 20 tokens each");
}

#[test]
fn a_late_row_joins_while_others_decode() {
    let mut stage = Stage::new(config(8, 4));
    let early = row("early", vec![1, 2, 3], 30);
    let mut early_client = stage.submit(&early);
    stage.tick(3);
    let late = row("late", vec![9; 10], 5);
    let mut late_client = stage.submit(&late);
    stage.tick(1);
    assert_eq!(stage.states(), ["early:decoding", "late:prefilling"]);
    assert_eq!(stage.rows()[1].prefilled_tokens, 4);
    early_client.listen();
    let heard = early_client.tokens().len();
    stage.tick(2);
    early_client.listen();
    assert_eq!(stage.states(), ["early:decoding", "late:decoding"]);
    assert_eq!(early_client.tokens().len(), heard + 2, "a prompt holds nobody up");
    stage.run_to_idle();
    check_whole_answer(&mut early_client, &early);
    check_whole_answer(&mut late_client, &late);
}

#[test]
fn token_0_is_heard_in_the_tick_in_which_the_prompt_ends() {
    let mut stage = Stage::new(config(8, 2048));
    let spec = row("a", vec![1, 2, 3], 10);
    let mut client = stage.submit(&spec);
    stage.tick(1);
    client.listen();
    assert_eq!(client.tokens(), [answer(&spec).tokens[0]]);
}

#[test]
fn a_row_that_ends_at_token_0_never_joins() {
    let mut stage = Stage::new(config(8, 2048));
    let short = row("short", vec![1, 2, 3], 1);
    let mut stopped = row("stopped", vec![4, 5], 9);
    stopped.stop_tokens = Arc::new([answer(&stopped).tokens[0]]);
    let mut short_client = stage.submit(&short);
    let mut stopped_client = stage.submit(&stopped);
    stage.tick(1);
    check_whole_answer(&mut short_client, &short);
    check_whole_answer(&mut stopped_client, &stopped);
    assert!(stopped_client.tokens().is_empty());
    assert_eq!(stage.journal.open().counts.calls_of(Call::Join), 0);
    assert_eq!(stage.scheduler.live_rows(), 0);
}

#[test]
fn no_step_is_run_for_tokens_that_nobody_may_have() {
    let mut stage = Stage::new(config(8, 2048));
    let specs = [row("a", vec![1], 6), row("b", vec![2], 6)];
    let mut clients = specs.each_ref().map(|spec| stage.submit(spec));
    stage.run_to_idle();
    for (client, spec) in clients.iter_mut().zip(&specs) {
        check_whole_answer(client, spec);
    }
    assert_eq!(stage.journal.open().step_rows, [2; 5]);
}

#[test]
fn cancelled_request_frees_its_row_within_one_tick() {
    let mut stage = Stage::new(config(2, 4));
    let mut clients: Vec<Client> = ["decoding", "prefilling", "waiting", "next"]
        .iter()
        .zip([1, 40, 3, 3])
        .map(|(id, prompt_tokens)| stage.submit(&row(*id, vec![1; prompt_tokens], 30)))
        .collect();
    stage.tick(2);
    assert_eq!(
        stage.states(),
        ["decoding:decoding", "prefilling:prefilling", "waiting:waiting", "next:waiting"]
    );
    assert_eq!(stage.journal.open().counts.device_rows, 2);
    for client in &mut clients[..3] {
        client.leave();
    }
    stage.tick(1);
    assert_eq!(stage.states(), ["next:decoding"]);
    assert_eq!(stage.journal.open().counts.device_rows, 1);
    assert_eq!(stage.scheduler.snapshot().totals.cancelled_rows, 3);
}

#[test]
fn a_row_that_fails_to_start_leaves_its_siblings_unharmed() {
    let failing = [
        (Call::Open, "start"),
        (Call::Prefill, "prefill"),
        (Call::FirstToken, "sample token 0 of"),
    ];
    for (call, attempt) in failing {
        let script = Script { faults: vec![(call, 2, Fault::Error)], ..Script::default() };
        let mut stage = Stage::scripted(config(8, 2048), script);
        let specs = ["a", "b", "c"].map(|id| row(id, vec![1, 2, 3], 8));
        let mut clients = specs.each_ref().map(|spec| stage.submit(spec));
        stage.run_to_idle();
        let message = format!("failed to {attempt} `b`: scripted {call:?} 2");
        check_failed(&mut clients[1], Code::Internal, &message);
        check_whole_answer(&mut clients[0], &specs[0]);
        check_whole_answer(&mut clients[2], &specs[2]);
    }
}

#[test]
fn a_failing_batch_fails_its_rows_and_spares_the_queue() {
    let script = Script { faults: vec![(Call::Step, 4, Fault::Error)], ..Script::default() };
    let mut stage = Stage::scripted(config(2, 2048), script);
    let specs = ["a", "b", "c"].map(|id| row(id, vec![1, 2], 9));
    let mut clients = specs.each_ref().map(|spec| stage.submit(spec));
    stage.run_to_idle();
    let message = "batch step failed with 2 rows: scripted Step 4";
    check_failed(&mut clients[0], Code::EngineFailed, message);
    check_failed(&mut clients[1], Code::EngineFailed, message);
    check_whole_answer(&mut clients[2], &specs[2]);
    assert_eq!(stage.scheduler.snapshot().totals.failed_rows, 2);
}

#[test]
fn a_batch_that_fails_to_flush_for_a_joiner_does_not_take_the_joiner_along() {
    let script = Script { faults: vec![(Call::Flush, 1, Fault::Error)], ..Script::default() };
    let mut stage = Stage::scripted(config(8, 2048), script);
    let (old, new) = (row("old", vec![1, 2], 30), row("new", vec![3, 4], 6));
    let mut old_client = stage.submit(&old);
    stage.tick(2);
    let mut new_client = stage.submit(&new);
    stage.run_to_idle();
    check_failed(
        &mut old_client,
        Code::EngineFailed,
        "batch flush failed with 1 rows: scripted Flush 1",
    );
    check_whole_answer(&mut new_client, &new);
}

#[test]
fn a_serial_row_lets_the_batch_drain_and_then_runs_alone() {
    let mut stage = Stage::new(config(8, 2048));
    let specs = [
        row("a", vec![1], 6),
        row("b", vec![2], 9),
        serial(row("alone", vec![3, 4], 5)),
        row("behind", vec![5], 4),
    ];
    let mut clients = specs.each_ref().map(|spec| stage.submit(spec));
    stage.tick(1);
    let reasons: Vec<_> = stage.rows().into_iter().filter_map(|row| row.waiting_reason).collect();
    assert_eq!(reasons, ["serial request waits for live rows to end: 2", "serial request ahead"]);
    while stage.rows().iter().any(|row| ["a", "b"].contains(&row.id.as_str())) {
        stage.tick(1);
    }
    stage.tick(1);
    assert_eq!(stage.states(), ["alone:decoding", "behind:waiting"]);
    assert_eq!(stage.rows()[1].waiting_reason.as_deref(), Some("a serial request runs alone"));
    stage.run_to_idle();
    for (client, spec) in clients.iter_mut().zip(&specs) {
        check_whole_answer(client, spec);
    }
    let step_rows = stage.journal.open().step_rows.clone();
    assert_eq!(step_rows, [[2; 6].as_slice(), &[1; 2], &[1; 4], &[1; 3]].concat());
}

#[test]
fn a_full_queue_refuses_the_next_row() {
    let mut stage = Stage::new(SchedulerConfig { waiting_rows_max: 1, ..config(1, 2048) });
    let spec = |id| row(id, vec![1], 3);
    let mut live = [stage.submit(&spec("a")), stage.submit(&spec("b"))];
    let mut refused = stage.submit(&spec("c"));
    check_failed(&mut refused, Code::QueueFull, "the queue is full: 2 requests run or wait");
    live[0].leave();
    let mut admitted = stage.submit(&spec("d"));
    stage.run_to_idle();
    check_whole_answer(&mut admitted, &spec("d"));
}

#[test]
fn a_row_waits_until_its_bytes_fit_and_says_so_with_numbers() {
    let budget = kv_bytes(0, 100);
    let mut stage =
        Stage::new(SchedulerConfig { kv_budget_bytes: Some(budget), ..config(8, 2048) });
    let specs =
        [row("a", vec![1], 29), row("b", vec![2], 19), row("c", vec![3], 39), row("d", vec![4], 1)];
    let mut clients = specs.each_ref().map(|spec| stage.submit(spec));
    stage.tick(1);
    assert_eq!(stage.states(), ["a:decoding", "b:decoding", "c:waiting", "d:waiting"]);
    let shown = stage.scheduler.snapshot();
    assert_eq!(shown.batch.kv_projected_bytes, 2 * kv_bytes(1, 29));
    // Beside two rows of 30 tokens, one of 40 widens the batch to 3 times 40.
    let waits = ["KV budget: needs 960 B, 640 B of 1.6 kB free", "requests ahead: 1"];
    let told: Vec<_> = shown.rows.iter().filter_map(|row| row.waiting_reason.clone()).collect();
    assert_eq!(told, waits);
    assert_eq!(shown.rows[3].queue_place, Some(2));
    assert_eq!(shown.rows[2].kv_projected_bytes, kv_bytes(1, 39));
    stage.run_to_idle();
    for (client, spec) in clients.iter_mut().zip(&specs) {
        check_whole_answer(client, spec);
    }
    assert_eq!(stage.opened(), ["a", "b", "c", "d"], "the small row waits its turn");
    assert_eq!(stage.scheduler.snapshot().batch.kv_projected_bytes, 0);
}

#[test]
fn a_row_that_can_never_fit_is_refused_at_once_beside_live_ones() {
    let config = SchedulerConfig { kv_budget_bytes: Some(160), ..config(8, 2048) };
    let mut stage = Stage::new(config);
    let fits = row("fits", vec![1], 9);
    let mut client = stage.submit(&fits);
    stage.tick(1);
    let mut refused = stage.submit(&row("large", vec![1, 2], 9));
    let message = "the request needs 176 B of KV cache (176 bytes) for 2 prompt tokens and 9 of \
        answer, and the KV budget is 160 B (160 bytes)";
    check_failed(&mut refused, Code::OverBudget, message);
    stage.run_to_idle();
    check_whole_answer(&mut client, &fits);
    assert_eq!(stage.opened(), ["fits"]);
}

#[test]
fn a_background_row_starts_after_a_bounded_number_of_overtakes_in_an_endless_stream() {
    let mut stage = Stage::new(config(1 + 1, 2048));
    let mut clients: Vec<Client> =
        ["b0", "b1"].iter().map(|id| stage.submit(&background(row(*id, vec![1], 3)))).collect();
    for number in 0..60 {
        // More than can run, so that an interactive row always waits.
        clients.push(stage.submit(&row(format!("i{number}"), vec![1], 6)));
        clients.push(stage.submit(&row(format!("j{number}"), vec![1], 6)));
        stage.tick(1);
    }
    let opened = stage.opened();
    let place = |id: &str| opened.iter().position(|opened| opened == id);
    assert_eq!(place("b0"), Some(OVERTAKES_MAX));
    assert_eq!(place("b1"), Some(2 * OVERTAKES_MAX + 1));
    assert!(stage.rows().iter().any(|row| row.priority == "interactive" && row.state == "waiting"));
}

#[test]
fn one_row_at_a_time_is_one_queue_whatever_the_priorities() {
    let mut stage = Stage::new(config(1, 2048));
    let _clients: Vec<Client> = (0..6)
        .map(|index| {
            let spec = serial(row(index.to_string(), vec![1], 3));
            stage.submit(&if index % 2 == 0 { background(spec) } else { spec })
        })
        .collect();
    stage.run_to_idle();
    assert_eq!(stage.opened(), ["0", "1", "2", "3", "4", "5"]);
}

/// Submits two rows of 6 tokens before each of `ticks`, so that the queue never empties.
fn stream(stage: &mut Stage, ticks: usize, lane: Lane) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..ticks {
        for _ in 0..2 {
            let id = format!("{}", stage.scheduler.snapshot().batch.submitted_rows);
            clients.push(stage.submit(&RowSpec { lane, ..row(id, vec![1], 6) }));
        }
        stage.tick(1);
    }
    clients
}

#[test]
fn a_serial_row_does_not_starve_in_an_endless_stream_of_continuous_ones() {
    let mut stage = Stage::new(config(4, 2048));
    let _before = stream(&mut stage, 10, Lane::Continuous);
    let waiting = stage.rows().iter().filter(|row| row.state == "waiting").count();
    let started = stage.opened().len();
    let _alone = stage.submit(&serial(row("alone", vec![1], 6)));
    let _after = stream(&mut stage, 60, Lane::Continuous);
    let place = stage.opened().iter().position(|id| id == "alone");
    assert_eq!(place, Some(started + waiting), "those that came before it start, and no other");
    assert!(stage.opened().len() > started + waiting + 1, "admission resumes behind it");
    assert!(stage.rows().iter().any(|row| row.state == "waiting"), "the stream never paused");
}

#[test]
fn a_continuous_row_does_not_starve_in_an_endless_stream_of_serial_ones() {
    let mut stage = Stage::new(config(4, 2048));
    let _before = stream(&mut stage, 4, Lane::Serial);
    let waiting = stage.rows().iter().filter(|row| row.state == "waiting").count();
    let started = stage.opened().len();
    let _shared = stage.submit(&row("shared", vec![1], 6));
    let _after = stream(&mut stage, 100, Lane::Serial);
    let place = stage.opened().iter().position(|id| id == "shared");
    assert_eq!(place, Some(started + waiting));
    assert!(stage.rows().iter().any(|row| row.state == "waiting"), "the stream never paused");
}

#[test]
fn without_the_pipeline_each_step_is_read_in_its_own_tick() {
    for no_pipeline in [true, false] {
        let levers = Levers { no_pipeline, ..Levers::default() };
        let mut stage = Stage::new(SchedulerConfig { levers, ..config(8, 2048) });
        let specs = ["a", "b"].map(|id| row(id, vec![1, 2], 9));
        let mut clients = specs.each_ref().map(|spec| stage.submit(spec));
        stage.tick(3);
        clients[0].listen();
        assert_eq!(clients[0].tokens().len(), if no_pipeline { 4 } else { 3 });
        stage.run_to_idle();
        for (client, spec) in clients.iter_mut().zip(&specs) {
            check_whole_answer(client, spec);
        }
        assert_eq!(stage.journal.open().step_rows, [2; 8]);
    }
}

#[test]
fn without_the_tail_split_a_prompt_ends_in_its_last_chunk() {
    let levers = Levers { no_tail_split: true, ..Levers::default() };
    let script = Script { no_tail_split: true, chunk_tokens: Some(4), ..Script::default() };
    let mut stage = Stage::scripted(SchedulerConfig { levers, ..config(8, 4) }, script);
    let spec = row("a", (0..11).collect(), 5);
    let mut client = stage.submit(&spec);
    stage.run_to_idle();
    check_whole_answer(&mut client, &spec);
    let counts = stage.journal.open().counts;
    assert_eq!((counts.calls_of(Call::Prefill), counts.calls_of(Call::FirstToken)), (2, 1));
    assert_eq!(counts.prompt_tokens, 11);
}

const STEP: Duration = Duration::from_millis(20);
const MAX_GAP: Duration = Duration::from_millis(250);

/// A stage on a slow device: 20 ms a call, 1 ms per prompt token, and as much again once 16,000
/// tokens come before it.
fn slow_stage() -> Stage {
    let clock = Clock::manual();
    let cost = |call: Call, tokens: usize, fed_tokens: usize| match call {
        Call::Prefill | Call::FirstToken | Call::Vector => {
            STEP + Duration::from_micros((tokens * (1_000 + fed_tokens / 16)) as u64)
        }
        Call::Step => STEP,
        Call::Open | Call::Restore | Call::Join | Call::Flush | Call::Filter => Duration::ZERO,
    };
    let pace = Some(Pace { clock: clock.clone(), cost: Box::new(cost) });
    let config = SchedulerConfig { max_gap: Some(MAX_GAP), ..config(8, 2048) };
    Stage::on_clock(clock, config, Script { pace, ..Script::default() })
}

/// Ticks until `done`, and returns the longest time that `client` waited for a token.
fn longest_gap(stage: &mut Stage, client: &mut Client, done: impl Fn(&Stage) -> bool) -> Duration {
    let (mut heard_at, mut longest) = (stage.clock.now(), Duration::ZERO);
    while !done(stage) {
        let heard = client.tokens().len();
        stage.scheduler.tick();
        client.listen();
        if client.tokens().len() > heard {
            longest = longest.max(stage.clock.now() - heard_at);
            heard_at = stage.clock.now();
        }
    }
    longest
}

fn decodes(id: &'static str) -> impl Fn(&Stage) -> bool {
    move |stage| stage.states().contains(&format!("{id}:decoding"))
}

#[test]
fn a_long_prompt_holds_up_running_rows_for_the_gap_and_a_step_at_most() {
    let mut stage = slow_stage();
    let mut client = stage.submit(&row("running", vec![1], 100_000));
    stage.scheduler.tick();
    let _long = stage.submit(&row("long", vec![1; 32_000], 9));
    let gap = longest_gap(&mut stage, &mut client, decodes("long"));
    assert!(gap <= MAX_GAP + STEP, "{gap:?}");
    assert!(gap >= MAX_GAP / 2, "chunks are smaller than they need be: {gap:?}");
    let shown = stage.scheduler.snapshot();
    let most = (MAX_GAP + STEP).as_secs_f64() * 1e3;
    assert!(shown.step.gap_ms_p99 <= most && shown.step.gap_ms_p50 > 0.0, "{:?}", shown.step);
}

#[test]
fn a_burst_of_short_prompts_holds_up_running_rows_no_longer() {
    let mut stage = slow_stage();
    let mut client = stage.submit(&row("running", vec![1; 600], 100_000));
    stage.scheduler.tick();
    let _burst: Vec<Client> =
        (0..6).map(|index| stage.submit(&row(format!("{index}"), vec![1; 9], 50))).collect();
    let gap = longest_gap(&mut stage, &mut client, decodes("5"));
    assert!(gap <= MAX_GAP + STEP, "{gap:?}");
}

#[test]
fn texts_for_vectors_hold_up_running_rows_no_longer_than_prompts_do() {
    let mut stage = slow_stage();
    let mut client = stage.submit(&row("running", vec![1; 600], 100_000));
    stage.scheduler.tick();
    let text = |index: usize| row(index.to_string(), vec![1; 9 + 3_000 * (index % 2)], 1);
    let specs: Vec<RowSpec> = (0..6).map(|index| for_vector(text(index), None)).collect();
    let mut texts: Vec<Client> = specs.iter().map(|spec| stage.submit(spec)).collect();
    let gap = longest_gap(&mut stage, &mut client, |stage| stage.scheduler.live_rows() == 1);
    assert!(gap <= MAX_GAP + STEP, "{gap:?}");
    for (spec, text) in specs.iter().zip(&mut texts) {
        text.listen();
        assert_eq!(text.vector(), answer(spec).vector.as_deref());
    }
    let counts = stage.journal.open().counts;
    assert_eq!((counts.calls_of(Call::Vector), counts.calls_of(Call::Join)), (6, 1));
}

#[test]
fn a_text_for_a_vector_must_fit_the_budget_like_any_row_and_says_so_in_its_own_words() {
    let budget = Some(kv_bytes(4, 0));
    let mut stage = Stage::new(SchedulerConfig { kv_budget_bytes: budget, ..config(8, 2048) });
    let mut fits = stage.submit(&for_vector(row("a", vec![1; 4], 1), Some(2)));
    let mut refused = stage.submit(&for_vector(row("b", vec![1; 5], 1), None));
    let message = "the request needs 80 B of KV cache (80 bytes) for a text of 5 tokens, and the KV budget is \
                   64 B (64 bytes)";
    check_failed(&mut refused, Code::OverBudget, message);
    stage.run_to_idle();
    fits.listen();
    assert_eq!(fits.vector().map(<[f32]>::len), Some(2));
    let (reason, usage) = fits.finish().expect("it ended");
    let told = (reason, usage.prompt_tokens, usage.generated_tokens);
    assert_eq!(told, (FinishReason::Stop, 4, 0));
}

#[test]
fn a_lone_prompt_runs_in_whole_chunks() {
    let mut stage = slow_stage();
    let _client = stage.submit(&row("a", vec![1; 4097], 3));
    stage.run_to_idle();
    assert_eq!(stage.scheduler.snapshot().totals.prefill_chunks, 2);
}

#[test]
fn step_times_leave_out_the_wait_for_the_device() {
    let mut stage = slow_stage();
    let _client = stage.submit(&row("a", vec![1, 2], 30));
    stage.run_to_idle();
    let step = stage.scheduler.snapshot().step;
    assert_eq!((step.steps, step.host_ms_p99), (29, 0.0), "this device is all that takes time");
    assert!(step.gap_ms_p50 >= 20.0, "{step:?}");
}

#[test]
fn a_row_without_a_prompt_or_without_room_for_a_token_is_refused() {
    let mut stage = Stage::new(config(1, 2048));
    let mut refused = stage.submit(&row("a", vec![], 3));
    check_failed(&mut refused, Code::InvalidRequest, "the prompt has no tokens");
    let mut refused = stage.submit(&row("b", vec![1], 0));
    check_failed(&mut refused, Code::InvalidRequest, "max_tokens is 0, expected at least 1");
    assert_eq!(stage.scheduler.live_rows(), 0);
}

#[test]
fn usage_says_where_a_row_spent_its_time() {
    let mut stage = Stage::new(config(1, 2));
    let first = row("first", vec![1], 4);
    let second = row("second", vec![1, 2, 3, 4, 5, 6], 3);
    let _first = stage.submit(&first);
    let mut client = stage.submit(&second);
    stage.run_to_idle();
    client.listen();
    let (reason, usage) = client.finish().expect("it ended");
    assert_eq!(reason, FinishReason::Length);
    // It starts in tick 5, says token 0 in tick 7 and its last token in tick 9.
    assert_eq!((usage.queue_ms, usage.prefill_ms, usage.decode_ms), (5.0, 2.0, 2.0));
    assert_eq!((usage.prompt_tokens, usage.generated_tokens), (6, 3));
}

#[test]
fn the_board_shows_every_change_at_once_and_counts_every_20_ms() {
    let mut stage = Stage::new(config(8, 2048));
    let _client = stage.submit(&row("a", vec![1], 100));
    assert!(stage.board.read().rows.is_empty());
    stage.tick(1);
    assert_eq!(stage.board.read().rows[0].generated_tokens, 1);
    stage.tick(19);
    assert_eq!(stage.board.read().rows[0].generated_tokens, 1);
    stage.tick(1);
    let shown = stage.board.read();
    assert_eq!(shown.rows[0].generated_tokens, 21);
    assert!((shown.rows[0].tokens_per_second_mean - 1000.0).abs() < 1e-6, "{shown:?}");
    assert_eq!(shown.progressed_at, Duration::from_millis(21));
    drop(_client);
    stage.tick(1);
    assert!(stage.board.read().rows.is_empty());
}

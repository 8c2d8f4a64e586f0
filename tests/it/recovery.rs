//! A failed engine thread fails its rows and comes back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::error::{Code, Error};
use slipstream_engine::gateway::{Health, Resources, RowThread, Rows};
use slipstream_engine::limits;
use slipstream_engine::mlx::thread::RebuildPause;
use slipstream_engine::scheduler::RowSpec;

use slipstream_tests::client::Client;
use slipstream_tests::script::{Call, Fault, Script, ScriptedExecutor, SharedJournal, answer, row};

const PAUSE: RebuildPause =
    RebuildPause { first: Duration::from_millis(1), longest: Duration::from_millis(2) };

/// A thread whose first executor follows `faults`, and whose later ones work.
fn start(faults: Vec<(Call, u64, Fault)>) -> RowThread<ScriptedExecutor> {
    let builds = AtomicU64::new(0);
    let build = move || {
        let first = builds.fetch_add(1, Ordering::SeqCst) == 0;
        let faults = if first { faults.clone() } else { Vec::new() };
        let script = Script { faults, ..Script::default() };
        let executor = ScriptedExecutor::new(script, SharedJournal::default());
        Ok(Resources { executor, config: SchedulerConfig::default(), disk: None })
    };
    RowThread::start(Clock::monotonic(), PAUSE, build).expect("the script can be built")
}

fn submit(engine: &impl Rows, spec: &RowSpec) -> Result<Client, Error> {
    let (client, events) = Client::new(spec.max_tokens);
    engine.submit(spec.clone(), events)?;
    Ok(client)
}

/// Submits `spec` as soon as the engine takes rows again.
fn submit_after_rebuild(engine: &impl Rows, spec: &RowSpec) -> Client {
    loop {
        match submit(engine, spec) {
            Ok(client) => return client,
            Err(error) => assert_eq!(error.code(), Code::EngineFailed, "{error}"),
        }
        std::thread::yield_now();
    }
}

#[track_caller]
fn check_whole_answer(client: &mut Client, spec: &RowSpec) {
    client.listen_to_the_end();
    let expected = answer(spec);
    assert_eq!(client.tokens(), expected.tokens);
    assert_eq!(client.finish().map(|(reason, _)| reason), Some(expected.reason));
}

#[test]
fn rows_of_many_threads_get_their_answers() {
    let engine = start(Vec::new());
    std::thread::scope(|scope| {
        for index in 0..16 {
            let engine = &engine;
            scope.spawn(move || {
                let spec = row(format!("{index}"), vec![index; 40], 200);
                let mut client = submit(engine, &spec).expect("the queue has room");
                check_whole_answer(&mut client, &spec);
            });
        }
    });
    assert_eq!(engine.health(), Health::Serving);
}

#[test]
fn a_panic_in_the_engine_thread_fails_live_rows_and_the_next_request_works() {
    let engine = start(vec![(Call::Step, 3, Fault::Panic)]);
    let mut lost = submit(&engine, &row("lost", vec![1, 2], 50)).expect("the queue has room");
    lost.listen_to_the_end();
    assert_eq!(lost.end(), None, "a channel that closes without an end means EngineFailed");
    assert_eq!(lost.tokens().len(), 2);
    let spec = row("next", vec![1, 2], 50);
    let mut client = submit_after_rebuild(&engine, &spec);
    check_whole_answer(&mut client, &spec);
    assert_eq!(engine.health(), Health::Serving);
    // The client hears the end before the snapshot says so.
    while !engine.snapshot().rows.is_empty() {
        std::thread::yield_now();
    }
    let totals = engine.snapshot().totals;
    assert_eq!((totals.finished_rows, totals.failed_rows), (2, 1), "the lost row still counts");
}

#[test]
fn an_error_in_the_batch_needs_no_rebuild() {
    let engine = start(vec![(Call::Step, 3, Fault::Error)]);
    let mut failed = submit(&engine, &row("failed", vec![1, 2], 50)).expect("the queue has room");
    failed.listen_to_the_end();
    assert!(failed.end().is_some());
    let spec = row("next", vec![1, 2], 50);
    let mut client = submit(&engine, &spec).expect("the engine still serves");
    check_whole_answer(&mut client, &spec);
}

#[test]
fn an_engine_that_was_shut_down_refuses_rows_and_drops_the_live_ones() {
    let engine = start(Vec::new());
    let mut live = submit(&engine, &row("live", vec![1], 10_000_000)).expect("the queue has room");
    engine.shut_down();
    live.listen_to_the_end();
    assert_eq!(live.end(), None);
    let refused = submit(&engine, &row("late", vec![1], 5)).map(|_| ());
    assert_eq!(refused.map_err(|error| error.code()), Err(Code::ShuttingDown));
    assert!(matches!(engine.health(), Health::Unavailable { .. }));
}

#[test]
fn health_follows_the_steps_of_live_rows_and_not_the_socket() {
    let stall = Duration::from_millis(limits::STALL_MS_MAX) + Duration::from_secs(1);
    let clock = Clock::manual();
    let (reached, step_is_stuck) = mpsc::channel();
    let (go_on, gate) = mpsc::channel::<()>();
    let ends = Mutex::new(Some((reached, gate)));
    let build = move || {
        let (reached, gate) = ends.lock().unwrap().take().expect("it is built once");
        let stuck_at = move |call| {
            if call == 6 {
                reached.send(()).unwrap();
                gate.recv().unwrap();
            }
        };
        let script = Script { interrupt: Some(Box::new(stuck_at)), ..Script::default() };
        let executor = ScriptedExecutor::new(script, SharedJournal::default());
        Ok(Resources { executor, config: SchedulerConfig::default(), disk: None })
    };
    let engine = RowThread::start(clock.clone(), PAUSE, build).expect("the script can be built");
    clock.advance(stall);
    assert_eq!(engine.health(), Health::Serving, "an idle engine is well, however long it rests");
    let spec = row("row", vec![1, 2], 50);
    let mut client = submit(&engine, &spec).expect("the queue has room");
    step_is_stuck.recv().unwrap();
    assert_eq!(engine.health(), Health::Serving, "a step may take a while");
    clock.advance(stall);
    let Health::Unavailable { reason } = engine.health() else { panic!("the step is stuck") };
    assert_eq!(reason, "the engine has been in one step for 61 s");
    go_on.send(()).unwrap();
    check_whole_answer(&mut client, &spec);
    assert_eq!(engine.health(), Health::Serving, "it steps again");
}

//! What a tick does next: pure decisions over a plain view of the scheduler's state.
//!
//! A tick asks twice, because what joins in between changes the second answer: [`plan`] lists the
//! prompt work to run before the next decode step, and [`decode`] then picks the kind of step.
//!
//! Rules of [`plan`]:
//! 1. Rows start in the order of their arrival. A head that cannot start holds everybody behind it.
//! 2. At most `rows_max` rows are live (prefilling or decoding), `prefill_rows_max` of them
//!    prefilling.
//! 3. A serial row starts when nothing is live, and nothing starts while one is.
//! 4. At most `chunk_tokens` prompt tokens run in one tick. Short prompts share them, so several may
//!    start, prefill and join between two decode steps.
//! 5. A prompt is cut at multiples of `chunk_tokens` and before its last token, and nowhere else: a
//!    slice that does not fit into what is left of the tick waits for the next one. So the shapes of
//!    a row's forward passes depend on its own prompt alone, never on its neighbours.
//! 6. Prefilling rows take turns: the scheduler moves a row to the back after each slice, and the
//!    front one always fits.

use std::fmt;

use super::row::Lane;
use crate::config::SchedulerConfig;

/// A row's place in the order of arrival, unique for the scheduler's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RowNumber(pub(super) u64);

/// How many rows are live, of which kind, and how many may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Occupancy {
    pub(super) rows_max: usize,
    pub(super) prefill_rows_max: usize,
    pub(super) decoding: usize,
    pub(super) prefilling: usize,
    /// Whether a live row is a serial one.
    pub(super) serial: bool,
}

/// A row that has prompt tokens left to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) number: RowNumber,
    pub(super) lane: Lane,
    /// Prompt tokens to run, the last one included; at least 1.
    pub(super) left_tokens: usize,
}

/// What [`plan`] decides by.
#[derive(Debug)]
pub(super) struct View {
    pub(super) occupancy: Occupancy,
    /// Prompt tokens that one tick may run.
    pub(super) chunk_tokens: usize,
    /// The row whose turn it is first.
    pub(super) prefilling: Vec<Candidate>,
    /// The head first; rows past `rows_max` cannot start and may be left out.
    pub(super) waiting: Vec<Candidate>,
}

/// One piece of prompt work. Each is one call of the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Move {
    /// The head of the queue starts to prefill.
    Start { row: RowNumber },
    /// The row runs its next prompt tokens.
    Prefill { row: RowNumber, tokens: usize },
    /// The row runs its last prompt token, samples token 0 and joins unless that ended it.
    FirstToken { row: RowNumber },
}

/// What kind of decode step comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decode {
    /// No row decodes.
    Rest,
    /// Dispatch a step, then read the one before it.
    Step,
    /// Only read the step in flight: it ends every row, so another would be for nobody.
    Flush,
}

/// Why the head of the queue may not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// A serial row is live.
    SerialLive,
    /// The head is a serial row and others are live.
    Draining { rows: usize },
    /// `rows_max` rows are live.
    BatchFull { rows: usize, rows_max: usize },
    /// `prefill_rows_max` rows are prefilling.
    PrefillFull { rows: usize, rows_max: usize },
}

/// The prompt work to run before the next decode step, in this order.
pub(super) fn plan(view: &View) -> Vec<Move> {
    let mut pass = Pass {
        occupancy: view.occupancy,
        chunk_tokens: view.chunk_tokens,
        budget_tokens: view.chunk_tokens,
        moves: Vec::new(),
    };
    for row in &view.prefilling {
        pass.advance(row);
    }
    for row in &view.waiting {
        if pass.occupancy.hold(row.lane).is_some() {
            break;
        }
        pass.start(row);
        pass.advance(row);
    }
    pass.moves
}

/// The next decode step for rows that may still deliver `left_tokens` each, the one in flight
/// included.
pub(super) fn decode(in_flight: bool, left_tokens: impl IntoIterator<Item = usize>) -> Decode {
    match left_tokens.into_iter().max() {
        None => Decode::Rest,
        Some(1) if in_flight => Decode::Flush,
        Some(_) => Decode::Step,
    }
}

/// Why each waiting row waits, given the lanes of all of them, head first.
pub(super) fn waiting_reasons(
    occupancy: &Occupancy,
    lanes: impl IntoIterator<Item = Lane>,
) -> Vec<String> {
    let mut lanes = lanes.into_iter().enumerate().peekable();
    let hold = lanes.peek().and_then(|(_, head)| occupancy.hold(*head));
    let mut behind_serial = false;
    let mut reasons = Vec::new();
    for (ahead, lane) in lanes {
        reasons.push(match (behind_serial, hold) {
            (true, _) => "serial request ahead".to_owned(),
            (false, Some(hold)) => hold.to_string(),
            (false, None) if ahead == 0 => "starts before the next step".to_owned(),
            (false, None) => format!("requests ahead: {ahead}"),
        });
        behind_serial |= lane == Lane::Serial;
    }
    reasons
}

impl Occupancy {
    /// An empty one with the caps of `config`.
    pub(super) fn empty(config: &SchedulerConfig) -> Self {
        Self {
            rows_max: config.batch_rows_max,
            prefill_rows_max: config.prefill_rows_max,
            decoding: 0,
            prefilling: 0,
            serial: false,
        }
    }

    /// What keeps a row of `lane`, now at the head of the queue, from starting. Every rule of
    /// admission is here, in the order in which a client should hear of it.
    pub(super) fn hold(&self, lane: Lane) -> Option<Hold> {
        let rows = self.decoding + self.prefilling;
        if self.serial {
            Some(Hold::SerialLive)
        } else if lane == Lane::Serial && rows > 0 {
            Some(Hold::Draining { rows })
        } else if rows >= self.rows_max {
            Some(Hold::BatchFull { rows, rows_max: self.rows_max })
        } else if self.prefilling >= self.prefill_rows_max {
            Some(Hold::PrefillFull { rows: self.prefilling, rows_max: self.prefill_rows_max })
        } else {
            None
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SerialLive => write!(formatter, "a serial request runs alone"),
            Self::Draining { rows } => {
                write!(formatter, "serial request waits for live rows to end: {rows}")
            }
            Self::BatchFull { rows, rows_max } => {
                write!(formatter, "batch is full: {rows} of {rows_max} rows")
            }
            Self::PrefillFull { rows, rows_max } => {
                write!(formatter, "prefill is full: {rows} of {rows_max} rows")
            }
        }
    }
}

/// The plan under construction and what it has used up.
struct Pass {
    occupancy: Occupancy,
    chunk_tokens: usize,
    budget_tokens: usize,
    moves: Vec<Move>,
}

impl Pass {
    fn start(&mut self, row: &Candidate) {
        self.occupancy.prefilling += 1;
        self.occupancy.serial |= row.lane == Lane::Serial;
        self.moves.push(Move::Start { row: row.number });
    }

    /// Gives the row its next slice if that fits, and its first token if that fits too.
    fn advance(&mut self, row: &Candidate) {
        let tokens = (row.left_tokens - 1).min(self.chunk_tokens);
        if tokens > self.budget_tokens {
            return;
        }
        if tokens > 0 {
            self.budget_tokens -= tokens;
            self.moves.push(Move::Prefill { row: row.number, tokens });
        }
        if row.left_tokens - tokens == 1 && self.budget_tokens > 0 {
            self.budget_tokens -= 1;
            self.moves.push(Move::FirstToken { row: row.number });
            self.occupancy.prefilling -= 1;
            self.occupancy.decoding += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Lane::{Continuous, Serial};

    /// A state written in one line: caps, what decodes, and prompts by the tokens left.
    struct Case {
        rows_max: usize,
        prefill_rows_max: usize,
        chunk_tokens: usize,
        decoding: usize,
        serial: bool,
        prefilling: &'static [usize],
        waiting: &'static [(Lane, usize)],
    }

    const EMPTY: Case = Case {
        rows_max: 8,
        prefill_rows_max: 1,
        chunk_tokens: 10,
        decoding: 0,
        serial: false,
        prefilling: &[],
        waiting: &[],
    };

    impl Case {
        fn view(&self) -> View {
            let candidate = |number: usize, lane, left_tokens| Candidate {
                number: RowNumber(number as u64),
                lane,
                left_tokens,
            };
            let first_waiting = self.prefilling.len();
            View {
                occupancy: Occupancy {
                    rows_max: self.rows_max,
                    prefill_rows_max: self.prefill_rows_max,
                    decoding: self.decoding,
                    prefilling: self.prefilling.len(),
                    serial: self.serial,
                },
                chunk_tokens: self.chunk_tokens,
                prefilling: (self.prefilling.iter().enumerate())
                    .map(|(index, left)| candidate(index, Continuous, *left))
                    .collect(),
                waiting: (self.waiting.iter().enumerate())
                    .map(|(index, (lane, left))| candidate(first_waiting + index, *lane, *left))
                    .collect(),
            }
        }
    }

    /// Rows are numbered as written: prefilling ones first, then waiting ones. `s` starts a row,
    /// `p` prefills, `f` runs the last token.
    #[track_caller]
    fn check(case: &Case, expected: &str) {
        let moves: Vec<String> = (plan(&case.view()).iter())
            .map(|step| match step {
                Move::Start { row } => format!("s{}", row.0),
                Move::Prefill { row, tokens } => format!("p{}:{tokens}", row.0),
                Move::FirstToken { row } => format!("f{}", row.0),
            })
            .collect();
        assert_eq!(moves.join(" "), expected);
    }

    #[test]
    fn nothing_to_do_is_an_empty_plan() {
        check(&EMPTY, "");
        check(&Case { decoding: 3, ..EMPTY }, "");
    }

    #[test]
    fn a_short_prompt_drains_to_its_last_token_and_samples() {
        check(&Case { waiting: &[(Continuous, 5)], ..EMPTY }, "s0 p0:4 f0");
    }

    #[test]
    fn a_one_token_prompt_has_nothing_to_drain() {
        check(&Case { waiting: &[(Continuous, 1)], ..EMPTY }, "s0 f0");
    }

    #[test]
    fn the_last_token_counts_against_the_budget() {
        check(&Case { waiting: &[(Continuous, 11)], ..EMPTY }, "s0 p0:10");
        check(&Case { prefilling: &[1], ..EMPTY }, "f0");
        check(&Case { waiting: &[(Continuous, 10)], ..EMPTY }, "s0 p0:9 f0");
    }

    #[test]
    fn a_long_prompt_takes_one_chunk_a_tick() {
        check(&Case { prefilling: &[35], decoding: 2, ..EMPTY }, "p0:10");
        check(&Case { prefilling: &[15], decoding: 2, ..EMPTY }, "p0:10");
        check(&Case { prefilling: &[5], decoding: 2, ..EMPTY }, "p0:4 f0");
    }

    #[test]
    fn short_prompts_share_the_budget_of_one_tick() {
        let waiting = &[(Continuous, 3), (Continuous, 3), (Continuous, 3), (Continuous, 3)];
        check(&Case { waiting, ..EMPTY }, "s0 p0:2 f0 s1 p1:2 f1 s2 p2:2 f2 s3");
    }

    #[test]
    fn a_slice_is_never_cut_to_what_is_left_of_the_budget() {
        let waiting = &[(Continuous, 4), (Continuous, 50)];
        check(&Case { waiting, ..EMPTY }, "s0 p0:3 f0 s1");
    }

    #[test]
    fn a_row_behind_one_that_does_not_fit_may_use_the_rest() {
        check(&Case { prefill_rows_max: 3, prefilling: &[4, 50, 5], ..EMPTY }, "p0:3 f0 p2:4 f2");
    }

    #[test]
    fn one_prefill_at_a_time_holds_the_queue_until_it_is_done() {
        check(&Case { prefilling: &[35], waiting: &[(Continuous, 2)], ..EMPTY }, "p0:10");
    }

    #[test]
    fn more_prefill_rows_let_a_newcomer_take_turns() {
        let waiting = &[(Continuous, 2)];
        check(&Case { prefill_rows_max: 2, prefilling: &[35], waiting, ..EMPTY }, "p0:10 s1");
    }

    #[test]
    fn the_cap_counts_decoding_and_prefilling_rows() {
        let waiting = &[(Continuous, 2), (Continuous, 2)];
        check(&Case { decoding: 8, waiting, ..EMPTY }, "");
        check(&Case { decoding: 7, waiting, ..EMPTY }, "s0 p0:1 f0");
        check(&Case { decoding: 7, prefilling: &[2], waiting, ..EMPTY }, "p0:1 f0");
    }

    #[test]
    fn a_serial_row_waits_until_nothing_is_live_and_holds_the_queue() {
        let waiting = &[(Serial, 2), (Continuous, 2)];
        check(&Case { decoding: 1, waiting, ..EMPTY }, "");
        check(&Case { prefilling: &[2], waiting, ..EMPTY }, "p0:1 f0");
        check(&Case { waiting, ..EMPTY }, "s0 p0:1 f0");
    }

    #[test]
    fn nothing_starts_beside_a_serial_row() {
        let waiting = &[(Continuous, 2)];
        check(&Case { decoding: 1, serial: true, waiting, ..EMPTY }, "");
    }

    #[test]
    fn a_serial_row_behind_others_lets_them_start() {
        let waiting = &[(Continuous, 2), (Serial, 2), (Continuous, 2)];
        check(&Case { waiting, ..EMPTY }, "s0 p0:1 f0");
    }

    #[test]
    fn the_last_token_in_flight_is_read_without_another_step() {
        assert_eq!(decode(true, []), Decode::Rest);
        assert_eq!(decode(true, [1, 1]), Decode::Flush);
        assert_eq!(decode(true, [1, 2]), Decode::Step);
        assert_eq!(decode(false, [1, 1]), Decode::Step);
    }

    #[track_caller]
    fn check_reasons(case: &Case, expected: &[&str]) {
        let view = case.view();
        let lanes = view.waiting.iter().map(|row| row.lane);
        assert_eq!(waiting_reasons(&view.occupancy, lanes), expected);
    }

    #[test]
    fn a_waiting_row_says_why_it_waits() {
        let two = &[(Continuous, 2), (Continuous, 2)];
        check_reasons(
            &Case { decoding: 7, prefilling: &[2], waiting: two, ..EMPTY },
            &["batch is full: 8 of 8 rows"; 2],
        );
        check_reasons(
            &Case { prefilling: &[2], waiting: two, ..EMPTY },
            &["prefill is full: 1 of 1 rows"; 2],
        );
        check_reasons(
            &Case { waiting: two, ..EMPTY },
            &["starts before the next step", "requests ahead: 1"],
        );
        check_reasons(
            &Case { decoding: 1, serial: true, waiting: two, ..EMPTY },
            &["a serial request runs alone"; 2],
        );
        check_reasons(
            &Case { decoding: 3, waiting: &[(Serial, 2), (Continuous, 2)], ..EMPTY },
            &["serial request waits for live rows to end: 3", "serial request ahead"],
        );
    }
}

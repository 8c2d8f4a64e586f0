//! What a tick does next: pure decisions over a plain view of the scheduler's state.
//!
//! A tick asks more than once, because what ran in between changes the next answer: a [`Pass`] lists the
//! prompt work to run before the next decode step, up to each row that starts, since only then is it known
//! how much of its prompt a cache has; and [`decode`] then picks the kind of step.
//!
//! Rules of a [`Pass`]:
//! 1. Rows start in the order of the [queue](super::queue). A first row that cannot start holds
//!    everybody behind it.
//! 2. At most `rows_max` rows are live (prefilling or decoding), `prefill_rows_max` of them
//!    prefilling, and what their caches may come to fits the KV budget ([`Projection`]).
//! 3. A serial row starts when nothing is live, and nothing starts while one is.
//! 4. At most a chunk of prompt tokens runs in one tick. Short prompts share it, so several may
//!    start, prefill and join between two decode steps. While rows decode the chunk is what the
//!    [pacer](super::pace) allows, and a call of the executor costs at least as many tokens as run in
//!    its time; while none does, it is the configured one.
//! 5. A slice is a whole chunk or what the prompt has left before its last token, or before a boundary at which
//!    its caches are kept; never what is left of the tick: one that does not fit there waits for the next tick. So with a *pinned* chunk the
//!    shapes of a row's forward passes depend on its own prompt alone. With a *paced* one they depend on
//!    the speed that was measured and on whether others decode, and a row's bits may differ from run
//!    to run as far as the back end's do with the shape of a prefill.
//! 6. Prefilling rows take turns: the scheduler moves a row to the back after each slice, and the
//!    front one always fits.
//! 7. The last token of a prompt runs alone, unless the tail split is switched off: then it ends the
//!    last slice.
//! 8. A row whose first tokens the disk has reads a piece of them in place of a slice, and that counts as a
//!    whole chunk.
//! 9. A row for a vector ends with its prompt. Its last token ends the last slice, so a text of one chunk
//!    runs at once, and rows behind it find the tick as if it had not decoded. What it held counts until
//!    the next tick.

use std::fmt;

use super::queue::RowNumber;
use super::row::Lane;
use crate::config::{ByteCount, SchedulerConfig};

/// How many rows are live, of which kind, and how many may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Occupancy {
    pub(super) rows_max: usize,
    pub(super) prefill_rows_max: usize,
    pub(super) kv_budget_bytes: Option<u64>,
    /// What of the budget is kept free for a row of another model that has waited longer.
    pub(super) reserved_bytes: u64,
    pub(super) decoding: usize,
    pub(super) prefilling: usize,
    /// Whether a live row is a serial one.
    pub(super) serial: bool,
    /// What the live rows may come to hold.
    pub(super) projection: Projection,
}

/// What the caches of some rows may come to, in the worst case.
///
/// A batch is as wide as its longest row and pads the others to that, so each row is counted as the
/// largest of them. As all rows have the same layers, no batch of these rows is ever larger: its
/// width is the length of a live row, since [`filter`](super::Executor::filter) shifts out the padding
/// that all survivors share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Projection {
    rows: u64,
    largest_bytes: u64,
}

/// A row that has prompt tokens left to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) number: RowNumber,
    pub(super) lane: Lane,
    /// Prompt tokens to run, the last one included; at least 1.
    pub(super) left_tokens: usize,
    /// How many of them come before the next boundary, if one comes before the last token.
    pub(super) boundary_tokens: Option<usize>,
    /// What its caches may come to, alone.
    pub(super) kv_bytes: u64,
    /// Whether it joins the batch when its prompt is done; a row for a vector does not.
    pub(super) joins: bool,
    /// Whether the first tokens of its prompt are still on their way from the disk.
    pub(super) restores: bool,
}

/// How many prompt tokens one tick may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunks {
    /// While no row decodes.
    pub(super) alone_tokens: usize,
    /// While rows decode.
    pub(super) beside_tokens: usize,
    /// What a call of the executor costs at least while rows decode.
    pub(super) call_tokens: usize,
}

/// What a [`Pass`] decides by.
#[derive(Debug)]
pub(super) struct View {
    pub(super) occupancy: Occupancy,
    pub(super) chunks: Chunks,
    /// Whether the last prompt token runs alone.
    pub(super) tail_split: bool,
    /// The row whose turn it is first.
    pub(super) prefilling: Vec<Candidate>,
    /// In the order of the queue; rows past `rows_max` cannot start and may be left out.
    pub(super) waiting: Vec<Candidate>,
}

/// One piece of prompt work, for one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Move {
    /// The head of the queue starts to prefill.
    Start { row: RowNumber },
    /// The row reads more of what the disk has of its prompt.
    Restore { row: RowNumber },
    /// The row runs its next prompt tokens.
    Prefill { row: RowNumber, tokens: usize },
    /// The row runs its last prompt tokens, samples token 0 and joins unless that ended it.
    FirstToken { row: RowNumber, tokens: usize },
    /// The row runs its last prompt tokens, tells their vector and ends.
    Vector { row: RowNumber, tokens: usize },
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
    /// Its bytes do not fit beside the live rows'.
    KvBudget { needs_bytes: u64, free_bytes: u64, budget_bytes: u64 },
    /// `prefill_rows_max` rows are prefilling.
    PrefillFull { rows: usize, rows_max: usize },
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

/// Why each waiting row waits, given all of them in the order of the queue.
pub(super) fn waiting_reasons(
    occupancy: &Occupancy,
    rows: impl IntoIterator<Item = Candidate>,
) -> Vec<String> {
    let mut rows = rows.into_iter().enumerate().peekable();
    let hold = rows.peek().and_then(|(_, head)| occupancy.hold(head));
    let mut behind_serial = false;
    let mut reasons = Vec::new();
    for (ahead, row) in rows {
        reasons.push(match (ahead, behind_serial, hold) {
            (_, true, _) => "serial request ahead".to_owned(),
            (0, false, Some(hold)) => hold.to_string(),
            (_, false, Some(hold)) if hold.concerns_all() => hold.to_string(),
            (0, false, None) => "starts before the next step".to_owned(),
            (_, false, _) => format!("requests ahead: {ahead}"),
        });
        behind_serial |= row.lane == Lane::Serial;
    }
    reasons
}

impl Projection {
    /// The same with one more row of `kv_bytes`.
    pub(super) fn with(self, kv_bytes: u64) -> Self {
        Self { rows: self.rows + 1, largest_bytes: self.largest_bytes.max(kv_bytes) }
    }

    /// What they may come to together.
    pub(super) fn bytes(self) -> u64 {
        self.rows.saturating_mul(self.largest_bytes)
    }
}

impl Occupancy {
    /// An empty one with the caps of `config`.
    pub(super) fn empty(config: &SchedulerConfig) -> Self {
        Self {
            rows_max: config.batch_rows_max,
            prefill_rows_max: config.prefill_rows_max,
            kv_budget_bytes: config.kv_budget_bytes,
            reserved_bytes: 0,
            decoding: 0,
            prefilling: 0,
            serial: false,
            projection: Projection::default(),
        }
    }

    /// What keeps `row`, now at the head of the queue, from starting. Every rule of admission is here,
    /// in the order in which a client should hear of it.
    pub(super) fn hold(&self, row: &Candidate) -> Option<Hold> {
        let rows = self.decoding + self.prefilling;
        if self.serial {
            Some(Hold::SerialLive)
        } else if row.lane == Lane::Serial && rows > 0 {
            Some(Hold::Draining { rows })
        } else if rows >= self.rows_max {
            Some(Hold::BatchFull { rows, rows_max: self.rows_max })
        } else if let Some(hold) = self.over_budget(row.kv_bytes) {
            Some(hold)
        } else if self.prefilling >= self.prefill_rows_max {
            Some(Hold::PrefillFull { rows: self.prefilling, rows_max: self.prefill_rows_max })
        } else {
            None
        }
    }

    /// Whether a row of `kv_bytes` fits beside the live ones.
    pub(super) fn fits(&self, kv_bytes: u64) -> bool {
        self.over_budget(kv_bytes).is_none()
    }

    /// Why a row of `kv_bytes` does not fit beside the live ones, if so. What it needs is what it adds to
    /// the projection, the padding that it brings upon the others included.
    fn over_budget(&self, kv_bytes: u64) -> Option<Hold> {
        let budget_bytes = self.kv_budget_bytes?.saturating_sub(self.reserved_bytes);
        let live_bytes = self.projection.bytes();
        let all_bytes = self.projection.with(kv_bytes).bytes();
        (all_bytes > budget_bytes).then(|| Hold::KvBudget {
            needs_bytes: all_bytes - live_bytes,
            free_bytes: budget_bytes.saturating_sub(live_bytes),
            budget_bytes,
        })
    }
}

impl Hold {
    /// Whether every row of the queue waits for the same thing as its head.
    fn concerns_all(self) -> bool {
        match self {
            Self::SerialLive | Self::BatchFull { .. } | Self::PrefillFull { .. } => true,
            Self::Draining { .. } | Self::KvBudget { .. } => false,
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::SerialLive => write!(formatter, "a serial request runs alone"),
            Self::Draining { rows } => {
                write!(formatter, "serial request waits for live rows to end: {rows}")
            }
            Self::BatchFull { rows, rows_max } => {
                write!(formatter, "batch is full: {rows} of {rows_max} rows")
            }
            Self::KvBudget { needs_bytes, free_bytes, budget_bytes } => {
                let [needs, free, budget] = [needs_bytes, free_bytes, budget_bytes].map(ByteCount);
                write!(formatter, "KV budget: needs {needs}, {free} of {budget} free")
            }
            Self::PrefillFull { rows, rows_max } => {
                write!(formatter, "prefill is full: {rows} of {rows_max} rows")
            }
        }
    }
}

/// The prompt work of one tick, planned piece by piece, and what it has used up.
#[derive(Debug)]
pub(super) struct Pass {
    occupancy: Occupancy,
    chunks: Chunks,
    tail_split: bool,
    /// What this tick may still run.
    budget_tokens: usize,
    /// Whether a call over tokens was planned.
    ran: bool,
    /// Rows that had their turn.
    served: Vec<RowNumber>,
    moves: Vec<Move>,
}

impl Pass {
    /// A tick that begins with `view`.
    pub(super) fn new(view: &View) -> Self {
        let View { occupancy, chunks, tail_split, .. } = *view;
        let mut pass = Self {
            occupancy,
            chunks,
            tail_split,
            budget_tokens: 0,
            ran: false,
            served: Vec::new(),
            moves: Vec::new(),
        };
        pass.budget_tokens = pass.chunk_tokens();
        pass
    }

    /// The work to run next, given how things stand after what was planned before: up to the first row that
    /// starts, which is then the last move and is to be planned on with. Without one, this is the end.
    pub(super) fn next(&mut self, view: &View) -> Vec<Move> {
        self.occupancy = view.occupancy;
        for row in &view.prefilling {
            if !self.served.contains(&row.number) {
                self.served.push(row.number);
                self.advance(row);
            }
        }
        if let Some(row) = view.waiting.first().filter(|row| self.occupancy.hold(row).is_none()) {
            self.moves.push(Move::Start { row: row.number });
        }
        std::mem::take(&mut self.moves)
    }

    /// Gives the row its next slice if that fits, and its first token if that fits too.
    fn advance(&mut self, row: &Candidate) {
        if row.restores {
            if self.spend(self.chunk_tokens()) {
                self.moves.push(Move::Restore { row: row.number });
            }
            return;
        }
        let (drain, last) = self.slices(row);
        if drain > 0 {
            if !self.spend(drain) {
                return;
            }
            self.moves.push(Move::Prefill { row: row.number, tokens: drain });
        }
        if drain + last == row.left_tokens && self.spend(last) {
            let (row, tokens, joins) = (row.number, last, row.joins);
            match joins {
                true => {
                    self.moves.push(Move::FirstToken { row, tokens });
                    self.begin_decoding();
                }
                false => {
                    self.moves.push(Move::Vector { row, tokens });
                    self.occupancy.prefilling -= 1;
                }
            }
        }
    }

    /// The tokens of the next slice without logits, and those that end the prompt, if they follow.
    fn slices(&self, row: &Candidate) -> (usize, usize) {
        let (chunk_tokens, left_tokens) = (self.chunk_tokens(), row.left_tokens);
        let tail_split = self.tail_split && row.joins;
        match row.boundary_tokens {
            Some(boundary_tokens) => (boundary_tokens.min(chunk_tokens), 1),
            None if !tail_split && left_tokens <= chunk_tokens => (0, left_tokens),
            None => ((left_tokens - 1).min(chunk_tokens), 1),
        }
    }

    /// Takes what a call over `tokens` costs from the tick; `false` when it does not fit. The first
    /// call of a tick fits always, so that paced prompts get on at whatever cost.
    fn spend(&mut self, tokens: usize) -> bool {
        let cost_tokens = match self.occupancy.decoding {
            0 => tokens,
            _ => tokens.max(self.chunks.call_tokens),
        };
        let fits = !self.ran || cost_tokens <= self.budget_tokens;
        if fits {
            self.ran = true;
            self.budget_tokens = self.budget_tokens.saturating_sub(cost_tokens);
        }
        fits
    }

    /// A row joins the batch; from here on it waits for what else runs in this tick.
    fn begin_decoding(&mut self) {
        self.budget_tokens = self.budget_tokens.min(self.chunks.beside_tokens);
        self.occupancy.prefilling -= 1;
        self.occupancy.decoding += 1;
    }

    fn chunk_tokens(&self) -> usize {
        match self.occupancy.decoding {
            0 => self.chunks.alone_tokens,
            _ => self.chunks.beside_tokens,
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
        /// Of a pinned chunk, unless `paced`.
        chunk_tokens: usize,
        /// Tokens beside decoding rows, and what a call costs then.
        paced: Option<(usize, usize)>,
        tail_split: bool,
        kv_budget_bytes: Option<u64>,
        decoding: usize,
        serial: bool,
        prefilling: &'static [usize],
        waiting: &'static [(Lane, usize)],
        /// The numbers of the rows for vectors.
        vectors: &'static [usize],
        /// The numbers of the rows that the disk has something of.
        restoring: &'static [usize],
    }

    /// What a row of one of these cases takes.
    const ROW_BYTES: u64 = 1_000_000;

    const EMPTY: Case = Case {
        rows_max: 8,
        prefill_rows_max: 1,
        chunk_tokens: 10,
        paced: None,
        tail_split: true,
        kv_budget_bytes: None,
        decoding: 0,
        serial: false,
        prefilling: &[],
        waiting: &[],
        vectors: &[],
        restoring: &[],
    };

    fn candidate(number: usize, lane: Lane, left_tokens: usize) -> Candidate {
        let number = RowNumber(number as u64);
        let kv_bytes = ROW_BYTES;
        Candidate {
            number,
            lane,
            left_tokens,
            boundary_tokens: None,
            kv_bytes,
            joins: true,
            restores: false,
        }
    }

    /// All moves of a tick, of whose starting rows a cache leaves `uncached` tokens to run.
    fn plan(mut view: View, uncached: impl Fn(usize) -> usize) -> Vec<Move> {
        let mut pass = Pass::new(&view);
        let mut all = Vec::new();
        loop {
            let moves = pass.next(&view);
            all.extend(&moves);
            moves.iter().for_each(|step| view.take_place(*step));
            let Some(Move::Start { .. }) = moves.last() else { return all };
            let mut row = view.waiting.remove(0);
            row.left_tokens = uncached(row.left_tokens);
            view.occupancy.prefilling += 1;
            view.occupancy.serial |= row.lane == Serial;
            view.occupancy.projection = view.occupancy.projection.with(row.kv_bytes);
            view.prefilling.push(row);
        }
    }

    impl View {
        /// What a move over tokens leaves.
        fn take_place(&mut self, step: Move) {
            let place = |number| self.prefilling.iter().position(|row| row.number == number);
            match step {
                Move::Start { .. } | Move::Restore { .. } => {}
                Move::Prefill { row, tokens } => {
                    let place = place(row).unwrap();
                    let mut row = self.prefilling.remove(place);
                    row.left_tokens -= tokens;
                    self.prefilling.push(row);
                }
                Move::FirstToken { row, .. } => {
                    self.prefilling.remove(place(row).unwrap());
                    self.occupancy.prefilling -= 1;
                    self.occupancy.decoding += 1;
                }
                Move::Vector { row, .. } => {
                    self.prefilling.remove(place(row).unwrap());
                    self.occupancy.prefilling -= 1;
                    self.occupancy.serial = false;
                    self.occupancy.projection = (0..self.occupancy.decoding
                        + self.prefilling.len())
                        .fold(Projection::default(), |rows, _| rows.with(ROW_BYTES));
                }
            }
        }
    }

    impl Case {
        fn candidate(&self, number: usize, lane: Lane, left_tokens: usize) -> Candidate {
            let joins = !self.vectors.contains(&number);
            let restores = self.restoring.contains(&number);
            Candidate { joins, restores, ..candidate(number, lane, left_tokens) }
        }

        fn view(&self) -> View {
            let rows = self.decoding + self.prefilling.len();
            let (beside_tokens, call_tokens) = self.paced.unwrap_or((self.chunk_tokens, 1));
            let first_waiting = self.prefilling.len();
            View {
                occupancy: Occupancy {
                    reserved_bytes: 0,
                    rows_max: self.rows_max,
                    prefill_rows_max: self.prefill_rows_max,
                    kv_budget_bytes: self.kv_budget_bytes,
                    decoding: self.decoding,
                    prefilling: self.prefilling.len(),
                    serial: self.serial,
                    projection: (0..rows)
                        .fold(Projection::default(), |rows, _| rows.with(ROW_BYTES)),
                },
                chunks: Chunks { alone_tokens: self.chunk_tokens, beside_tokens, call_tokens },
                tail_split: self.tail_split,
                prefilling: (self.prefilling.iter().enumerate())
                    .map(|(index, left)| self.candidate(index, Continuous, *left))
                    .collect(),
                waiting: (self.waiting.iter().enumerate())
                    .map(|(index, (lane, left))| {
                        self.candidate(first_waiting + index, *lane, *left)
                    })
                    .collect(),
            }
        }
    }

    /// Rows are numbered as written: prefilling ones first, then waiting ones. `s` starts a row, `r` restores,
    /// `p` prefills, `f` runs the last token, or as many as stand after it; so does `v`, for a vector.
    #[track_caller]
    fn check(case: &Case, expected: &str) {
        let moves: Vec<String> = (plan(case.view(), |left| left).iter())
            .map(|step| match step {
                Move::Start { row } => format!("s{}", row.0),
                Move::Restore { row } => format!("r{}", row.0),
                Move::Prefill { row, tokens } => format!("p{}:{tokens}", row.0),
                Move::FirstToken { row, tokens: 1 } => format!("f{}", row.0),
                Move::FirstToken { row, tokens } => format!("f{}:{tokens}", row.0),
                Move::Vector { row, tokens } => format!("v{}:{tokens}", row.0),
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
    fn what_a_cache_has_of_a_prompt_is_not_run() {
        let waiting = &[(Continuous, 25), (Continuous, 4)];
        let view = || Case { waiting, ..EMPTY }.view();
        let left = |left_tokens: usize| move |all: usize| all.min(left_tokens);
        let row = |number| RowNumber(number);
        let whole = [
            Move::Start { row: row(0) },
            Move::Prefill { row: row(0), tokens: 4 },
            Move::FirstToken { row: row(0), tokens: 1 },
            Move::Start { row: row(1) },
            Move::Prefill { row: row(1), tokens: 3 },
            Move::FirstToken { row: row(1), tokens: 1 },
        ];
        assert_eq!(plan(view(), left(5)), whole);
        assert_eq!(plan(view(), left(1))[1], Move::FirstToken { row: row(0), tokens: 1 });
    }

    #[test]
    fn a_slice_ends_at_a_boundary_and_the_rest_waits_for_the_next_tick() {
        for (boundary_tokens, tail_split, expected) in
            [(Some(3), true, 3), (Some(30), true, 10), (None, true, 7), (Some(3), false, 3)]
        {
            let mut view = Case { prefilling: &[8], tail_split, ..EMPTY }.view();
            view.prefilling[0].boundary_tokens = boundary_tokens;
            view.prefilling[0].left_tokens = if expected == 10 { 40 } else { 8 };
            let step = Move::Prefill { row: RowNumber(0), tokens: expected };
            assert_eq!(plan(view, |left| left)[0], step, "{boundary_tokens:?}");
        }
    }

    #[test]
    fn a_row_that_restores_takes_the_place_of_a_chunk() {
        let case = Case { prefill_rows_max: 2, restoring: &[0], ..EMPTY };
        check(&Case { prefilling: &[300], waiting: &[(Continuous, 2)], ..case }, "r0 s1");
        check(&Case { prefilling: &[300, 4], decoding: 3, ..case }, "r0");
        let behind = Case { restoring: &[1], ..case };
        check(&Case { prefilling: &[4, 300], ..behind }, "p0:3 f0");
        check(&Case { waiting: &[(Continuous, 300)], restoring: &[0], ..EMPTY }, "s0 r0");
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
    fn without_the_tail_split_the_last_token_ends_the_last_slice() {
        let case = Case { tail_split: false, ..EMPTY };
        check(&Case { waiting: &[(Continuous, 1)], ..case }, "s0 f0");
        check(&Case { waiting: &[(Continuous, 10)], ..case }, "s0 f0:10");
        check(&Case { waiting: &[(Continuous, 11)], ..case }, "s0 p0:10");
        check(&Case { waiting: &[(Continuous, 4), (Continuous, 7)], ..case }, "s0 f0:4 s1");
        check(&Case { waiting: &[(Continuous, 4), (Continuous, 6)], ..case }, "s0 f0:4 s1 f1:6");
    }

    #[test]
    fn a_text_for_a_vector_runs_in_whole_chunks_and_changes_nothing_for_those_behind_it() {
        let case = Case { vectors: &[0, 1], paced: Some((4, 1)), ..EMPTY };
        check(&Case { waiting: &[(Continuous, 1)], ..case }, "s0 v0:1");
        check(&Case { waiting: &[(Continuous, 10)], ..case }, "s0 v0:10");
        check(&Case { waiting: &[(Continuous, 11)], ..case }, "s0 p0:10");
        check(&Case { prefilling: &[25], ..case }, "p0:10");
        let three = &[(Continuous, 2), (Continuous, 3), (Continuous, 9)];
        check(&Case { waiting: three, ..case }, "s0 v0:2 s1 v1:3 s2");
        let answer_behind = &[(Continuous, 2), (Continuous, 2), (Continuous, 6)];
        check(&Case { waiting: answer_behind, ..case }, "s0 v0:2 s1 v1:2 s2 p2:5 f2");
        check(&Case { waiting: three, decoding: 1, ..case }, "s0 v0:2 s1");
    }

    #[test]
    fn what_a_vectors_row_held_counts_until_the_next_tick() {
        let case = Case { vectors: &[0, 1], kv_budget_bytes: Some(ROW_BYTES), ..EMPTY };
        check(&Case { waiting: &[(Continuous, 2), (Continuous, 2)], ..case }, "s0 v0:2");
        check(
            &Case { waiting: &[(Serial, 2), (Continuous, 2)], vectors: &[0, 1], ..EMPTY },
            "s0 v0:2",
        );
    }

    #[test]
    fn a_paced_chunk_is_small_beside_decoding_rows_and_whole_alone() {
        let case = Case { paced: Some((4, 1)), ..EMPTY };
        check(&Case { prefilling: &[35], decoding: 2, ..case }, "p0:4");
        check(&Case { prefilling: &[35], ..case }, "p0:10");
        check(&Case { prefilling: &[5], decoding: 1, ..case }, "p0:4");
    }

    #[test]
    fn a_row_that_joins_waits_for_a_paced_chunk_at_most() {
        let case = Case { paced: Some((4, 1)), ..EMPTY };
        check(&Case { waiting: &[(Continuous, 2), (Continuous, 9)], ..case }, "s0 p0:1 f0 s1 p1:4");
        check(&Case { waiting: &[(Continuous, 9), (Continuous, 9)], ..case }, "s0 p0:8 f0 s1");
    }

    #[test]
    fn a_paced_call_costs_the_tokens_that_run_in_its_time() {
        let case = Case { decoding: 1, prefill_rows_max: 4, ..EMPTY };
        let waiting = &[(Continuous, 2), (Continuous, 2), (Continuous, 2)];
        check(&Case { waiting, paced: Some((8, 4)), ..case }, "s0 p0:1 f0 s1 s2");
        check(&Case { waiting, paced: Some((8, 2)), ..case }, "s0 p0:1 f0 s1 p1:1 f1 s2");
        check(&Case { prefilling: &[1, 1], paced: Some((2, 9)), ..case }, "f0");
    }

    #[test]
    fn a_row_waits_for_the_bytes_it_needs_and_holds_the_queue() {
        let waiting = &[(Continuous, 2), (Continuous, 2)];
        let budget = |rows: u64| Some(rows * ROW_BYTES);
        check(&Case { decoding: 2, kv_budget_bytes: budget(2), waiting, ..EMPTY }, "");
        check(&Case { decoding: 2, kv_budget_bytes: budget(3), waiting, ..EMPTY }, "s0 p0:1 f0");
        check(
            &Case { decoding: 2, kv_budget_bytes: budget(4), waiting, ..EMPTY },
            "s0 p0:1 f0 s1 p1:1 f1",
        );
        let prefilling = &[35];
        check(&Case { prefilling, kv_budget_bytes: budget(1), waiting, ..EMPTY }, "p0:10");
    }

    #[test]
    fn every_row_of_a_projection_counts_as_the_largest() {
        let bytes = |rows: &[u64]| {
            rows.iter().fold(Projection::default(), |rows, row| rows.with(*row)).bytes()
        };
        for (rows, expected) in
            [(&[][..], 0), (&[5], 5), (&[5, 3], 10), (&[3, 5], 10), (&[u64::MAX, 1], u64::MAX)]
        {
            assert_eq!(bytes(rows), expected, "{rows:?}");
        }
    }

    #[test]
    fn what_a_row_needs_is_what_it_adds_with_the_padding_of_the_others() {
        let projection = Projection::default().with(10).with(20);
        let occupancy = Occupancy { projection, ..Occupancy::empty(&SchedulerConfig::default()) };
        for (budget_bytes, kv_bytes, expected) in [
            (60, 20, None),
            (59, 20, Some((20, 19))),
            (60, 5, None),
            (90, 30, None),
            (89, 30, Some((50, 49))),
        ] {
            let occupancy = Occupancy { kv_budget_bytes: Some(budget_bytes), ..occupancy };
            let row = Candidate { kv_bytes, ..candidate(9, Continuous, 1) };
            let expected = expected.map(|(needs_bytes, free_bytes)| Hold::KvBudget {
                needs_bytes,
                free_bytes,
                budget_bytes,
            });
            assert_eq!(occupancy.hold(&row), expected, "{kv_bytes} of {budget_bytes}");
        }
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
        let waiting = view.waiting.iter().copied();
        assert_eq!(waiting_reasons(&view.occupancy, waiting), expected);
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
        let kv_budget_bytes = Some(3 * ROW_BYTES - 700_000);
        check_reasons(
            &Case { decoding: 2, kv_budget_bytes, waiting: two, ..EMPTY },
            &["KV budget: needs 1.0 MB, 300.0 kB of 2.3 MB free", "requests ahead: 1"],
        );
    }
}

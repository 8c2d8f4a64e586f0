//! What a stream tells while its answer is silent: that it lives, and how far it is.
//!
//! *Progress* comes as comments, which clients of server-sent events skip, whenever it has changed:
//!
//! ```text
//! : slipstream {"state":"queued","place":2,"reason":"the batch is full"}
//! : slipstream {"state":"restoring"}
//! : slipstream {"state":"prefilling","done":4096,"total":100000,"cached":0}
//! ```
//!
//! After a longer silence a *sign of life* follows: a comment, or an event that adds nothing, for clients
//! that count events alone.

use std::time::Duration;

use serde::Serialize;

use crate::clock::Time;
use crate::config::KeepAlive;
use crate::limits;
use crate::telemetry::{RowSnapshot, Snapshot};

const PROGRESS_PERIOD: Duration = Duration::from_millis(limits::PROGRESS_PERIOD_MS);
const SILENCE_MAX: Duration = Duration::from_millis(limits::SILENCE_MS_MAX);

/// When a stream speaks for itself, and what it says.
#[derive(Debug)]
pub(super) struct Pulse {
    signs: Signs,
    /// When to look for progress; `None` once the answer has begun.
    look_at: Option<Time>,
    /// When the silence is too long.
    sign_at: Time,
    told: Option<Progress>,
}

/// What a sign of life is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signs {
    None,
    Comments,
    Events,
}

/// What a stream says for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Beat {
    /// Nothing has changed.
    Rest,
    /// A comment.
    Comment(String),
    /// An event that adds nothing.
    Idle,
}

/// How far a row is that has said nothing yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
enum Progress {
    Queued { place: usize, reason: Option<String> },
    Restoring,
    Prefilling { done: usize, total: usize, cached: usize },
}

impl Pulse {
    /// The pulse of a stream that begins `now`, as `keep_alive` says; by itself it sends events where
    /// `counts_events` says that clients need them.
    pub(super) fn new(keep_alive: KeepAlive, counts_events: bool, now: Time) -> Self {
        let signs = match keep_alive {
            KeepAlive::Off => Signs::None,
            KeepAlive::Comment => Signs::Comments,
            KeepAlive::Delta => Signs::Events,
            KeepAlive::Auto if counts_events => Signs::Events,
            KeepAlive::Auto => Signs::Comments,
        };
        Self {
            signs,
            look_at: (signs != Signs::None).then_some(now + PROGRESS_PERIOD),
            sign_at: if signs == Signs::None { Time::MAX } else { now + SILENCE_MAX },
            told: None,
        }
    }

    /// When it has something to do next.
    pub(super) fn due(&self) -> Time {
        self.look_at.map_or(self.sign_at, |look_at| look_at.min(self.sign_at))
    }

    /// Notes that the answer went on at `now`.
    pub(super) fn note_answer(&mut self, now: Time) {
        self.look_at = None;
        self.end_silence(now);
    }

    fn end_silence(&mut self, now: Time) {
        if self.signs != Signs::None {
            self.sign_at = now + SILENCE_MAX;
        }
    }

    /// What to say at `now`, when the engine looks like `snapshot` and the stream is that of the row `id`.
    pub(super) fn beat(&mut self, now: Time, snapshot: &Snapshot, id: &str) -> Beat {
        if self.look_at.is_some_and(|look_at| look_at <= now) {
            self.look_at = Some(now + PROGRESS_PERIOD);
            let row = snapshot.rows.iter().find(|row| row.id == id);
            let progress = row.and_then(Progress::of);
            if progress.is_some() && progress != self.told {
                self.told = progress;
                if self.signs == Signs::Comments {
                    self.end_silence(now);
                }
                return self.progress_comment();
            }
        }
        if now < self.sign_at {
            return Beat::Rest;
        }
        self.end_silence(now);
        match self.signs {
            Signs::None => Beat::Rest,
            Signs::Comments => Beat::Comment("slipstream".to_owned()),
            Signs::Events => Beat::Idle,
        }
    }

    fn progress_comment(&self) -> Beat {
        let progress = serde_json::to_string(&self.told);
        let progress = progress.expect("progress has string keys and cannot fail to serialize");
        Beat::Comment(format!("slipstream {progress}"))
    }
}

impl Progress {
    fn of(row: &RowSnapshot) -> Option<Self> {
        match row.state {
            "waiting" => Some(Self::Queued {
                place: row.queue_place.unwrap_or(1),
                reason: row.waiting_reason.clone(),
            }),
            "restoring" => Some(Self::Restoring),
            "prefilling" => Some(Self::Prefilling {
                done: row.prefilled_tokens,
                total: row.prompt_tokens,
                cached: row.cached_tokens,
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn row(state: &'static str, place: Option<usize>, done: usize) -> Snapshot {
        let row = RowSnapshot {
            id: "row".to_owned(),
            client: "test".into(),
            state,
            lane: "continuous",
            lane_reasons: [].into(),
            priority: "interactive",
            prompt_tokens: 900,
            cached_tokens: 100,
            prefilled_tokens: done,
            generated_tokens: 0,
            max_tokens: 9,
            tokens_per_second_now: 0.0,
            tokens_per_second_mean: 0.0,
            kv_bytes: 0,
            kv_projected_bytes: 0,
            waiting_reason: place.map(|_| "the batch is full".to_owned()),
            queue_place: place,
            queue_ms: 0.0,
            prefill_ms: 0.0,
            decode_ms: 0.0,
            age_ms: 0,
        };
        Snapshot { rows: vec![row], ..Snapshot::default() }
    }

    /// What a pulse says from beat to beat until `end`, with the milliseconds.
    fn beats(mut pulse: Pulse, end: Time, look: impl Fn(u128) -> Snapshot) -> Vec<(u128, Beat)> {
        let mut said = Vec::new();
        while pulse.due() <= end {
            let now = pulse.due();
            match pulse.beat(now, &look(now.as_millis()), "row") {
                Beat::Rest => {}
                beat => said.push((now.as_millis(), beat)),
            }
        }
        said
    }

    fn comment(text: &str) -> Beat {
        Beat::Comment(text.to_owned())
    }

    #[test]
    fn progress_is_told_when_it_has_changed_and_life_is_shown_after_a_silence() {
        let pulse = Pulse::new(KeepAlive::Auto, false, Time::ZERO);
        let said = beats(pulse, 17_000 * MS, |now| match now {
            0..2_000 => row("waiting", Some(2), 0),
            2_000..4_000 => row("waiting", Some(1), 0),
            4_000..6_000 => row("restoring", None, 0),
            _ => row("prefilling", None, 256),
        });
        let queued = |place: usize| {
            let reason = "the batch is full";
            comment(&format!(
                "slipstream {{\"state\":\"queued\",\"place\":{place},\"reason\":\"{reason}\"}}"
            ))
        };
        let restores = comment(r#"slipstream {"state":"restoring"}"#);
        let read = r#"slipstream {"state":"prefilling","done":256,"total":900,"cached":100}"#;
        let alive = comment("slipstream");
        assert_eq!(
            said,
            [
                (1_000, queued(2)),
                (2_000, queued(1)),
                (4_000, restores),
                (6_000, comment(read)),
                (16_000, alive)
            ]
        );
    }

    #[test]
    fn a_client_that_counts_events_gets_them_whatever_comments_it_had() {
        for (keep_alive, counts_events) in [(KeepAlive::Auto, true), (KeepAlive::Delta, false)] {
            let pulse = Pulse::new(keep_alive, counts_events, Time::ZERO);
            let said =
                beats(pulse, 20_000 * MS, |now| row("prefilling", None, now as usize / 5_000));
            let idle: Vec<u128> =
                said.iter().filter(|(_, beat)| *beat == Beat::Idle).map(|(at, _)| *at).collect();
            assert_eq!(idle, [10_000, 20_000]);
            assert_eq!(said.len() - idle.len(), 5, "{said:?}");
        }
    }

    #[test]
    fn an_answer_that_has_begun_tells_no_progress_and_each_part_ends_the_silence() {
        let mut pulse = Pulse::new(KeepAlive::Comment, true, Time::ZERO);
        pulse.note_answer(3_000 * MS);
        assert_eq!(pulse.due(), 13_000 * MS);
        assert_eq!(pulse.beat(12_000 * MS, &row("prefilling", None, 5), "row"), Beat::Rest);
        assert_eq!(
            pulse.beat(13_000 * MS, &row("decoding", None, 5), "row"),
            comment("slipstream")
        );
        assert_eq!(pulse.due(), 23_000 * MS);
    }

    #[test]
    fn what_is_off_says_nothing_ever() {
        let mut pulse = Pulse::new(KeepAlive::Off, true, Time::ZERO);
        pulse.note_answer(MS);
        assert_eq!(pulse.due(), Time::MAX);
    }
}

//! How often something that failed is tried again, and after how long. Decides only; nothing here waits.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};

use crate::clock;
use crate::error::Error;
use crate::limits;

/// What failed attempts may come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Attempts in a row that may fail without any progress.
    pub attempts_max: u32,
    /// The pause before the second attempt; it doubles with each.
    pub pause: Duration,
    /// The longest pause that we choose.
    pub pause_max: Duration,
    /// The longest pause that a server may ask for.
    pub asked_pause_max: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            attempts_max: limits::HUB_ATTEMPTS_MAX,
            pause: Duration::from_millis(limits::HUB_PAUSE_MS),
            pause_max: Duration::from_millis(limits::HUB_PAUSE_MS_MAX),
            asked_pause_max: Duration::from_millis(limits::HUB_ASKED_PAUSE_MS_MAX),
        }
    }
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It may go better later, and the server may have said when.
    Passing {
        /// What to tell when it never does.
        error: Error,
        /// The pause that the server asked for.
        asked: Option<Duration>,
    },
    /// It would fail again.
    Lasting(Error),
}

impl Trouble {
    /// Trouble that may pass, of which the server said nothing more.
    pub(crate) fn passing(error: Error) -> Self {
        Self::Passing { error, asked: None }
    }
}

/// The failed attempts of one undertaking.
#[derive(Debug)]
pub(crate) struct Attempts {
    patience: Patience,
    failed: u32,
}

impl Attempts {
    pub(crate) fn new(patience: Patience) -> Self {
        Self { patience, failed: 0 }
    }

    /// Something was achieved: what failed before is forgiven.
    pub(crate) fn progressed(&mut self) {
        self.failed = 0;
    }

    /// The pause before the next attempt after `trouble`, or the error that ends it all. `chance`, from 0 to 1, cuts
    /// the pauses that we choose by up to a half, so that clients who failed together do not come back together.
    pub(crate) fn after(&mut self, trouble: Trouble, chance: f64) -> Result<Duration, Error> {
        let (error, asked) = match trouble {
            Trouble::Lasting(error) => return Err(error),
            Trouble::Passing { error, asked } => (error, asked),
        };
        self.failed += 1;
        if self.failed >= self.patience.attempts_max {
            return Err(error.while_doing(format_args!("gave up after {} attempts", self.failed)));
        }
        let doubled = self.patience.pause.saturating_mul(1 << (self.failed - 1).min(20));
        let own = doubled.min(self.patience.pause_max).mul_f64(1.0 - chance / 2.0);
        match asked {
            Some(asked) if asked > self.patience.asked_pause_max => {
                let hint = format!("the server asks to wait {} s; try again then", asked.as_secs());
                Err(error.with_hint(hint))
            }
            Some(asked) => Ok(asked.max(own)),
            None => Ok(own),
        }
    }
}

/// Whether a request that was answered so may be answered otherwise later.
pub(super) fn is_passing(status: StatusCode) -> bool {
    matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
        || status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
}

/// The pause that an answer asks for (RFC 9110, section 10.2.3): seconds, or a date.
pub(super) fn asked_pause(headers: &HeaderMap) -> Option<Duration> {
    pause_of(headers.get(RETRY_AFTER)?.to_str().ok()?, clock::unix_seconds())
}

fn pause_of(text: &str, now_unix_seconds: u64) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date: SystemTime = httpdate::parse_http_date(text.trim()).ok()?;
    let date_seconds = date.duration_since(UNIX_EPOCH).ok()?.as_secs();
    Some(Duration::from_secs(date_seconds.saturating_sub(now_unix_seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    fn error() -> Error {
        Error::new(Code::HubUnreachable, "it failed")
    }

    #[test]
    fn pauses_double_up_to_their_bound_and_attempts_end() {
        let mut attempts = Attempts::new(Patience::default());
        let pauses: Vec<_> =
            std::iter::from_fn(|| attempts.after(Trouble::passing(error()), 0.0).ok()).collect();
        let expected = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000].map(Duration::from_millis);
        assert_eq!(pauses, expected);
        attempts.progressed();
        assert_eq!(attempts.after(Trouble::passing(error()), 1.0), Ok(Duration::from_millis(250)));
    }

    #[test]
    fn a_server_may_ask_for_more_time_but_not_for_any() {
        let mut attempts = Attempts::new(Patience::default());
        let mut asked = |seconds| {
            let asked = Some(Duration::from_secs(seconds));
            attempts.after(Trouble::Passing { error: error(), asked }, 0.0)
        };
        assert_eq!(asked(7), Ok(Duration::from_secs(7)));
        assert_eq!(asked(0), Ok(Duration::from_secs(1)));
        assert!(asked(3_600).unwrap_err().hint().unwrap().contains("3600 s"));
    }

    #[test]
    fn lasting_trouble_is_told_at_once() {
        let mut attempts = Attempts::new(Patience::default());
        assert_eq!(attempts.after(Trouble::Lasting(error()), 0.0), Err(error()));
    }

    #[test]
    fn the_asked_pause_is_read_as_seconds_and_as_a_date() {
        assert_eq!(pause_of("12", 0), Some(Duration::from_secs(12)));
        let date = "Thu, 01 Jan 1970 00:01:40 GMT";
        assert_eq!(pause_of(date, 40), Some(Duration::from_secs(60)));
        assert_eq!(pause_of(date, 400), Some(Duration::ZERO));
        for text in ["", "soon", "-1", "1.5"] {
            assert_eq!(pause_of(text, 0), None, "{text}");
        }
    }
}

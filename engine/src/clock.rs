//! The only place that reads the time.
//!
//! Everything that needs a time takes a [`Clock`], so that a simulation can replay a run from its
//! seed. Times are durations since the clock was made: they only ever grow.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

/// A time since the clock's origin.
pub type Time = Duration;

/// A clock that all its clones share.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    Monotonic { origin: Instant },
    Manual { micros: Arc<watch::Sender<u64>> },
}

impl Clock {
    /// The machine's monotonic clock, starting at zero now.
    #[allow(clippy::disallowed_methods)]
    pub fn monotonic() -> Self {
        Self(Source::Monotonic { origin: Instant::now() })
    }

    /// A clock that stands still until [`Clock::advance`] moves it.
    pub fn manual() -> Self {
        Self(Source::Manual { micros: Arc::default() })
    }

    /// The time since the origin.
    pub fn now(&self) -> Time {
        match &self.0 {
            Source::Monotonic { origin } => origin.elapsed(),
            Source::Manual { micros } => Duration::from_micros(*micros.borrow()),
        }
    }

    /// The time since the Unix epoch, for what outlives the process. A manual clock counts as if it had
    /// been made at the epoch; the machine's may be set, so this can go back.
    #[allow(clippy::disallowed_methods)]
    pub fn unix_time(&self) -> Duration {
        match &self.0 {
            Source::Monotonic { .. } => {
                SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
            }
            Source::Manual { .. } => self.now(),
        }
    }

    /// Moves a manual clock forward; a monotonic clock ignores it.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual { micros } = &self.0 {
            let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
            micros.send_modify(|micros| *micros = micros.saturating_add(by));
        }
    }

    /// Resolves at `time`, or at once when that has passed. On a manual clock it waits for
    /// [`Clock::advance`]; on a monotonic one it needs a tokio runtime with timers.
    pub async fn sleep_until(&self, time: Time) {
        match &self.0 {
            Source::Monotonic { .. } => tokio::time::sleep(time.saturating_sub(self.now())).await,
            Source::Manual { micros } => {
                let reached = |micros: &u64| Duration::from_micros(*micros) >= time;
                // The sender lives in this clock, so the wait cannot fail.
                let _ = micros.subscribe().wait_for(reached).await;
            }
        }
    }
}

/// This instant, for interfaces that count from one.
#[allow(clippy::disallowed_methods)]
pub fn instant() -> Instant {
    Instant::now()
}

/// How long this thread has kept a processor busy. Unlike the time that passes, it leaves out where
/// the thread waited, and what others took of the machine meanwhile.
pub fn thread_busy() -> Duration {
    let busy = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(busy).unwrap_or_default()
}

/// How long all threads of this process together have kept processors busy.
pub fn process_busy() -> Duration {
    let busy = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(busy).unwrap_or_default()
}

/// Seconds since the Unix epoch, for the `created` fields of the APIs.
#[allow(clippy::disallowed_methods)]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_advanced_and_its_clones_agree() {
        let clock = Clock::manual();
        let twin = clock.clone();
        assert_eq!(clock.now(), Duration::ZERO);
        clock.advance(Duration::from_millis(7));
        assert_eq!(twin.now(), Duration::from_millis(7));
    }

    #[tokio::test]
    async fn a_sleeper_on_a_manual_clock_wakes_when_its_time_has_come_and_not_before() {
        let clock = Clock::manual();
        let mut sleeper = std::pin::pin!(clock.sleep_until(Duration::from_millis(5)));
        assert!(sleeper.as_mut().now_or_never().is_none());
        clock.advance(Duration::from_millis(4));
        assert!(sleeper.as_mut().now_or_never().is_none());
        clock.advance(Duration::from_millis(1));
        assert!(sleeper.as_mut().now_or_never().is_some());
        assert!(clock.sleep_until(Duration::ZERO).now_or_never().is_some());
    }
}

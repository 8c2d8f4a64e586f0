//! The bandwidth that all files share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{Clock, Time};

/// How far ahead of its bandwidth a transfer may be after a pause: this much of a second.
const BURST: Duration = Duration::from_millis(100);

/// Holds transfers to so many bytes per second together.
#[derive(Debug)]
pub(crate) struct Limiter {
    clock: Clock,
    /// 0 is no bound.
    bytes_per_second: AtomicU64,
    /// When all that was taken so far has had its time.
    paid: Mutex<Time>,
}

impl Limiter {
    /// No bound without `bytes_per_second`; 0 counts as 1.
    pub(crate) fn new(clock: Clock, bytes_per_second: Option<u64>) -> Self {
        let limiter = Self { clock, bytes_per_second: AtomicU64::new(0), paid: Mutex::default() };
        limiter.set(bytes_per_second);
        limiter
    }

    /// Holds them to another bandwidth from now on.
    pub(crate) fn set(&self, bytes_per_second: Option<u64>) {
        let bytes = bytes_per_second.map_or(0, |bytes| bytes.max(1));
        self.bytes_per_second.store(bytes, Ordering::Relaxed);
    }

    /// The bandwidth that there is.
    pub(crate) fn bytes_per_second(&self) -> Option<u64> {
        Some(self.bytes_per_second.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// Waits until `bytes` that have arrived may be followed by others.
    pub(crate) async fn take(&self, bytes: usize) {
        let Some(bytes_per_second) = self.bytes_per_second() else {
            return;
        };
        let until = {
            let mut paid = self.paid.lock();
            *paid = pay(*paid, self.clock.now(), bytes, bytes_per_second);
            *paid
        };
        self.clock.sleep_until(until).await;
    }
}

/// When `bytes` taken at `now` have had their time, after everything up to `paid`.
fn pay(paid: Time, now: Time, bytes: usize, bytes_per_second: u64) -> Time {
    let cost = Duration::from_secs_f64(bytes as f64 / bytes_per_second as f64);
    paid.max(now.saturating_sub(BURST)).saturating_add(cost)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn whatever_is_taken_by_whom_has_its_time() {
        let mut paid = Duration::ZERO;
        let mut taken = 0;
        for index in 0..1_000u64 {
            let bytes = (index * 7_919 % 65_536) as usize;
            paid = pay(paid, paid, bytes, 1_000_000);
            taken += bytes;
        }
        let due = Duration::from_secs_f64(taken as f64 / 1e6);
        assert!(paid.abs_diff(due) <= BURST + Duration::from_millis(1), "{paid:?} for {due:?}");
    }

    #[test]
    fn a_pause_is_made_up_for_by_a_burst_and_no_more() {
        let hour = Duration::from_secs(3_600);
        assert_eq!(pay(Duration::ZERO, hour, 1_000, 1_000), hour - BURST + Duration::from_secs(1));
    }

    #[tokio::test]
    async fn takers_wait_for_the_clock_and_share_one_bandwidth() {
        let clock = Clock::manual();
        let limiter = Arc::new(Limiter::new(clock.clone(), Some(1_000)));
        let mut first = std::pin::pin!(limiter.take(1_000));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = std::pin::pin!(limiter.take(500));
        assert!(second.as_mut().now_or_never().is_none());
        clock.advance(Duration::from_millis(1_000));
        assert!(first.as_mut().now_or_never().is_some());
        assert!(second.as_mut().now_or_never().is_none());
        clock.advance(Duration::from_millis(500));
        assert!(second.as_mut().now_or_never().is_some());
        let unbounded = Limiter::new(clock, None);
        assert!(unbounded.take(usize::MAX).now_or_never().is_some());
    }
}

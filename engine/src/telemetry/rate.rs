//! Events per second over a short window.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Time;

const WINDOW: Duration = Duration::from_secs(2);
const EVENTS_MAX: usize = 512;

/// How often something happened in the last two seconds, in bounded memory.
#[derive(Debug, Clone, Default)]
pub struct RateWindow {
    events: VecDeque<Time>,
}

impl RateWindow {
    /// Notes one event at `now`.
    pub fn record(&mut self, now: Time) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(now);
    }

    /// Events per second between the oldest event of the window and `now`; 0 with fewer than two.
    pub fn per_second(&self, now: Time) -> f64 {
        let recent = self.events.iter().filter(|event| now.saturating_sub(**event) <= WINDOW);
        let count = recent.clone().count();
        let Some(oldest) = recent.min() else {
            return 0.0;
        };
        let seconds = now.saturating_sub(*oldest).as_secs_f64();
        if count < 2 || seconds <= 0.0 { 0.0 } else { (count - 1) as f64 / seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_stream_shows_its_rate_and_an_old_one_shows_zero() {
        let mut window = RateWindow::default();
        for index in 0..=20u64 {
            window.record(Duration::from_millis(100 * index));
        }
        let rate = window.per_second(Duration::from_secs(2));
        assert!((rate - 10.0).abs() < 1e-9, "{rate}");
        assert_eq!(window.per_second(Duration::from_secs(60)), 0.0);
    }
}

//! What decode steps cost the host, and how far apart they are.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limits::STEP_TIMES_MAX;

/// Times of the last decode steps.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepTimes {
    /// How many steps the figures are of.
    pub steps: usize,
    /// Milliseconds that the host spent on a step: building it, sampling and emitting, without the wait
    /// for the device. Half of the steps took no longer. On a processor MLX computes in part while the
    /// step is still being dispatched, and that counts here.
    pub host_ms_p50: f64,
    /// The same for 99 of 100 steps.
    pub host_ms_p99: f64,
    /// The part of the host's milliseconds in which the step was built, sampled and emitted: without
    /// handing it to the device, which on a processor is mostly waiting for it. Half of the steps took
    /// no longer.
    pub build_ms_p50: f64,
    /// The same for 99 of 100 steps.
    pub build_ms_p99: f64,
    /// Milliseconds between the tokens of two steps, as a row that runs through both sees it. Half of
    /// the gaps were no longer.
    pub gap_ms_p50: f64,
    /// The same for 99 of 100 gaps.
    pub gap_ms_p99: f64,
}

/// The times of the last [`STEP_TIMES_MAX`] steps.
#[derive(Debug, Clone, Default)]
pub struct StepWindow {
    host: Window,
    build: Window,
    gap: Window,
}

impl StepWindow {
    /// Notes a step that kept the host busy for `host`, of which it handed the step to the device for
    /// `dispatching`.
    pub fn note_host(&mut self, host: Duration, dispatching: Duration) {
        self.host.push(host);
        self.build.push(host.saturating_sub(dispatching));
    }

    /// Notes that tokens came `gap` after the ones before them.
    pub fn note_gap(&mut self, gap: Duration) {
        self.gap.push(gap);
    }

    /// The figures of the window; zeros when it is empty.
    pub fn times(&self) -> StepTimes {
        let [host_ms_p50, host_ms_p99] = self.host.percentiles();
        let [build_ms_p50, build_ms_p99] = self.build.percentiles();
        let [gap_ms_p50, gap_ms_p99] = self.gap.percentiles();
        StepTimes {
            steps: self.host.recent.len(),
            host_ms_p50,
            host_ms_p99,
            build_ms_p50,
            build_ms_p99,
            gap_ms_p50,
            gap_ms_p99,
        }
    }
}

/// The last times twice: as they came, and sorted, so that reading a figure costs nothing.
#[derive(Debug, Clone, Default)]
struct Window {
    recent: VecDeque<Duration>,
    sorted: Vec<Duration>,
}

impl Window {
    fn push(&mut self, time: Duration) {
        if self.recent.len() == STEP_TIMES_MAX {
            let oldest = self.recent.pop_front();
            let index = oldest.and_then(|oldest| self.sorted.binary_search(&oldest).ok());
            self.sorted.remove(index.expect("both lists hold the same times"));
        }
        self.recent.push_back(time);
        let index = self.sorted.partition_point(|sorted| *sorted < time);
        self.sorted.insert(index, time);
    }

    /// The median and the 99th percentile by nearest rank, in milliseconds.
    fn percentiles(&self) -> [f64; 2] {
        [50, 99].map(|percent| {
            let rank = (self.sorted.len() * percent).div_ceil(100);
            let time = rank.checked_sub(1).map_or(Duration::ZERO, |index| self.sorted[index]);
            time.as_secs_f64() * 1e3
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn percentiles_are_times_that_were_seen() {
        let mut window = StepWindow::default();
        assert_eq!(window.times(), StepTimes::default());
        window.note_host(7 * MS, 4 * MS);
        let one = StepTimes {
            steps: 1,
            host_ms_p50: 7.0,
            host_ms_p99: 7.0,
            build_ms_p50: 3.0,
            build_ms_p99: 3.0,
            ..Default::default()
        };
        assert_eq!(window.times(), one);
        let mut window = StepWindow::default();
        for step in (1..=200).rev() {
            window.note_host(3 * step * MS, 2 * step * MS);
            window.note_gap(10 * step * MS);
        }
        let times = window.times();
        assert_eq!((times.host_ms_p50, times.host_ms_p99), (300.0, 594.0));
        assert_eq!((times.build_ms_p50, times.build_ms_p99), (100.0, 198.0));
        assert_eq!((times.gap_ms_p50, times.gap_ms_p99), (1000.0, 1980.0));
    }

    #[test]
    fn old_steps_are_forgotten() {
        let mut window = StepWindow::default();
        window.note_host(900 * MS, MS);
        window.note_gap(900 * MS);
        for _ in 0..STEP_TIMES_MAX {
            window.note_host(2 * MS, MS);
            window.note_gap(2 * MS);
        }
        let times = window.times();
        let worst = (times.host_ms_p99, times.build_ms_p99, times.gap_ms_p99);
        assert_eq!((times.steps, worst), (STEP_TIMES_MAX, (2.0, 1.0, 2.0)));
    }
}

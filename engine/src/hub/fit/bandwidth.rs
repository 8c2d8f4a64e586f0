//! How fast a memory is read: a table of chips by name, and a measurement for processors.

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use crate::clock::Clock;

/// How fast a memory is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bandwidth {
    /// Bytes per second, by all cores together.
    pub bytes_per_second: f64,
    /// Whether it was measured here, rather than published.
    pub measured: bool,
}

/// Chips with what their makers publish, in GB/s. The first whose words are all in a chip's name decides, so
/// the more particular come first. Where a chip is sold with several, the least: `docs/fit.md` has the sources.
const CHIPS: &[(&[&str], f64)] = &[
    (&["Apple M1 Ultra"], 800.0),
    (&["Apple M1 Max"], 400.0),
    (&["Apple M1 Pro"], 200.0),
    (&["Apple M1"], 68.0),
    (&["Apple M2 Ultra"], 800.0),
    (&["Apple M2 Max"], 400.0),
    (&["Apple M2 Pro"], 200.0),
    (&["Apple M2"], 100.0),
    (&["Apple M3 Ultra"], 819.0),
    (&["Apple M3 Max"], 300.0),
    (&["Apple M3 Pro"], 150.0),
    (&["Apple M3"], 100.0),
    (&["Apple M4 Max"], 410.0),
    (&["Apple M4 Pro"], 273.0),
    (&["Apple M4"], 120.0),
    (&["Apple M5 Max"], 460.0),
    (&["Apple M5 Pro"], 307.0),
    (&["Apple M5"], 153.0),
    (&["NVIDIA", "B200"], 8000.0),
    (&["NVIDIA", "H200"], 4800.0),
    (&["NVIDIA", "H100", "PCIe"], 2000.0),
    (&["NVIDIA", "H100"], 3350.0),
    (&["NVIDIA", "A100", "40GB"], 1555.0),
    (&["NVIDIA", "A100", "PCIe", "80GB"], 1935.0),
    (&["NVIDIA", "A100"], 2039.0),
    (&["NVIDIA", "L40S"], 864.0),
    (&["NVIDIA", "RTX PRO 6000"], 1792.0),
    (&["NVIDIA", "RTX 5090"], 1792.0),
    (&["NVIDIA", "RTX 4090"], 1008.0),
    (&["NVIDIA", "RTX 3090"], 936.0),
];

/// What is published of the chip called `name`.
pub fn chip_bandwidth(name: &str) -> Option<Bandwidth> {
    let is = |words: &[&str]| words.iter().all(|word| has_words(name, word));
    let found = CHIPS.iter().find(|(words, _)| is(words));
    found.map(|(_, gigabytes)| Bandwidth { bytes_per_second: gigabytes * 1e9, measured: false })
}

/// Whether `words` stand in `name` as whole words.
fn has_words(name: &str, words: &str) -> bool {
    let inside = |character: char| character.is_ascii_alphanumeric();
    name.match_indices(words).any(|(start, _)| {
        let (before, after) = (&name[..start], &name[start + words.len()..]);
        !before.ends_with(inside) && !after.starts_with(inside)
    })
}

/// Bytes that are read to measure: more than caches hold.
const PROBE_BYTES: usize = 256 << 20;
/// How often they are read; the fastest counts.
const PROBE_PASSES: usize = 4;

/// Reads memory with all cores for some tenths of a second.
pub fn probe_bandwidth(clock: &Clock) -> Bandwidth {
    let words = vec![1u64; PROBE_BYTES / size_of::<u64>()];
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let passes = (0..PROBE_PASSES).map(|_| {
        let started = clock.now();
        read_all(&words, cores);
        clock.now() - started
    });
    let fastest = passes.min().unwrap_or_default().max(Duration::from_micros(1));
    Bandwidth { bytes_per_second: PROBE_BYTES as f64 / fastest.as_secs_f64(), measured: true }
}

fn read_all(words: &[u64], cores: usize) {
    thread::scope(|scope| {
        for part in words.chunks(words.len().div_ceil(cores)) {
            scope.spawn(move || {
                black_box(black_box(part).iter().fold(0u64, |sum, word| sum ^ word))
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_are_known_by_whole_words_and_the_particular_before_the_general() {
        let known = |name| chip_bandwidth(name).map(|found| found.bytes_per_second / 1e9);
        for (name, expected) in [
            ("Apple M3 Max", Some(300.0)),
            ("Apple M1", Some(68.0)),
            ("Apple M10", None),
            ("NVIDIA H100 PCIe", Some(2000.0)),
            ("NVIDIA H100 80GB HBM3", Some(3350.0)),
            ("NVIDIA A100-SXM4-40GB", Some(1555.0)),
            ("NVIDIA A100-SXM4-80GB", Some(2039.0)),
            ("NVIDIA GeForce RTX 4090", Some(1008.0)),
            ("AMD EPYC", None),
        ] {
            assert_eq!(known(name), expected, "{name}");
        }
    }

    #[test]
    fn the_probe_reads_every_byte_and_measures_something() {
        let bandwidth = probe_bandwidth(&Clock::monotonic());
        assert!(bandwidth.measured && bandwidth.bytes_per_second > 1e6, "{bandwidth:?}");
    }
}

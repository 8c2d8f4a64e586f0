//! One row in the continuous lane against one in the serial lane.
//!
//! Both decode the same prompt on the same scheduler, in pairs whose order alternates, so that a machine
//! that grows slower or faster meanwhile favours neither. They must say the same tokens. Two ratios are
//! told: of tokens per second, everything in it, and of median steps, which others that use the machine
//! in bursts disturb less.

use serde_json::{Value, json};
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::scheduler::Lane;

use super::rig::{Heard, Rig};
use super::{Outcome, median};

/// The two lanes, one after the other.
#[derive(Debug, Clone, Copy)]
struct Pair {
    continuous: Speed,
    serial: Speed,
}

/// How fast one lane was.
#[derive(Debug, Clone, Copy)]
struct Speed {
    tokens_per_second: f64,
    step_seconds: f64,
}

/// What one lane did.
struct Run {
    tokens: Vec<u32>,
    speed: Speed,
}

/// Measures `repeats` pairs.
///
/// # Errors
/// When the lanes say different tokens.
pub(super) fn measure(rig: &mut Rig, repeats: usize, tokens: usize) -> Result<Outcome> {
    // The first run warms up memory and processor.
    let expected = run(rig, Lane::Serial, tokens)?.tokens;
    let mut pairs = Vec::new();
    for number in 0..repeats {
        let order = match number % 2 {
            0 => [Lane::Continuous, Lane::Serial],
            _ => [Lane::Serial, Lane::Continuous],
        };
        let first = run(rig, order[0], tokens)?;
        let second = run(rig, order[1], tokens)?;
        same_tokens(&expected, &first.tokens)?;
        same_tokens(&expected, &second.tokens)?;
        pairs.push(Pair::of(order[0], first.speed, second.speed));
    }
    Ok(Outcome { name: "lanes", json: as_json(&pairs), table: table(&pairs) })
}

/// Decodes one row; only steps count, the prompt does not.
fn run(rig: &mut Rig, lane: Lane, tokens: usize) -> Result<Run> {
    let mut receiver = rig.submit(0, lane, tokens);
    rig.tick_until_decoding(1)?;
    let mut ticks = Vec::new();
    while rig.scheduler.live_rows() > 0 {
        ticks.push(rig.tick());
    }
    let speed = Speed {
        tokens_per_second: (tokens - 1) as f64 / ticks.iter().sum::<f64>(),
        step_seconds: median(ticks),
    };
    Ok(Run { tokens: Heard::from(&mut receiver)?.tokens, speed })
}

fn same_tokens(left: &[u32], right: &[u32]) -> Result<()> {
    if left == right {
        return Ok(());
    }
    let same = left.iter().zip(right).take_while(|(left, right)| left == right).count();
    let message = format!("the lanes say different tokens from token {same} on");
    Err(Error::new(Code::Internal, message))
}

impl Pair {
    fn of(first_lane: Lane, first: Speed, second: Speed) -> Self {
        match first_lane {
            Lane::Continuous => Self { continuous: first, serial: second },
            Lane::Serial => Self { continuous: second, serial: first },
        }
    }

    fn ratio(self) -> f64 {
        self.continuous.tokens_per_second / self.serial.tokens_per_second
    }

    /// The same of median steps: above 1 the continuous lane is faster.
    fn step_ratio(self) -> f64 {
        self.serial.step_seconds / self.continuous.step_seconds
    }
}

fn as_json(pairs: &[Pair]) -> Value {
    json!({
        "pairs": pairs.len(),
        "continuous_tokens_per_second":
            median(pairs.iter().map(|pair| pair.continuous.tokens_per_second)),
        "serial_tokens_per_second":
            median(pairs.iter().map(|pair| pair.serial.tokens_per_second)),
        "ratio": median(pairs.iter().map(|pair| pair.ratio())),
        "step_ratio": median(pairs.iter().map(|pair| pair.step_ratio())),
        "ratios": pairs.iter().map(|pair| pair.ratio()).collect::<Vec<f64>>(),
    })
}

fn table(pairs: &[Pair]) -> String {
    let ratios = || pairs.iter().map(|pair| pair.ratio());
    let (least, most) = (ratios().fold(f64::NAN, f64::min), ratios().fold(f64::NAN, f64::max));
    format!(
        "one row, continuous {:.1} tok/s, serial {:.1} tok/s, ratio {:.3} ({least:.3} to {most:.3} \
         in {} pairs), of median steps {:.3}, same tokens",
        median(pairs.iter().map(|pair| pair.continuous.tokens_per_second)),
        median(pairs.iter().map(|pair| pair.serial.tokens_per_second)),
        median(ratios()),
        pairs.len(),
        median(pairs.iter().map(|pair| pair.step_ratio())),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_read_in_the_order_in_which_it_ran() {
        let speed = |tokens_per_second: f64| Speed {
            tokens_per_second,
            step_seconds: 1.0 / tokens_per_second,
        };
        let check = |lane, first, second, ratio| {
            let pair = Pair::of(lane, speed(first), speed(second));
            assert_eq!((pair.ratio(), pair.step_ratio()), (ratio, ratio));
        };
        check(Lane::Continuous, 4.0, 2.0, 2.0);
        check(Lane::Serial, 4.0, 2.0, 0.5);
    }

    #[test]
    fn tokens_that_differ_or_are_missing_are_found_where_they_begin() {
        assert!(same_tokens(&[1, 2], &[1, 2]).is_ok());
        for (right, from) in [(&[1, 3][..], 1), (&[1], 1), (&[1, 2, 3], 2), (&[], 0)] {
            let error = same_tokens(&[1, 2], right).unwrap_err();
            assert!(error.message().ends_with(&format!("from token {from} on")), "{error}");
        }
    }
}

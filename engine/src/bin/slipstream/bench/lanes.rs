//! One row in the continuous lane against one in the serial lane.
//!
//! Both decode the same prompt on the same scheduler, in pairs whose order alternates, so that a machine
//! that grows slower or faster meanwhile favours neither. They must say the same tokens.

use serde_json::{Value, json};
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::scheduler::Lane;

use super::rig::{Heard, Rig};
use super::{Outcome, median};

/// Tokens per second of the two lanes, one after the other.
#[derive(Debug, Clone, Copy)]
struct Pair {
    continuous: f64,
    serial: f64,
}

/// What one lane did.
struct Run {
    tokens: Vec<u32>,
    tokens_per_second: f64,
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
        pairs.push(Pair::of(order[0], first.tokens_per_second, second.tokens_per_second));
    }
    Ok(Outcome { name: "lanes", json: as_json(&pairs), table: table(&pairs) })
}

/// Decodes one row; only steps count, the prompt does not.
fn run(rig: &mut Rig, lane: Lane, tokens: usize) -> Result<Run> {
    let mut receiver = rig.submit(0, lane, tokens);
    rig.tick_until_decoding(1)?;
    let began = rig.clock.now();
    rig.tick_until_idle();
    let seconds = (rig.clock.now() - began).as_secs_f64();
    let heard = Heard::from(&mut receiver)?;
    Ok(Run { tokens: heard.tokens, tokens_per_second: (tokens - 1) as f64 / seconds })
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
    fn of(first_lane: Lane, first: f64, second: f64) -> Self {
        match first_lane {
            Lane::Continuous => Self { continuous: first, serial: second },
            Lane::Serial => Self { continuous: second, serial: first },
        }
    }

    fn ratio(self) -> f64 {
        self.continuous / self.serial
    }
}

fn as_json(pairs: &[Pair]) -> Value {
    json!({
        "pairs": pairs.len(),
        "continuous_tokens_per_second": median(pairs.iter().map(|pair| pair.continuous)),
        "serial_tokens_per_second": median(pairs.iter().map(|pair| pair.serial)),
        "ratio": median(pairs.iter().map(|pair| pair.ratio())),
        "ratios": pairs.iter().map(|pair| pair.ratio()).collect::<Vec<f64>>(),
    })
}

fn table(pairs: &[Pair]) -> String {
    let ratios = || pairs.iter().map(|pair| pair.ratio());
    let (least, most) = (ratios().fold(f64::NAN, f64::min), ratios().fold(f64::NAN, f64::max));
    format!(
        "one row, continuous {:.1} tok/s, serial {:.1} tok/s, ratio {:.3} ({least:.3} to {most:.3} \
         in {} pairs), same tokens",
        median(pairs.iter().map(|pair| pair.continuous)),
        median(pairs.iter().map(|pair| pair.serial)),
        median(ratios()),
        pairs.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_read_in_the_order_in_which_it_ran() {
        assert_eq!(Pair::of(Lane::Continuous, 3.0, 2.0).ratio(), 1.5);
        assert_eq!(Pair::of(Lane::Serial, 3.0, 1.5).ratio(), 0.5);
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

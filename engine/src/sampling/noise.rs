//! Random tokens for canvases: plain numbers, no arrays.

use std::fmt;

/// Which canvas of noise is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoiseAt {
    /// Canvases that the row finished before.
    pub block: u64,
    /// Forwards that this canvas has behind it.
    pub forward: u64,
    /// Places to fill.
    pub tokens: usize,
    /// Tokens to choose from.
    pub vocabulary: u32,
}

/// Where a row's random tokens come from. It is asked once when a canvas begins and once after each of
/// its forwards but the last that it may have, in this order.
pub trait NoiseSource: fmt::Debug {
    /// A token for each place, each below the vocabulary's size.
    fn draw(&mut self, at: NoiseAt) -> Vec<u32>;
}

/// Noise that is a function of a seed, the block, the forward and the place alone.
#[derive(Debug, Clone, Copy)]
pub struct SeededNoise(pub u64);

impl NoiseSource for SeededNoise {
    fn draw(&mut self, at: NoiseAt) -> Vec<u32> {
        let canvas = mixed(mixed(self.0, at.block), at.forward);
        let token = |place: usize| {
            // The upper half times the size, shifted back: within the vocabulary, and even.
            let number = mixed(canvas, place as u64) >> 32;
            u32::try_from((number * u64::from(at.vocabulary)) >> 32).unwrap_or(0)
        };
        (0..at.tokens).map(token).collect()
    }
}

/// SplitMix64's finalizer (Steele, Lea, Flood 2014) over a state and an index.
fn mixed(state: u64, index: u64) -> u64 {
    let mut z = state.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: NoiseAt = NoiseAt { block: 2, forward: 3, tokens: 4096, vocabulary: 5 };

    #[test]
    fn the_same_seed_and_place_give_the_same_token_and_others_another_canvas() {
        let draw = |seed, at| SeededNoise(seed).draw(at);
        assert_eq!(draw(7, AT), draw(7, AT));
        let shorter = NoiseAt { tokens: 9, ..AT };
        assert_eq!(draw(7, shorter), draw(7, AT)[..9], "a place does not know how many there are");
        for other in [
            draw(8, AT),
            draw(7, NoiseAt { block: 3, ..AT }),
            draw(7, NoiseAt { forward: 2, ..AT }),
            draw(7, NoiseAt { block: 3, forward: 2, ..AT }),
        ] {
            assert_ne!(other, draw(7, AT));
        }
    }

    #[test]
    fn every_token_of_the_vocabulary_is_drawn_about_as_often() {
        let drawn = SeededNoise(1).draw(AT);
        for token in 0..5 {
            let count = drawn.iter().filter(|drawn| **drawn == token).count();
            assert!((700..940).contains(&count), "{count} of token {token}");
        }
        assert!(drawn.iter().all(|token| *token < 5));
    }
}

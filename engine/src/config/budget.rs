//! How many bytes the KV caches of live rows and of kept prompts may take.

use std::str::FromStr;

use super::bytes::{ByteCount, parse_bytes};
use crate::error::{Code, Error, Result};
use crate::limits::KV_HEADROOM_BYTES;

/// What was asked for, of the KV budget (`--kv-budget`) or of the part of it in which prompts are kept
/// (`--prompt-cache`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ByteBudget {
    /// What the memory leaves ([`Room::kv_bytes`]); for kept prompts half of the KV budget, or of what that would
    /// be by itself.
    #[default]
    Auto,
    /// No bound: only the number of rows is capped. For kept prompts: none.
    Off,
    /// So many.
    Bytes(u64),
}

/// The memory there is, and what is spoken for before the first row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Memory of the device: a GPU's own, or the machine's where they are the same.
    pub total_bytes: u64,
    /// The model's weights.
    pub weights_bytes: u64,
}

impl Room {
    /// Three quarters of the memory: the rest is the system's and other programs'. It is also about
    /// what Metal recommends as a working set.
    pub fn usable_bytes(&self) -> u64 {
        self.total_bytes / 4 * 3
    }

    /// What is left for KV, of live rows and kept prompts together: `3/4 total - weights - headroom`, never
    /// below 0. The headroom ([`KV_HEADROOM_BYTES`]) is for activations of a prompt chunk and for the second
    /// copy of a layer while a row joins.
    pub fn kv_bytes(&self) -> u64 {
        self.usable_bytes().saturating_sub(self.weights_bytes).saturating_sub(KV_HEADROOM_BYTES)
    }
}

/// The memory of a whole server and how it is to be shared out: one budget for the rows and prompts of all its
/// models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Memory of the device; 0 where nobody knows it, so that only budgets in bytes bound anything.
    pub total_bytes: u64,
    /// What was asked for live rows and kept prompts.
    pub kv_budget: ByteBudget,
    /// What was asked for kept prompts.
    pub prompt_cache: ByteBudget,
}

impl MemoryPlan {
    /// The memory beside `weights_bytes` of weights, of all models together.
    pub fn room(&self, weights_bytes: u64) -> Room {
        Room { total_bytes: self.total_bytes, weights_bytes }
    }

    /// The KV budget beside such weights, `None` for no bound.
    pub fn kv_bytes(&self, weights_bytes: u64) -> Option<u64> {
        match self.kv_budget {
            ByteBudget::Auto => Some(self.room(weights_bytes).kv_bytes()),
            ByteBudget::Off => None,
            ByteBudget::Bytes(bytes) => Some(bytes),
        }
    }

    /// What all kept prompts may take beside such weights, as far as live rows leave room.
    pub fn prompt_cache_bytes(&self, weights_bytes: u64) -> u64 {
        let kv_budget_bytes = self.kv_bytes(weights_bytes);
        self.prompt_cache.prompt_cache_bytes(&self.room(weights_bytes), kv_budget_bytes)
    }
}

impl ByteBudget {
    /// The KV budget in bytes, `None` for no bound, given what the smallest possible row takes.
    ///
    /// # Errors
    /// `InvalidRequest` with both numbers when not even that row fits.
    pub fn kv_bytes(self, room: &Room, smallest_row_bytes: u64) -> Result<Option<u64>> {
        let bytes = match self {
            Self::Off => return Ok(None),
            Self::Auto => room.kv_bytes(),
            Self::Bytes(bytes) => bytes,
        };
        if bytes >= smallest_row_bytes {
            return Ok(Some(bytes));
        }
        Err(self.too_small(bytes, smallest_row_bytes, room))
    }

    /// What kept prompts may take, as far as live rows leave room in a KV budget of `kv_budget_bytes`.
    pub fn prompt_cache_bytes(self, room: &Room, kv_budget_bytes: Option<u64>) -> u64 {
        match self {
            Self::Off => 0,
            Self::Auto => kv_budget_bytes.unwrap_or_else(|| room.kv_bytes()) / 2,
            Self::Bytes(bytes) => bytes,
        }
    }

    fn too_small(self, bytes: u64, smallest_row_bytes: u64, room: &Room) -> Error {
        let (budget, row) = (ByteCount(bytes), ByteCount(smallest_row_bytes));
        let message =
            format!("the KV budget is {budget}, and the smallest row of this model takes {row}");
        match self {
            Self::Bytes(_) | Self::Off => Error::new(Code::InvalidRequest, message)
                .with_hint("`--kv-budget` takes a larger one, `auto` or `off`"),
            Self::Auto => {
                let (usable, weights) =
                    (ByteCount(room.usable_bytes()), ByteCount(room.weights_bytes));
                let message =
                    format!("{message}: {usable} of memory are usable, the weights take {weights}");
                Error::new(Code::InvalidRequest, message)
                    .with_hint("take a smaller model, or `--kv-budget BYTES` to risk it")
            }
        }
    }
}

impl FromStr for ByteBudget {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            other => parse_bytes(other).map(Self::Bytes).ok_or_else(|| {
                "expected `auto`, `off` or bytes such as 4096, 500M, 1.5G or 2Gi".to_owned()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn room(total_gib: u64, weights_gib: u64) -> Room {
        Room { total_bytes: total_gib * GIB, weights_bytes: weights_gib * GIB }
    }

    #[test]
    fn prompts_are_kept_in_half_of_the_kv_budget_unless_another_cap_is_asked_for() {
        let room = room(32, 8);
        for (text, kv_budget_bytes, expected) in [
            ("auto", Some(10 * GIB), 5 * GIB),
            ("auto", None, room.kv_bytes() / 2),
            ("off", Some(GIB), 0),
            ("3Gi", Some(GIB), 3 * GIB),
        ] {
            let cap: ByteBudget = text.parse().unwrap();
            assert_eq!(cap.prompt_cache_bytes(&room, kv_budget_bytes), expected, "{text}");
        }
        assert!("much".parse::<ByteBudget>().is_err());
    }

    #[test]
    fn auto_is_what_weights_and_headroom_leave_of_three_quarters() {
        assert_eq!(room(32, 8).kv_bytes(), 16 * GIB - KV_HEADROOM_BYTES);
        let resolved = ByteBudget::Auto.kv_bytes(&room(32, 8), GIB);
        assert_eq!(resolved.unwrap(), Some(16 * GIB - KV_HEADROOM_BYTES));
    }

    #[test]
    fn a_model_as_large_as_the_memory_leaves_nothing() {
        assert_eq!(room(8, 8).kv_bytes(), 0);
        let error = ByteBudget::Auto.kv_bytes(&room(8, 8), 5_000_000).unwrap_err();
        let expected = "the KV budget is 0 B, and the smallest row of this model takes 5.0 MB: \
            6.4 GB of memory are usable, the weights take 8.6 GB";
        assert_eq!((error.code(), error.message()), (Code::InvalidRequest, expected));
    }

    #[test]
    fn off_is_no_bound_and_a_number_is_taken_as_it_is_while_a_row_fits() {
        let room = room(1, 8);
        assert_eq!(ByteBudget::Off.kv_bytes(&room, 100).unwrap(), None);
        assert_eq!(ByteBudget::Bytes(100).kv_bytes(&room, 100).unwrap(), Some(100));
        let error = ByteBudget::Bytes(99).kv_bytes(&room, 100).unwrap_err();
        assert!(error.message().contains("99 B") && error.message().contains("100 B"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("--kv-budget")));
    }

    #[test]
    fn the_flag_takes_two_words_and_bytes() {
        for (text, budget) in [
            ("auto", Ok(ByteBudget::Auto)),
            ("off", Ok(ByteBudget::Off)),
            ("2Gi", Ok(ByteBudget::Bytes(2 * GIB))),
            ("0", Ok(ByteBudget::Bytes(0))),
        ] {
            assert_eq!(text.parse(), budget, "{text}");
        }
        for text in ["", "none", "Auto", "-1", "lots"] {
            assert!(text.parse::<ByteBudget>().unwrap_err().contains("`auto`, `off`"), "{text}");
        }
    }
}

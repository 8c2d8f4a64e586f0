//! Whether a model may fit of which only the sizes of its weights are known.

use super::machine::{Machine, Processing};
use super::{Verdict, Wish};
use crate::config::Room;
use crate::model::outline::FloatType;

/// The part of the weights' size that caches of a usual conversion stay below: of models with grouped queries 8192
/// tokens take less than an eighth from 1B parameters in half precision on.
const CACHES_PART: u64 = 8;

/// Whether weights of so many bytes of each type (as safetensors writes them) may fit `machine`. What their caches
/// take is not known, so an eighth of the weights is left to them; [`fit`](super::fit()) says more once the config is
/// read.
pub fn guess(weights: &[(&str, u64)], machine: &Machine, wish: &Wish) -> Verdict {
    let weights_bytes = weights
        .iter()
        .map(|(dtype, bytes)| loaded_bytes(dtype, *bytes, machine, wish))
        .fold(0, u64::saturating_add);
    let room = Room { total_bytes: machine.memory_bytes, weights_bytes };
    let left_bytes = wish.kv_budget_bytes.map_or(room.kv_bytes(), |it| it.min(room.kv_bytes()));
    let caches_bytes = weights_bytes / CACHES_PART;
    let free_bytes = machine.available_bytes.unwrap_or(u64::MAX);
    match left_bytes {
        0 => Verdict::No,
        left if left < caches_bytes => Verdict::Tight,
        _ if weights_bytes.saturating_add(caches_bytes) > free_bytes => Verdict::Tight,
        _ => Verdict::Fits,
    }
}

/// What weights of a type take once they are loaded: floats are cast to the type that is computed in.
fn loaded_bytes(dtype: &str, bytes: u64, machine: &Machine, wish: &Wish) -> u64 {
    let stored = match dtype {
        "F16" | "BF16" => 2,
        "F32" => 4,
        // Words of packed matrices stay as they are.
        _ => return bytes,
    };
    let computed = wish.float_type.map_or_else(
        || match machine.processing {
            Processing::Processor => FloatType::F32.bytes(),
            Processing::Gpu => FloatType::Bf16.bytes(),
        },
        FloatType::bytes,
    );
    (bytes / stored).saturating_mul(computed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    #[track_caller]
    fn check(weights: &[(&str, u64)], processing: Processing, memory_bytes: u64, verdict: Verdict) {
        let machine = Machine {
            name: "a machine".to_owned(),
            processing,
            memory_bytes,
            available_bytes: None,
            bandwidth: None,
        };
        assert_eq!(guess(weights, &machine, &Wish::default()), verdict, "{weights:?}");
    }

    #[test]
    fn weights_fit_by_what_they_take_once_they_are_loaded() {
        check(&[("BF16", 4 * GB)], Processing::Gpu, 16 * GB, Verdict::Fits);
        check(&[("BF16", 16 * GB)], Processing::Gpu, 16 * GB, Verdict::No);
        // Processors compute in f32, and packed words stay packed.
        check(&[("BF16", 6 * GB)], Processing::Gpu, 16 * GB, Verdict::Fits);
        check(&[("BF16", 8 * GB)], Processing::Processor, 16 * GB, Verdict::No);
        check(&[("U32", 8 * GB)], Processing::Processor, 16 * GB, Verdict::Fits);
    }

    #[test]
    fn a_machine_that_others_use_or_that_leaves_no_caches_is_tight() {
        let machine = Machine {
            name: "a machine".to_owned(),
            processing: Processing::Gpu,
            memory_bytes: 16 * GB,
            available_bytes: Some(3 * GB),
            bandwidth: None,
        };
        let weights = [("U32", 4 * GB)];
        assert_eq!(guess(&weights, &machine, &Wish::default()), Verdict::Tight);
        let idle = Machine { available_bytes: None, ..machine };
        assert_eq!(guess(&weights, &idle, &Wish::default()), Verdict::Fits);
        let wish = Wish { kv_budget_bytes: Some(GB / 10), ..Wish::default() };
        assert_eq!(guess(&weights, &idle, &wish), Verdict::Tight);
    }
}

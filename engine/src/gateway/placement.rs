//! Which lane a request runs in, decided once, by a pure function.

use std::fmt;

use super::card::ModelCapabilities;
use crate::scheduler::Lane;

/// What placement may look at. It decides by none of these yet: they are what the log shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestShape {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens it may generate.
    pub max_tokens: usize,
    /// Whether it takes the most likely token at each step.
    pub greedy: bool,
}

/// A predicate that forces a request into the serial lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SerialReason {
    /// The batch holds one row at most.
    BatchCapIsOne,
    /// The model's rows cannot share a batch.
    ModelNotBatchable {
        /// Why not.
        reason: String,
    },
}

impl fmt::Display for SerialReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BatchCapIsOne => formatter.write_str("the batch cap is 1"),
            Self::ModelNotBatchable { reason } => {
                write!(formatter, "the model cannot batch: {reason}")
            }
        }
    }
}

/// Where a request runs and why. Frozen: a request never changes lanes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The request it was made for.
    pub shape: RequestShape,
    /// The lane.
    pub lane: Lane,
    /// Every predicate that forced the serial lane; empty in the continuous one.
    pub reasons: Vec<SerialReason>,
}

/// Places a request of `shape` on a model with `capabilities` under a cap of `batch_rows_max`.
pub fn place(
    shape: RequestShape,
    capabilities: &ModelCapabilities,
    batch_rows_max: usize,
) -> Placement {
    let capped = (batch_rows_max <= 1).then_some(SerialReason::BatchCapIsOne);
    let unbatchable = capabilities.serial_because.iter().cloned();
    let unbatchable = unbatchable.map(|reason| SerialReason::ModelNotBatchable { reason });
    let reasons: Vec<_> = capped.into_iter().chain(unbatchable).collect();
    let lane = if reasons.is_empty() { Lane::Continuous } else { Lane::Serial };
    Placement { shape, lane, reasons }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(serial_because: &[&str], cap: usize, lane: Lane, reasons: &[&str]) {
        let shape = RequestShape { prompt_tokens: 3, max_tokens: 5, greedy: true };
        let serial_because = serial_because.iter().map(|&reason| reason.to_owned()).collect();
        let capabilities = ModelCapabilities { serial_because };
        let placement = place(shape, &capabilities, cap);
        let shown: Vec<_> = placement.reasons.iter().map(ToString::to_string).collect();
        assert_eq!(
            (placement.lane, shown),
            (lane, reasons.iter().map(|&reason| reason.to_owned()).collect())
        );
        assert_eq!(placement.shape, shape);
    }

    #[test]
    fn a_request_is_serial_exactly_when_a_reason_says_so_and_all_reasons_are_listed() {
        let (cap, model) = ("the batch cap is 1", "the model cannot batch: it has no masks");
        let caches = "the model cannot batch: its caches differ";
        check(&[], 8, Lane::Continuous, &[]);
        check(&[], 1, Lane::Serial, &[cap]);
        check(&["it has no masks"], 8, Lane::Serial, &[model]);
        let both = ["it has no masks", "its caches differ"];
        check(&both, 8, Lane::Serial, &[model, caches]);
        check(&both, 1, Lane::Serial, &[cap, model, caches]);
    }
}

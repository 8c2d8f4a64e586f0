//! Which lane a request runs in, decided once, by a table of predicates.

use std::fmt;

use super::card::ModelCapabilities;
use crate::error::{Code, Error, Result};
use crate::scheduler::Lane;

/// What placement may look at. No predicate asks it anything yet: it is what the log shows, and what a
/// placement is good for.
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

/// What a request is placed on.
#[derive(Debug, Clone, Copy)]
pub struct Ground<'a> {
    /// The model's.
    pub capabilities: &'a ModelCapabilities,
    /// Rows in one decode step at most.
    pub batch_rows_max: usize,
}

/// Says why a request of this shape must run alone, if by this rule it must.
type Predicate = fn(&RequestShape, &Ground<'_>) -> Vec<SerialReason>;

/// Every rule there is. A request is continuous when none of them says otherwise; nothing about a
/// request is ever changed to make it so.
const PREDICATES: &[Predicate] = &[
    |_, ground| match ground.batch_rows_max {
        0 | 1 => vec![SerialReason::BatchCapIsOne],
        _ => Vec::new(),
    },
    |_, ground| {
        let reasons = ground.capabilities.serial_because.iter().cloned();
        reasons.map(|reason| SerialReason::ModelNotBatchable { reason }).collect()
    },
];

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

/// Places a request of `shape`.
pub fn place(shape: RequestShape, ground: &Ground<'_>) -> Placement {
    let reasons: Vec<_> =
        PREDICATES.iter().flat_map(|predicate| predicate(&shape, ground)).collect();
    let lane = if reasons.is_empty() { Lane::Continuous } else { Lane::Serial };
    Placement { shape, lane, reasons }
}

impl Placement {
    /// The reasons in words.
    pub fn reason_texts(&self) -> Vec<String> {
        self.reasons.iter().map(ToString::to_string).collect()
    }

    /// Holds the placement against the shape of the request that is about to run.
    ///
    /// # Errors
    /// `Internal` when it was made for another one.
    pub(super) fn check_shape(&self, shape: &RequestShape) -> Result<()> {
        if self.shape == *shape {
            return Ok(());
        }
        let message = format!("a placement of {:?} was used for {shape:?}", self.shape);
        Err(Error::new(Code::Internal, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: RequestShape = RequestShape { prompt_tokens: 3, max_tokens: 5, greedy: true };

    fn check(serial_because: &[&str], batch_rows_max: usize, lane: Lane, reasons: &[&str]) {
        let capabilities =
            ModelCapabilities { serial_because: owned(serial_because), ..Default::default() };
        let placement = place(SHAPE, &Ground { capabilities: &capabilities, batch_rows_max });
        assert_eq!((placement.lane, placement.reason_texts()), (lane, owned(reasons)));
        assert_eq!(placement.shape, SHAPE);
    }

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
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

    #[test]
    fn a_placement_serves_the_shape_it_was_made_for_and_no_other() {
        let capabilities = ModelCapabilities::default();
        let placement = place(SHAPE, &Ground { capabilities: &capabilities, batch_rows_max: 8 });
        assert!(placement.check_shape(&SHAPE).is_ok());
        for other in [
            RequestShape { prompt_tokens: 4, ..SHAPE },
            RequestShape { max_tokens: 6, ..SHAPE },
            RequestShape { greedy: false, ..SHAPE },
        ] {
            let error = placement.check_shape(&other).unwrap_err();
            assert_eq!(error.code(), Code::Internal, "{error}");
        }
    }
}

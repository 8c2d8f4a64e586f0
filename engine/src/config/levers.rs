//! Switches that turn one mechanism off, for paired measurements of it.
//!
//! They come from the environment, are read once at start, and take `1` and `0` alone: a measurement
//! under a misspelt switch would be one of something else.

use std::ffi::OsString;

use crate::error::{Code, Error, Result};

/// What is switched off. All `false` is how the engine serves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Levers {
    /// `SLIPSTREAM_NO_PIPELINE`: each decode step is read before the next one is built.
    pub no_pipeline: bool,
    /// `SLIPSTREAM_REMERGE`: a joining row rebuilds the batch from its rows instead of extending it.
    pub remerge: bool,
    /// `SLIPSTREAM_ROW_SAMPLING`: rows are sampled one by one even if all are greedy.
    pub row_sampling: bool,
    /// `SLIPSTREAM_NO_TAIL_SPLIT`: the last prompt token runs with the chunk before it.
    pub no_tail_split: bool,
    /// `SLIPSTREAM_NO_COMPILE`: a GPU runs the feed-forward gates operation by operation.
    pub no_compile: bool,
    /// `SLIPSTREAM_LANE_DEBUG`: each placement is logged.
    pub lane_debug: bool,
}

/// A switch among the levers.
type Switch = fn(&mut Levers) -> &mut bool;

/// Every variable, and the switch that it sets.
const VARIABLES: [(&str, Switch); 6] = [
    ("SLIPSTREAM_NO_PIPELINE", |levers| &mut levers.no_pipeline),
    ("SLIPSTREAM_REMERGE", |levers| &mut levers.remerge),
    ("SLIPSTREAM_ROW_SAMPLING", |levers| &mut levers.row_sampling),
    ("SLIPSTREAM_NO_TAIL_SPLIT", |levers| &mut levers.no_tail_split),
    ("SLIPSTREAM_NO_COMPILE", |levers| &mut levers.no_compile),
    ("SLIPSTREAM_LANE_DEBUG", |levers| &mut levers.lane_debug),
];

impl Levers {
    /// The switches that the environment sets.
    ///
    /// # Errors
    /// `InvalidRequest` naming the variable that holds anything but `1` or `0`.
    pub fn from_environment() -> Result<Self> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(value_of: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let mut levers = Self::default();
        for (name, lever) in VARIABLES {
            if let Some(value) = value_of(name) {
                *lever(&mut levers) = switch(name, &value)?;
            }
        }
        Ok(levers)
    }
}

fn switch(name: &str, value: &OsString) -> Result<bool> {
    match value.to_str() {
        Some("1") => Ok(true),
        Some("0") => Ok(false),
        _ => {
            let message = format!("the variable {name} is `{}`", value.to_string_lossy());
            Err(Error::new(Code::InvalidRequest, message).with_hint("only 1 and 0 are understood"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levers(set: &[(&str, &str)]) -> Result<Levers> {
        Levers::from_variables(|name| {
            set.iter().find(|(variable, _)| *variable == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn each_variable_sets_its_own_switch_and_none_sets_none() {
        assert_eq!(levers(&[]).unwrap(), Levers::default());
        for (name, lever) in VARIABLES {
            let mut expected = Levers::default();
            *lever(&mut expected) = true;
            assert_eq!(levers(&[(name, "1")]).unwrap(), expected, "{name}");
            assert_eq!(levers(&[(name, "0")]).unwrap(), Levers::default(), "{name}");
        }
        let all = Levers {
            no_pipeline: true,
            remerge: true,
            row_sampling: true,
            no_tail_split: true,
            no_compile: true,
            lane_debug: true,
        };
        assert_eq!(levers(&VARIABLES.map(|(name, _)| (name, "1"))).unwrap(), all);
    }

    #[test]
    fn any_other_value_is_an_error_that_names_variable_and_value() {
        for value in ["", "yes", "true", "2", " 1", "01"] {
            let error = levers(&[("SLIPSTREAM_REMERGE", value)]).unwrap_err();
            let expected = format!("the variable SLIPSTREAM_REMERGE is `{value}`");
            assert_eq!((error.code(), error.message()), (Code::InvalidRequest, &*expected));
        }
    }
}

//! Rows, admission, plan, prefill, step and emission: a state machine over an [`Executor`].

mod executor;
mod row;

pub use executor::{Executor, Sampled};
pub use row::{
    EventReceiver, EventSender, FinishReason, Lane, RowEvent, RowSpec, RowUsage, event_channel,
};

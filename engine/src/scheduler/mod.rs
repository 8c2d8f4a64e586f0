//! Rows, admission, plan, prefill, step and emission: a state machine over an [`Executor`].

#[cfg(feature = "mlx")]
mod device;
mod executor;
mod row;

#[cfg(feature = "mlx")]
pub use device::{LogitsObserver, MlxExecutor, SoloRow};
pub use executor::{Executor, Sampled};
pub use row::{
    EventReceiver, EventSender, FinishReason, Lane, RowEvent, RowSpec, RowUsage, event_channel,
};

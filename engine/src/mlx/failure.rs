//! MLX's failures as engine errors.
//!
//! MLX reports through one process-global handler. Ours replaces mlx-rs's so that direct calls and
//! mlx-rs's own both leave their text in one thread-local place.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};

use crate::error::{Code, Error, Result};

thread_local! {
    static LAST_MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Makes MLX report here. Call once per process before the first operation that may fail.
pub(super) fn install() {
    // mlx-rs registers its handler at its first fallible call: make that call first, so that ours
    // stays the last one registered.
    let _ = mlx_rs::memory::active_memory();
    // SAFETY: `remember` is a plain function that lives as long as the process; no data is passed.
    unsafe { mlx_sys::mlx_set_error_handler(Some(remember), std::ptr::null_mut(), None) };
}

extern "C" fn remember(message: *const c_char, _data: *mut c_void) {
    if message.is_null() {
        return;
    }
    // SAFETY: MLX passes a NUL-terminated string that is valid for the duration of the call.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    LAST_MESSAGE.with(|last| *last.borrow_mut() = Some(text));
}

/// Turns the status of a direct call into a result.
pub(super) fn check(status: i32, attempt: &'static str) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(failure(attempt)) }
}

/// The error of what MLX last reported on this thread.
pub(super) fn failure(attempt: &str) -> Error {
    let text = LAST_MESSAGE.with(|last| last.borrow_mut().take());
    Error::new(Code::EngineFailed, text.unwrap_or_else(|| format!("{attempt} failed in MLX")))
}

impl From<mlx_rs::error::Exception> for Error {
    fn from(exception: mlx_rs::error::Exception) -> Self {
        let text = LAST_MESSAGE.with(|last| last.borrow_mut().take());
        Self::new(Code::EngineFailed, text.unwrap_or_else(|| exception.what().to_owned()))
    }
}

impl From<mlx_rs::error::IoError> for Error {
    fn from(error: mlx_rs::error::IoError) -> Self {
        Self::new(Code::BadModel, error.to_string())
    }
}

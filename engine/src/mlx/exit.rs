//! Ending the process without the exit handlers of MLX's libraries.

use std::io::Write;

/// Ends the process with `code`, its output flushed. The exit handlers of loaded libraries do not run:
/// OpenBLAS's waits for its worker threads, and was seen to wait for ever. Only for the end of `main`.
pub fn leave(code: u8) -> ! {
    // An output that is gone is no reason to stay.
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().flush();
    // SAFETY: the call ends the process at once and touches no memory of ours.
    unsafe { libc::_exit(i32::from(code)) }
}

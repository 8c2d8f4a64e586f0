//! What MLX's allocator holds at most. Its peak belongs to the process: these tests are a program of
//! their own, and take turns.
#![cfg(feature = "mlx")]
#![allow(clippy::unwrap_used, reason = "a test may end at a broken expectation")]

mod conversion;
mod fit;
mod loading;
mod quantizing;

use std::sync::{Mutex, MutexGuard, PoisonError};

use slipstream_engine::mlx::memory;

/// Turns of the tests that read the peak.
static TURN: Mutex<()> = Mutex::new(());

/// The allocator, to be watched by one test.
struct Watched {
    _turn: MutexGuard<'static, ()>,
    before_bytes: u64,
}

/// Waits for its turn and watches from here on.
fn watch() -> Watched {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    memory::clear_cache().unwrap();
    memory::forget_peak().unwrap();
    Watched { _turn: turn, before_bytes: memory::snapshot().active_bytes }
}

impl Watched {
    /// Bytes that were held at most, beyond those at the beginning.
    fn peak_bytes(&self) -> u64 {
        memory::snapshot().peak_bytes - self.before_bytes
    }
}

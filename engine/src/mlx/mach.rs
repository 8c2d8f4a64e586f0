//! mlx-rs seeds its global random state from a macOS clock. Elsewhere the engine provides the
//! symbol; our samplers take explicit keys and never use that state.

use crate::clock::unix_seconds;

// SAFETY: the symbol has the signature that mach-sys declares, touches no memory, and exists only
// where the system does not define it.
#[unsafe(no_mangle)]
extern "C" fn mach_approximate_time() -> u64 {
    unix_seconds()
}

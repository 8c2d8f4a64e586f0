//! On Linux `cargo xtask` leaves a prebuilt `libmlx.so` under `.mlx/` and tells where, as metadata
//! of the `mlx` native library. This passes the place on to our executables as a run path, so they
//! start from anywhere. It is a run path and not an rpath, so `LD_LIBRARY_PATH` still wins: that
//! is how a binary built against the CPU library runs on the CUDA one. On macOS MLX is static.
#![allow(clippy::print_stdout, reason = "a build script talks to cargo on stdout")]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(directory) = std::env::var("DEP_MLX_RUNTIME_LIBRARY_DIR") {
        println!("cargo::rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{directory}");
        // For the build scripts of packages whose executables link the engine.
        println!("cargo::metadata=runtime_library_dir={directory}");
    }
}

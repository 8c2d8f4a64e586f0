//! Passes the place of MLX's library on to the test executables as a run path, as the engine's build
//! script does for its own.
#![allow(clippy::print_stdout, reason = "a build script talks to cargo on stdout")]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(directory) = std::env::var("DEP_SLIPSTREAM_ENGINE_RUNTIME_LIBRARY_DIR") {
        println!("cargo::rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{directory}");
    }
}

//! The desktop shell's place in the workspace. The menu-bar app is not built yet: the engine runs
//! headless as `slipstream serve`.

fn main() {}

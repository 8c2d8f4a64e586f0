//! The engine's modules form ranks, and a module imports only from lower ones.
//!
//! The test reads the sources: imports are written as `crate::module::...`, alone or grouped.

use std::collections::BTreeSet;

use slipstream_tests::sources::{Source, rust_files};

/// Modules of `engine/src`, lowest rank first. Two modules of one rank know nothing of each other.
const RANKS: &[&[&str]] = &[
    &["error", "clock", "limits"],
    &["config", "telemetry"],
    &["mlx", "tokenizer"],
    &["cache", "grammar"],
    &["model", "sampling", "prompt_cache", "output"],
    &["scheduler", "hub"],
    &["gateway"],
    &["wire"],
    &["api"],
];

/// Crates that only `engine/src/mlx` may name.
const DEVICE_CRATES: [&str; 2] = ["mlx_rs", "mlx_sys"];

#[test]
fn modules_import_from_lower_ranks_only() {
    let faults: Vec<String> = rust_files().iter().flat_map(import_faults).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn only_the_mlx_module_names_the_device_crates() {
    let faults: Vec<String> = rust_files().iter().flat_map(device_faults).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_engine_thread_does_not_know_mlx() {
    let files = rust_files();
    let thread = files.iter().find(|file| file.path == "engine/src/mlx/thread.rs");
    let thread = thread.expect("the engine thread is where the map says");
    assert!(DEVICE_CRATES.iter().all(|name| !thread.names(name)));
    assert_eq!(
        imports(&thread.code),
        BTreeSet::from(["clock", "error", "limits"].map(str::to_owned))
    );
}

fn import_faults(file: &Source) -> Vec<String> {
    let Some(module) = module_of(&file.path) else {
        return Vec::new();
    };
    let Some(rank) = rank_of(module) else {
        return vec![format!("{}: `{module}` has no rank", file.path)];
    };
    let fault = |import: String| match rank_of(&import) {
        None => Some(format!("{}: imports `{import}`, which has no rank", file.path)),
        Some(_) if import == module => None,
        Some(other) if other < rank => None,
        Some(_) => Some(format!("{}: `{module}` must not import `{import}`", file.path)),
    };
    imports(&file.code).into_iter().filter_map(fault).collect()
}

fn device_faults(file: &Source) -> Vec<String> {
    if file.path.starts_with("engine/src/mlx/") {
        return Vec::new();
    }
    let named = DEVICE_CRATES.iter().filter(|name| file.names(name));
    named.map(|name| format!("{}: names `{name}`", file.path)).collect()
}

/// The engine module that a file belongs to; the crate roots and the executables belong to none.
fn module_of(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("engine/src/")?;
    let module = inside.split('/').next().unwrap_or(inside);
    let module = module.strip_suffix(".rs").unwrap_or(module);
    (!["lib", "main", "bin"].contains(&module)).then_some(module)
}

fn rank_of(module: &str) -> Option<usize> {
    RANKS.iter().position(|modules| modules.contains(&module))
}

/// The modules that follow `crate::` in `code`, each name of a group at its top level included.
fn imports(code: &str) -> BTreeSet<String> {
    let paths = code.split("crate::").skip(1);
    paths
        .flat_map(|path| match path.strip_prefix('{') {
            Some(group) => group_heads(group),
            None => vec![leading_name(path)],
        })
        .collect()
}

/// The first name of each path in a group, given the text after its opening brace.
fn group_heads(group: &str) -> Vec<String> {
    let (mut heads, mut depth, mut start) = (Vec::new(), 0, 0);
    for (index, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                heads.push(leading_name(group[start..index].trim_start()));
                start = index + 1;
                if character == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    heads.retain(|head| !head.is_empty());
    heads
}

fn leading_name(path: &str) -> String {
    path.chars().take_while(|character| character.is_alphanumeric() || *character == '_').collect()
}

#[track_caller]
fn check(path: &str, text: &str, expected: &[&str]) {
    let file = Source::new(path, text);
    let faults: Vec<String> =
        import_faults(&file).into_iter().chain(device_faults(&file)).collect();
    let stripped: Vec<&str> = faults.iter().map(|fault| &fault[path.len() + 2..]).collect();
    assert_eq!(stripped, expected);
}

#[test]
fn an_upward_or_sideways_import_is_found_however_it_is_written() {
    let upward = ["`cache` must not import `scheduler`"];
    check("engine/src/cache/full.rs", "use crate::scheduler::Row;", &upward);
    check("engine/src/cache/full.rs", "fn f() { crate::scheduler::x() }", &upward);
    check("engine/src/cache/full.rs", "use crate::{error::{Code, Error},\n scheduler};", &upward);
    let sideways = ["`model` must not import `sampling`"];
    check("engine/src/model/mod.rs", "pub(crate) use crate::sampling;", &sideways);
    check("engine/src/cache/mod.rs", "// crate::scheduler\nuse crate::{cache, mlx::Array};", &[]);
}

#[test]
fn a_module_without_a_rank_is_found() {
    check("engine/src/helper.rs", "", &["`helper` has no rank"]);
    check("engine/src/api/mod.rs", "use crate::helper;", &["imports `helper`, which has no rank"]);
    check("engine/src/lib.rs", "pub mod api;", &[]);
    check("engine/src/bin/slipstream/serve.rs", "use crate::load;", &[]);
}

#[test]
fn a_device_crate_outside_the_mlx_module_is_found() {
    check("engine/src/model/mod.rs", "use mlx_rs::Array;", &["names `mlx_rs`"]);
    check("engine/src/mlx/ops.rs", "use mlx_sys as raw;", &[]);
}

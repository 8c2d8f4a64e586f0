//! House rules that neither the compiler nor clippy checks.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use slipstream_tests::sources::{Source, has_word, rust_files};

/// Lines of a function at most.
const FUNCTION_LINES_MAX: usize = 70;

/// Functions that may be longer, by file and name. Only ever shorten this list.
const LONG_FUNCTIONS: &[(&str, &str)] = &[];

/// Words that mark unfinished work, spelt so that this file does not contain them.
const BANNED: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX"), concat!("db", "g!")];

/// Where `unsafe` may appear.
const UNSAFE_FOLDER: &str = "engine/src/mlx/";

/// Lines above an `unsafe` among which its SAFETY comment starts.
const SAFETY_LINES: usize = 3;

fn check_all(rule: impl Fn(&Source) -> Vec<String>) {
    let faults: Vec<String> = rust_files()
        .iter()
        .flat_map(|file| rule(file).into_iter().map(|fault| format!("{}:{fault}", file.path)))
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_line_ends_in_a_space() {
    check_all(trailing_spaces);
}

#[test]
fn no_file_has_marks_of_unfinished_work() {
    check_all(unfinished_marks);
}

#[test]
fn no_function_is_longer_than_a_screen() {
    check_all(long_functions);
}

#[test]
fn unsafe_code_stays_in_its_folder_and_says_why_it_is_sound() {
    check_all(unsafe_faults);
}

#[test]
fn every_file_belongs_to_a_crate() {
    let files = rust_files();
    let dead = dead_files(&files);
    assert!(dead.is_empty(), "no `mod` leads to {dead:?}");
}

#[test]
fn every_exception_is_still_needed() {
    let files = rust_files();
    for (path, name) in LONG_FUNCTIONS {
        let file = files.iter().find(|file| file.path == *path);
        let function = file.and_then(|file| {
            functions(&file.code).into_iter().find(|function| function.name == *name)
        });
        let needed = function.is_some_and(|function| function.lines > FUNCTION_LINES_MAX);
        assert!(needed, "`{name}` of {path} needs no exception");
    }
}

fn trailing_spaces(file: &Source) -> Vec<String> {
    let lines = file.text.lines().enumerate();
    lines
        .filter(|(_, line)| line.ends_with([' ', '\t', '\r']))
        .map(|(index, _)| format!("{}: trailing space", index + 1))
        .collect()
}

fn unfinished_marks(file: &Source) -> Vec<String> {
    let lines = file.text.lines().enumerate();
    let marks = lines.flat_map(|(index, line)| BANNED.map(|word| (index, line, word)));
    marks
        .filter(|(_, line, word)| has_word(line, word))
        .map(|(index, _, word)| format!("{}: `{word}`", index + 1))
        .collect()
}

fn long_functions(file: &Source) -> Vec<String> {
    let excused = |name: &str| LONG_FUNCTIONS.contains(&(file.path.as_str(), name));
    functions(&file.code)
        .iter()
        .filter(|function| function.lines > FUNCTION_LINES_MAX && !excused(&function.name))
        .map(|function| {
            format!("{}: `{}` has {} lines", function.line, function.name, function.lines)
        })
        .collect()
}

fn unsafe_faults(file: &Source) -> Vec<String> {
    let lines: Vec<&str> = file.text.lines().collect();
    let fault = |index: usize| {
        let above = &lines[index.saturating_sub(SAFETY_LINES)..=index];
        if !file.path.starts_with(UNSAFE_FOLDER) {
            Some(format!("{}: unsafe outside {UNSAFE_FOLDER}", index + 1))
        } else if !above.iter().any(|line| line.contains("// SAFETY:")) {
            Some(format!("{}: unsafe without a SAFETY comment", index + 1))
        } else {
            None
        }
    };
    file.lines_naming("unsafe").filter_map(fault).collect()
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    /// Where it starts, from 1.
    line: usize,
    /// From its `fn` to its closing brace.
    lines: usize,
}

/// The functions of `code`, from which prose was blanked out; nested ones count for themselves and
/// for the one around them.
fn functions(code: &str) -> Vec<Function> {
    let starts = code.match_indices("fn ").filter(|(start, _)| {
        let before = code[..*start].chars().next_back();
        before.is_none_or(char::is_whitespace)
    });
    starts.filter_map(|(start, _)| function_at(code, start)).collect()
}

fn function_at(code: &str, start: usize) -> Option<Function> {
    let rest = &code[start + "fn ".len()..];
    let name =
        rest.split(|character: char| !character.is_alphanumeric() && character != '_').next()?;
    let mut depth = 0;
    for (index, character) in rest.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            // A trait's method without a body.
            ';' if depth == 0 && !inside_brackets(&rest[..index]) => return None,
            _ => {}
        }
        if character == '}' && depth == 0 {
            let line = code[..start].matches('\n').count() + 1;
            let lines = rest[..index].matches('\n').count() + 1;
            return Some(Function { name: name.to_owned(), line, lines });
        }
    }
    None
}

/// Whether `text` ends inside brackets, as the `;` of an array type does.
fn inside_brackets(text: &str) -> bool {
    text.matches('[').count() > text.matches(']').count()
}

/// Files to which no `mod` leads from a crate root.
fn dead_files(files: &[Source]) -> Vec<&str> {
    let mut reached = BTreeSet::new();
    let mut pending: Vec<&Source> = files.iter().filter(|file| is_crate_root(&file.path)).collect();
    while let Some(file) = pending.pop() {
        if reached.insert(file.path.as_str()) {
            let paths = module_paths(file);
            pending.extend(files.iter().filter(|file| paths.contains(&file.path)));
        }
    }
    let paths = files.iter().map(|file| file.path.as_str());
    paths.filter(|path| !reached.contains(path)).collect()
}

fn is_crate_root(path: &str) -> bool {
    let mut steps = path.rsplit('/');
    let (name, folder, above) = (steps.next(), steps.next(), steps.next());
    match folder {
        None | Some("src" | "support" | "it" | "memory" | "src-tauri") => {
            matches!(name, Some("lib.rs" | "main.rs" | "build.rs"))
        }
        Some("bin" | "benches" | "examples") => true,
        Some(_) => name == Some("build.rs") || (above == Some("bin") && name == Some("main.rs")),
    }
}

/// Where the modules may be that `file` declares.
fn module_paths(file: &Source) -> BTreeSet<String> {
    let path = Path::new(&file.path);
    let stem = path.file_stem().unwrap_or_default();
    let parent = path.parent().unwrap_or(Path::new(""));
    let owns_folder = stem == "mod" || is_crate_root(&file.path);
    let folder = if owns_folder { parent.to_owned() } else { parent.join(stem) };
    let declared = file
        .code
        .lines()
        .zip(file.text.lines())
        .scan(None, |place, lines| Some(declared_paths(place, lines, parent, &folder)));
    declared.flatten().map(|path| normal(&path)).collect()
}

/// The paths of the module that a line declares; `place` carries a `#[path]` from the line above.
fn declared_paths<'a>(
    place: &mut Option<&'a str>,
    (code, text): (&str, &'a str),
    parent: &Path,
    folder: &Path,
) -> Vec<PathBuf> {
    if code.trim_start().starts_with("#[path") {
        *place = text.split('"').nth(1);
        return Vec::new();
    }
    let words: Vec<&str> = code.trim().trim_end_matches(';').split_whitespace().collect();
    let [.., "mod", name] = words[..] else {
        return Vec::new();
    };
    if !code.trim_end().ends_with(';') {
        return Vec::new();
    }
    match place.take() {
        Some(place) => vec![parent.join(place)],
        None => vec![folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")],
    }
}

/// `path` without `..` steps, with forward slashes.
fn normal(path: &Path) -> String {
    let mut names: Vec<String> = Vec::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(names.pop()),
            other => names.push(other.as_os_str().to_string_lossy().into_owned()),
        }
    }
    names.join("/")
}

#[track_caller]
fn check(rule: impl Fn(&Source) -> Vec<String>, path: &str, text: &str, expected: &[&str]) {
    assert_eq!(rule(&Source::new(path, text)), expected);
}

#[test]
fn a_trailing_space_and_a_mark_are_found() {
    check(trailing_spaces, "a.rs", "fine\nnot \n", &["2: trailing space"]);
    let text = format!("// {}: more\nfn f() {{ {}(x) }}", BANNED[0], BANNED[3]);
    let found = BANNED.map(|word| format!("`{word}`"));
    let expected = [format!("1: {}", found[0]), format!("2: {}", found[3])];
    check(unfinished_marks, "a.rs", &text, &expected.each_ref().map(String::as_str));
}

#[test]
fn a_long_function_is_found_and_a_long_list_beside_it_is_not() {
    let body = |lines: usize| "    x;\n".repeat(lines);
    let short =
        format!("const LIST: [u8; 3] = [\n{}];\nfn f(x: [u8; 2]) {{\n{}}}\n", body(90), body(68));
    check(long_functions, "a.rs", &short, &[]);
    let long = format!("trait T {{ fn g(&self); }}\n\npub async fn f() {{\n{}}}\n", body(69));
    check(long_functions, "a.rs", &long, &["3: `f` has 71 lines"]);
}

#[test]
fn unsafe_needs_its_place_and_its_reason() {
    let sound = "// SAFETY: the pointer came from a box.\nunsafe { free(pointer) }";
    check(unsafe_faults, "engine/src/mlx/ops.rs", sound, &[]);
    check(
        unsafe_faults,
        "engine/src/mlx/ops.rs",
        "unsafe { x }",
        &["1: unsafe without a SAFETY comment"],
    );
    check(unsafe_faults, "engine/src/api/mod.rs", sound, &["2: unsafe outside engine/src/mlx/"]);
    check(unsafe_faults, "engine/src/api/mod.rs", "// unsafe\n#![deny(unsafe_code)]", &[]);
}

#[test]
fn a_file_that_no_module_names_is_dead() {
    let file = |path: &str, text: &str| Source::new(path, text);
    let files = [
        file("engine/src/lib.rs", "pub mod a;\n#[path = \"elsewhere/c.rs\"]\nmod b;\n// mod dead;"),
        file("engine/src/a/mod.rs", "mod inner;\nmod inline {}"),
        file("engine/src/a/inner.rs", "#[cfg(test)]\nmod tests;"),
        file("engine/src/a/inner/tests.rs", ""),
        file("engine/src/elsewhere/c.rs", ""),
        file("engine/src/bin/tool/main.rs", "mod verb;"),
        file("engine/src/bin/tool/verb.rs", ""),
        file("engine/src/bin/tool/dead.rs", ""),
        file("engine/src/dead.rs", ""),
    ];
    assert_eq!(dead_files(&files), ["engine/src/bin/tool/dead.rs", "engine/src/dead.rs"]);
}

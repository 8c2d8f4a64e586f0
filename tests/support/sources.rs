//! The repository's Rust files as text, for the tests that read them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// One Rust file.
#[derive(Debug, Clone)]
pub struct Source {
    /// Relative to the repository, with forward slashes.
    pub path: String,
    /// As it stands in the file.
    pub text: String,
    /// The same lines with comments, strings and character literals blanked out.
    pub code: String,
}

/// The repository's folder.
pub fn repository() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("tests/ is a folder of the repository").to_owned()
}

/// Every Rust file of the repository that is not generated or fetched, sorted by path.
pub fn rust_files() -> Vec<Source> {
    let root = repository();
    let mut paths = BTreeSet::new();
    collect(&root, &mut paths);
    assert!(paths.len() > 10, "the repository's sources were not found in {root:?}");
    paths.into_iter().map(|path| Source::read(&root, &path)).collect()
}

/// Adds the Rust files below `folder`.
fn collect(folder: &Path, paths: &mut BTreeSet<PathBuf>) {
    const SKIPPED: [&str; 5] = ["target", "gen", "node_modules", "dist", "goldens"];
    for entry in fs::read_dir(folder).expect("a folder of the repository can be read") {
        let path = entry.expect("an entry of the repository can be read").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) {
            collect(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.insert(path);
        }
    }
}

impl Source {
    fn read(root: &Path, path: &Path) -> Self {
        let text = fs::read_to_string(path).expect("a source file can be read");
        let relative = path.strip_prefix(root).expect("the path was found below the root");
        Self::new(relative.to_string_lossy().replace('\\', "/"), text)
    }

    /// A file of that `path` and `text`.
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { path: path.into(), code: blank_prose(&text), text }
    }

    /// Whether `word` stands alone somewhere in the code.
    pub fn names(&self, word: &str) -> bool {
        self.lines_naming(word).next().is_some()
    }

    /// The lines (from 0) whose code has `word` standing alone.
    pub fn lines_naming(&self, word: &str) -> impl Iterator<Item = usize> {
        let lines = self.code.lines().enumerate();
        lines.filter(move |(_, line)| has_word(line, word)).map(|(index, _)| index)
    }
}

/// Whether `word` stands in `line` with no letter, digit or underscore beside it.
pub fn has_word(line: &str, word: &str) -> bool {
    let joins = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(joins) && !after.is_some_and(joins)
    })
}

/// `text` with comments, strings and character literals replaced by spaces; lines stay lines.
pub fn blank_prose(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut blanked = String::with_capacity(text.len());
    let mut at = 0;
    while at < characters.len() {
        let length = prose_length(&characters[at..], characters[..at].last());
        for offset in 0..length {
            blanked.push(if characters[at + offset] == '\n' { '\n' } else { ' ' });
        }
        if length == 0 {
            blanked.push(characters[at]);
        }
        at += length.max(1);
    }
    blanked
}

/// The length of the comment or literal that starts `rest`, or 0.
fn prose_length(rest: &[char], before: Option<&char>) -> usize {
    let in_word = before.is_some_and(|before| before.is_alphanumeric() || *before == '_');
    match rest {
        ['/', '/', ..] => {
            rest.iter().position(|character| *character == '\n').unwrap_or(rest.len())
        }
        ['/', '*', ..] => block_comment_length(rest),
        ['"', ..] => string_length(rest),
        ['r', '"' | '#', ..] if !in_word => raw_string_length(rest),
        ['b', 'r', '"' | '#', ..] if !in_word => 1 + raw_string_length(&rest[1..]),
        ['\'', '\\', _, tail @ ..] => {
            3 + tail.iter().position(|character| *character == '\'').map_or(0, |end| end + 1)
        }
        ['\'', _, '\'', ..] => 3,
        _ => 0,
    }
}

fn block_comment_length(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_length(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of a raw string that starts at its `r`; 0 for a raw identifier.
fn raw_string_length(rest: &[char]) -> usize {
    let hashes = rest[1..].iter().take_while(|character| **character == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return 0;
    }
    let body = &rest[hashes + 2..];
    let closes = |window: &[char]| window[0] == '"' && window[1..].iter().all(|last| *last == '#');
    let end = body.windows(hashes + 1).position(closes);
    end.map_or(rest.len(), |end| hashes + 2 + end + hashes + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(blank_prose(text), expected);
    }

    #[test]
    fn comments_and_literals_are_blanked_and_code_is_not() {
        check("a // b\nc", "a     \nc");
        check("a /* b /* c */ \n */ d", "a              \n    d");
        check(r#"f("x\"}", 'y')"#, "f(      ,    )");
        check(r###"r#"a"}"# b"###, "         b");
        check(r"'\'' c '\n' '\u{41}' d", &format!("{:4} c {:4} {:8} d", "", "", ""));
        check("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)");
        check("for r in r#type", "for r in r#type");
    }

    #[test]
    fn a_word_stands_alone() {
        assert!(has_word("unsafe { x }", "unsafe"));
        assert!(!has_word("allow(unsafe_code)", "unsafe"));
    }
}

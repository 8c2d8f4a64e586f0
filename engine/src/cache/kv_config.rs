//! `kv_config.json`: a model directory's own choice of packings, layer by layer.
//!
//! The file is a list of `{"layer_idx": 3, "bits": 8, "group_size": 64}`, which is what mlx-optiq
//! writes; the group size may be left out, and a layer that is left out stays plain. It is read
//! strictly, because a misread entry would be served as another scheme.

use std::path::Path;

use serde_json::{Map, Value};

use super::profile::TokenShape;
use super::scheme::{self, GROUP_SIZE_DEFAULT, KvScheme, Packing};
use crate::error::{Code, Error, Result};

/// The file's name.
const FILE: &str = "kv_config.json";

/// The fields of an entry.
const FIELDS: [&str; 3] = ["layer_idx", "bits", "group_size"];

/// Reads `directory/kv_config.json` for a model with these layers.
///
/// # Errors
/// `BadModel` naming the file, the layer and the value that cannot be used.
pub fn read(directory: &Path, layers: &[Option<TokenShape>]) -> Result<KvScheme> {
    let path = directory.join(FILE);
    let attempt = format!("failed to read `{}`", path.display());
    let text = std::fs::read_to_string(&path)
        .map_err(|error| bad(error.to_string()).while_doing(&attempt))?;
    parse(&text, layers).map_err(|error| error.while_doing(&attempt))
}

fn parse(text: &str, layers: &[Option<TokenShape>]) -> Result<KvScheme> {
    let entries: Vec<Value> = match serde_json::from_str(text) {
        Ok(Value::Array(entries)) => entries,
        Ok(_) => return Err(bad("not a list of layers")),
        Err(error) => return Err(bad(error.to_string())),
    };
    let mut packings = vec![None; layers.len()];
    for (place, entry) in entries.iter().enumerate() {
        let (index, packing) = read_entry(place, entry, layers)?;
        if packings[index].replace(packing).is_some() {
            return Err(bad(format!("layer {index} is there twice")));
        }
    }
    if entries.is_empty() {
        return Err(bad("it names no layer").with_hint("`--kv-quant off` keeps all layers plain"));
    }
    Ok(KvScheme::PerLayer(packings))
}

fn read_entry(
    place: usize,
    entry: &Value,
    layers: &[Option<TokenShape>],
) -> Result<(usize, Packing)> {
    let Value::Object(fields) = entry else {
        return Err(bad(format!("entry {place} is no object: {entry}")));
    };
    let index = whole(fields, "layer_idx")
        .and_then(|number| number.ok_or_else(|| bad("it has no `layer_idx`")))
        .and_then(|number| layer_index(number, layers.len()))
        .map_err(|error| error.while_doing(format_args!("entry {place}")))?;
    let packing = read_packing(fields).and_then(|packing| {
        scheme::check_layer(index, packing, layers)?;
        Ok(packing)
    });
    match packing {
        Ok(packing) => Ok((index, packing)),
        Err(error) => Err(as_bad_model(&error).while_doing(format_args!("layer {index}"))),
    }
}

fn read_packing(fields: &Map<String, Value>) -> Result<Packing> {
    if let Some(unknown) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        return Err(bad(format!("unknown field `{unknown}`"))
            .with_hint(format!("known: {}", FIELDS.join(", "))));
    }
    let bits = whole(fields, "bits")?.ok_or_else(|| {
        bad("it has no `bits`").with_hint("leave a layer out of the list to keep it plain")
    })?;
    let group_size = whole(fields, "group_size")?.unwrap_or(i64::from(GROUP_SIZE_DEFAULT));
    Packing::new(bits, group_size)
}

fn layer_index(number: i64, count: usize) -> Result<usize> {
    let index = usize::try_from(number).ok().filter(|index| *index < count);
    index.ok_or_else(|| bad(format!("there is no layer {number}: the model has {count} layers")))
}

/// A whole number that may be absent.
fn whole(fields: &Map<String, Value>, name: &str) -> Result<Option<i64>> {
    let number = |value: &Value| {
        value.as_i64().ok_or_else(|| bad(format!("`{name}` is no whole number: {value}")))
    };
    fields.get(name).map(number).transpose()
}

/// What is a bad request on the command line is a bad model in a file.
fn as_bad_model(error: &Error) -> Error {
    let bad = bad(error.message());
    match error.hint() {
        Some(hint) => bad.with_hint(hint),
        None => bad,
    }
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(Code::BadModel, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers() -> [Option<TokenShape>; 4] {
        let heads_of = |dimension| {
            Some(TokenShape { heads: 2, key_dimension: dimension, value_dimension: dimension })
        };
        [heads_of(64), heads_of(64), heads_of(96), None]
    }

    #[test]
    fn layers_are_packed_as_the_file_says_and_those_left_out_stay_plain() {
        let text =
            r#"[{"layer_idx": 2, "bits": 3, "group_size": 32}, {"bits": 8, "layer_idx": 0}]"#;
        let packing = |bits, group_size| Some(Packing { group_size, bits });
        let expected = vec![packing(8, 64), None, packing(3, 32), None];
        assert_eq!(parse(text, &layers()), Ok(KvScheme::PerLayer(expected)));
    }

    #[track_caller]
    fn check(text: &str, words: &[&str]) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE), text).unwrap();
        let error = read(directory.path(), &layers()).unwrap_err();
        assert_eq!(error.code(), Code::BadModel);
        let told = error.to_string();
        assert!(!told.contains('\n'), "{told}");
        for word in words.iter().chain(&[FILE]) {
            assert!(told.contains(word), "`{word}` is not in `{told}`");
        }
    }

    #[test]
    fn what_cannot_be_used_is_named_with_the_file_and_the_layer() {
        check(r#"[{"layer_idx": 4, "bits": 8}]"#, &["entry 0", "no layer 4", "4 layers"]);
        check(r#"[{"layer_idx": -1, "bits": 8}]"#, &["entry 0", "no layer -1"]);
        check(r#"[{"layer_idx": 1, "bits": 16}]"#, &["layer 1", "bits 16", "2, 3, 4, 6, 8"]);
        check(r#"[{"layer_idx": 1, "bits": 4, "group_size": 48}]"#, &["layer 1", "group_size 48"]);
        check(r#"[{"layer_idx": 2, "bits": 4}]"#, &["layer 2", "96", "64"]);
        check(r#"[{"layer_idx": 3, "bits": 4}]"#, &["layer 3", "no keys and values"]);
        check(
            r#"[{"layer_idx": 1, "bits": 4}, {"layer_idx": 1, "bits": 8}]"#,
            &["layer 1", "twice"],
        );
        check(
            r#"[{"layer_idx": 1, "bits": 4, "group": 32}]"#,
            &["layer 1", "`group`", "group_size"],
        );
        check(r#"[{"layer_idx": 1}]"#, &["layer 1", "no `bits`"]);
        check(r#"[{"layer_idx": 1, "bits": "4"}]"#, &["layer 1", "`bits`", "\"4\""]);
        check(r#"[{"layer_idx": 1.5, "bits": 4}]"#, &["entry 0", "`layer_idx`", "1.5"]);
        check(r#"[{"bits": 4}]"#, &["entry 0", "no `layer_idx`"]);
        check("[7]", &["entry 0", "no object"]);
        check("{}", &["not a list"]);
        check("[]", &["names no layer"]);
        check("[", &["EOF"]);
    }

    #[test]
    fn a_directory_without_the_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let error = read(directory.path(), &layers()).unwrap_err();
        assert_eq!(error.code(), Code::BadModel);
        assert!(error.to_string().contains(FILE));
    }
}

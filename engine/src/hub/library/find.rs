//! Which entry a name means.

use super::entry::{Entry, State};
use crate::error::{Code, Error, Result};

/// Names that an error suggests at most.
const SUGGESTIONS_MAX: usize = 5;
/// Entries that an error lists where none is near.
const LISTED_MAX: usize = 8;
/// How alike two names are that may be meant for each other (Jaro and Winkler), from 0 to 1.
const ALIKE: f64 = 0.82;

/// The entry called `name`: see [`Library::find`](super::Library::find).
pub(crate) fn find<'a>(name: &str, entries: &[&'a Entry]) -> Result<&'a Entry> {
    if let Some(exact) = entries.iter().find(|entry| entry.id == name) {
        return Ok(exact);
    }
    let wanted = name.to_lowercase();
    let by_id: Vec<_> = matching(entries, |entry| entry.id.to_lowercase() == wanted);
    let by_short = || matching(entries, |entry| entry.short_name().to_lowercase() == wanted);
    let found = if by_id.is_empty() { by_short() } else { by_id };
    match found.as_slice() {
        [one] => Ok(one),
        [] => Err(unknown(name, entries)),
        several => match matching(several, |entry| entry.state == State::Ready).as_slice() {
            [one] => Ok(one),
            _ => Err(ambiguous(name, several)),
        },
    }
}

fn matching<'a>(entries: &[&'a Entry], fits: impl Fn(&Entry) -> bool) -> Vec<&'a Entry> {
    entries.iter().copied().filter(|entry| fits(entry)).collect()
}

fn ambiguous(name: &str, several: &[&Entry]) -> Error {
    let ids: Vec<_> = several.iter().map(|entry| format!("`{}`", entry.id)).collect();
    Error::new(Code::ModelNotFound, format!("`{name}` is the name of several models"))
        .with_hint(format!("say which: {}", ids.join(", ")))
}

fn unknown(name: &str, entries: &[&Entry]) -> Error {
    let error = Error::new(Code::ModelNotFound, format!("there is no model `{name}`"));
    let near = near(name, entries);
    if !near.is_empty() {
        return error.with_hint(format!("near it: {}", near.join(", ")));
    }
    let listed: Vec<_> = entries.iter().take(LISTED_MAX).map(|it| format!("`{}`", it.id)).collect();
    match entries.len().saturating_sub(LISTED_MAX) {
        _ if entries.is_empty() => error.with_hint("there are no models on this machine yet"),
        0 => error.with_hint(format!("there are {}", listed.join(", "))),
        more => error.with_hint(format!("there are {} and {more} more", listed.join(", "))),
    }
}

/// The entries whose names are like `name` or hold it, the likest first.
fn near(name: &str, entries: &[&Entry]) -> Vec<String> {
    let wanted = name.to_lowercase();
    let likeness = |entry: &Entry| {
        let (id, short) = (entry.id.to_lowercase(), entry.short_name().to_lowercase());
        let holds = if wanted.len() > 1 && id.contains(&wanted) { 1.0 } else { 0.0 };
        let alike = |text: &str| strsim::jaro_winkler(text, &wanted);
        alike(&id).max(alike(&short)).max(holds)
    };
    let mut near: Vec<_> =
        entries.iter().map(|entry| (likeness(entry), entry)).filter(|it| it.0 >= ALIKE).collect();
    near.sort_by(|left, right| right.0.total_cmp(&left.0));
    near.iter().take(SUGGESTIONS_MAX).map(|(_, entry)| format!("`{}`", entry.id)).collect()
}

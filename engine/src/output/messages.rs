//! Heads of the messages that some models' answers fall into.
//!
//! gpt-oss (the Harmony format) writes `<|start|>ROLE<|channel|>CHANNEL to=RECIPIENT<|message|>`, with
//! the recipient behind the role or the channel; the prompt has the first `<|start|>assistant`. Muse
//! Spark writes `to=RECIPIENT<|message|>`.

use super::format::MessageFormat;
use super::markers::{Found, find};

/// Longer heads are none.
const HEAD_BYTES_MAX: usize = 400;

/// What a text in the place of a head holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Head<'a> {
    /// A head, and its bytes with the marker that ends it.
    Is(&'a str, usize),
    /// A marker that begins a head ends after so many bytes.
    Restart(usize),
    /// It is not known yet.
    Wait,
    /// No head.
    None,
}

/// Whom a message is for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recipient {
    User,
    /// The model: it thinks.
    Itself,
    Tool(String),
}

/// Reads the head that `rest` begins with. `started` says that a marker began it, so that it needs not
/// look like one.
pub(super) fn head(format: MessageFormat, rest: &str, started: bool, last: bool) -> Head<'_> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        Start,
        End,
        HeadEnd,
    }
    let ends = format.ends().iter().map(|end| (*end, Mark::End));
    let others = [(MessageFormat::START, Mark::Start), (MessageFormat::HEAD_END, Mark::HeadEnd)];
    let markers: Vec<_> = ends.chain(others).collect();
    if last && rest.is_empty() {
        return Head::None;
    }
    match find(rest, &markers, last) {
        Found::Marker { at, len, meaning: Mark::Start } if rest[..at].trim().is_empty() => {
            Head::Restart(at + len)
        }
        Found::Marker { at, len, meaning: Mark::HeadEnd }
            if at <= HEAD_BYTES_MAX && (started || may_be_head(&rest[..at], true)) =>
        {
            Head::Is(&rest[..at], at + len)
        }
        Found::Marker { .. } => Head::None,
        Found::Nothing { safe } if safe > HEAD_BYTES_MAX => Head::None,
        // A head that was cut off says nothing.
        Found::Nothing { .. } if last && (started || may_be_head(rest, last)) => {
            Head::Restart(rest.len())
        }
        Found::Nothing { .. } if last => Head::None,
        Found::Nothing { safe } if safe < rest.len() && rest[..safe].trim().is_empty() => {
            Head::Wait
        }
        Found::Nothing { .. } if started || may_be_head(rest, last) => Head::Wait,
        Found::Nothing { .. } => Head::None,
    }
}

fn may_be_head(rest: &str, whole: bool) -> bool {
    let rest = rest.trim_start();
    let mut beginnings = ["<|channel|>", "<|constrain|>", "to=", "assistant"].iter();
    let begins =
        |beginning: &str| rest.starts_with(beginning) || (!whole && beginning.starts_with(rest));
    rest.is_empty() || beginnings.any(|beginning| begins(beginning))
}

/// Whom the message under `head` is for.
pub(super) fn recipient(format: MessageFormat, head: &str) -> Recipient {
    let named = words(head).find_map(|word| word.strip_prefix("to="));
    let channel = head.split_once("<|channel|>").and_then(|(_, channel)| words(channel).next());
    match (format, named) {
        (_, Some("self")) => Recipient::Itself,
        (MessageFormat::Harmony, Some(name)) if !matches!(name, "user" | "all" | "assistant") => {
            Recipient::Tool(name.strip_prefix("functions.").unwrap_or(name).to_owned())
        }
        (MessageFormat::Harmony, _) if channel == Some("analysis") => Recipient::Itself,
        (MessageFormat::Harmony | MessageFormat::MuseSpark, _) => Recipient::User,
    }
}

/// The parts of a head between spaces and markers.
fn words(head: &str) -> impl Iterator<Item = &str> {
    head.split(|next: char| next.is_whitespace() || matches!(next, '<' | '>' | '|'))
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_whom_its_message_is_for() {
        let check = |head, expected| assert_eq!(recipient(MessageFormat::Harmony, head), expected);
        let weather = || Recipient::Tool("get_weather".to_owned());
        check("assistant<|channel|>analysis", Recipient::Itself);
        check("<|channel|>final", Recipient::User);
        check("<|channel|>commentary", Recipient::User);
        check("<|channel|>commentary to=functions.get_weather <|constrain|>json", weather());
        check(" to=functions.get_weather<|channel|>commentary json", weather());
        check("<|channel|>analysis to=python code", Recipient::Tool("python".to_owned()));
        assert_eq!(recipient(MessageFormat::MuseSpark, " to=self"), Recipient::Itself);
        assert_eq!(recipient(MessageFormat::MuseSpark, " to=user"), Recipient::User);
        assert_eq!(recipient(MessageFormat::MuseSpark, "assistant to=files"), Recipient::User);
    }

    #[test]
    fn text_that_is_no_head_is_known_soon() {
        let head = |rest| head(MessageFormat::Harmony, rest, false, false);
        assert_eq!(head("<|chan"), Head::Wait);
        assert_eq!(head("Hello"), Head::None);
        assert_eq!(head("<|channel|>final<|message|>x"), Head::Is("<|channel|>final", 27));
        assert_eq!(head("\n<|start|>assistant"), Head::Restart(10));
    }
}

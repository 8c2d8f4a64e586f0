//! The line about accounting with which Claude Code begins its system prompts.
//!
//! `x-anthropic-billing-header: cc_version=2.1.37.3a3; cc_entrypoint=cli; cch=c5a82;` differs from request to
//! request, so that no prompt would begin like a kept one. It is meant for Anthropic's servers and tells a model
//! nothing: it is left out of the prompt, in whichever dialect it comes.

use std::borrow::Cow;

use serde_json::Value;

const LINE: &str = "x-anthropic-billing-header:";

/// `messages` without that line at their beginning.
pub(super) fn without_line(messages: &[Value]) -> Cow<'_, [Value]> {
    let first = messages.first().filter(|first| first["role"] == "system");
    let text = first.and_then(|first| first["content"].as_str());
    match text.and_then(after_line) {
        None => messages.into(),
        Some("") if messages.len() > 1 => messages[1..].into(),
        Some(rest) => {
            let mut messages = messages.to_vec();
            messages[0]["content"] = rest.into();
            messages.into()
        }
    }
}

/// What follows the line, if `text` begins with it. Some translators join the next text to it without a line
/// break, so it ends behind its last pair of name and value.
fn after_line(text: &str) -> Option<&str> {
    let line = text.trim_start().strip_prefix(LINE)?;
    let mut rest = line;
    while let Some(after) = after_pair(rest) {
        rest = after;
    }
    if rest.len() == line.len() {
        rest = line.split_once('\n').unwrap_or_default().1;
    }
    Some(rest.trim_start())
}

/// What follows `NAME=VALUE;` at the beginning of `text`.
fn after_pair(text: &str) -> Option<&str> {
    let (name, rest) = text.trim_start_matches(' ').split_once('=')?;
    let names = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let named = !name.is_empty() && name.bytes().all(names);
    let rest = &rest[rest.find([';', '\n']).unwrap_or(rest.len())..];
    named.then(|| rest.strip_prefix(';').unwrap_or(rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #[test]
        fn whatever_the_line_holds_all_that_follows_stays(
            pairs in prop::collection::vec(("[a-z_]{1,8}", "[^;\n]{0,9}"), 0..5),
            text in "([A-Z<#][^=]{0,30})?",
            joined in any::<bool>(),
        ) {
            let told: Vec<_> = pairs.iter().map(|(name, value)| format!(" {name}={value};")).collect();
            // Where nothing ends the line, only its end does.
            let between = if joined && !pairs.is_empty() { "" } else { "\n" };
            let whole = format!("{LINE}{}{between}{text}", told.concat());
            prop_assert_eq!(after_line(&whole), Some(text.as_str()));
        }

        #[test]
        fn a_text_without_the_line_is_left_alone(text in "[^x]{0,30}") {
            prop_assert_eq!(after_line(&text), None);
        }
    }

    #[test]
    fn the_line_goes_from_the_first_system_message_and_from_nowhere_else() {
        let line = format!("{LINE} cc_version=2.1.37.3a3; cc_entrypoint=cli; cch=c5a82;");
        let [system, user] = [("system", "Be kind."), ("user", "hi")]
            .map(|(role, content)| json!({"role": role, "content": content}));
        let with_line =
            |content: &str| json!({"role": "system", "content": format!("{line}{content}")});
        let clean = [system.clone(), user.clone()];
        for between in ["", "\n", "\n\n"] {
            let told = [with_line(&format!("{between}Be kind.")), user.clone()];
            assert_eq!(*without_line(&told), clean, "{between:?}");
        }
        assert_eq!(*without_line(&[with_line(""), system.clone(), user.clone()]), clean);
        let quoted = [system, json!({"role": "user", "content": line})];
        assert_eq!(*without_line(&quoted), quoted);
        let other =
            [json!({"role": "system", "content": format!("{LINE} all new\nBe kind.")}), user];
        assert_eq!(*without_line(&other), clean);
    }
}

//! Pieces of JSON text.

use std::fmt::Write;

/// Appends `text` as the inside of a JSON string.
pub(super) fn push_escaped(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\u{0}'..='\u{1f}' => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            other => out.push(other),
        }
    }
}

/// `text` as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    push_escaped(text, &mut out);
    out.push('"');
    out
}

/// The JSON of a number, a truth value or nothing, as JSON and Python spell them; JSON has no
/// infinities, so those are null, and so is what no double can hold.
pub(super) fn literal(word: &str) -> Option<String> {
    let literal = match word {
        "true" | "True" => "true",
        "false" | "False" => "false",
        "null" | "None" | "NaN" | "Infinity" | "-Infinity" => "null",
        _ if is_json_number(word) => {
            let finite = word.parse::<f64>().is_ok_and(f64::is_finite);
            if finite { word } else { "null" }
        }
        _ => return python_number(word),
    };
    Some(literal.to_owned())
}

/// RFC 8259, section 6.
fn is_json_number(word: &str) -> bool {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let rest = word.strip_prefix('-').unwrap_or(word);
    let whole = digits(rest);
    if whole == 0 || (whole > 1 && rest.starts_with('0')) {
        return false;
    }
    let mut rest = &rest[whole..];
    if let Some(fraction) = rest.strip_prefix('.') {
        let count = digits(fraction);
        if count == 0 {
            return false;
        }
        rest = &fraction[count..];
    }
    if let Some(exponent) = rest.strip_prefix(['e', 'E']) {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        return !exponent.is_empty() && digits(exponent) == exponent.len();
    }
    rest.is_empty()
}

/// Numbers that Python and people write and JSON does not: `+1`, `.5`, `5.`, `1_000`, `007`.
fn python_number(word: &str) -> Option<String> {
    let word = word.strip_prefix('+').unwrap_or(word);
    let starts = |character: char| character.is_ascii_digit() || matches!(character, '.' | '-');
    if !word.starts_with(starts) {
        return None;
    }
    let digits: String = word.chars().filter(|character| *character != '_').collect();
    if let Ok(whole) = digits.parse::<i64>() {
        return Some(whole.to_string());
    }
    let real = digits.parse::<f64>().ok().filter(|real| real.is_finite())?;
    serde_json::Number::from_f64(real).map(|number| number.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_escaped_text_is_the_text_again(text in any::<String>()) {
            prop_assert_eq!(serde_json::from_str::<String>(&quoted(&text)).unwrap(), text);
        }

        #[test]
        fn every_literal_is_json(word in "[-+0-9._eE]{1,8}|[a-zA-Z]{1,5}") {
            if let Some(literal) = literal(&word) {
                prop_assert!(serde_json::from_str::<serde_json::Value>(&literal).is_ok(), "{literal}");
            }
        }
    }

    #[test]
    fn numbers_stay_as_they_are_written() {
        for number in ["0", "-0", "10", "1.50", "-2e10", "1E-3", "12345678901234567890123"] {
            assert_eq!(literal(number).as_deref(), Some(number));
        }
        for (word, number) in
            [("+1", "1"), (".5", "0.5"), ("5.", "5.0"), ("1_000", "1000"), ("007", "7")]
        {
            assert_eq!(literal(word).as_deref(), Some(number));
        }
        for word in ["", "-", "1.2.3", "0x1f", "e5", "abc", "--1"] {
            assert_eq!(literal(word), None, "{word}");
        }
    }
}

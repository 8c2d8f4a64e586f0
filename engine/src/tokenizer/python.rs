//! What chat templates take from Python: `json.dumps`, the spelling of floats, and `strftime`.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// The arguments of Python's `json.dumps` that templates use.
#[derive(Debug, Clone, Default)]
pub(super) struct JsonStyle {
    /// One level of indentation; `None` writes one line.
    pub(super) indent: Option<String>,
    /// Whether other characters than ASCII are escaped.
    pub(super) ascii_only: bool,
    pub(super) sort_keys: bool,
    /// Between items and after a key; `None` means Python's defaults.
    pub(super) separators: Option<(String, String)>,
}

/// `json.dumps` of `value`; an undefined value is refused, as Python refuses it.
pub(super) fn to_json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let item = if style.indent.is_some() { "," } else { ", " };
    let defaults = (item.to_owned(), ": ".to_owned());
    let (item, key) = style.separators.clone().unwrap_or(defaults);
    let mut writer = JsonWriter { text: String::new(), style, item, key, depth: 0 };
    writer.value(value)?;
    Ok(writer.text)
}

struct JsonWriter<'a> {
    text: String,
    style: &'a JsonStyle,
    item: String,
    key: String,
    depth: usize,
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.text.push_str(&scalar(value));
            }
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value)?,
            ValueKind::Map => self.mapping(value)?,
            kind => {
                let message = format!("a value of kind {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        Ok(())
    }

    fn sequence(&mut self, value: &Value) -> Result<(), Error> {
        let items: Vec<Value> = value.try_iter()?.collect();
        self.container(('[', ']'), &items, Self::value)
    }

    fn mapping(&mut self, value: &Value) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.style.sort_keys {
            keys.sort();
        }
        self.container(('{', '}'), &keys, |writer, key| {
            match key.as_str() {
                Some(key) => writer.string(key),
                None => writer.string(&scalar(key)),
            }
            writer.text.push_str(&writer.key.clone());
            writer.value(&value.get_item(key)?)
        })
    }

    fn container(
        &mut self,
        (open, close): (char, char),
        items: &[Value],
        write_item: impl Fn(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.text.push(open);
        self.depth += 1;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.text.push_str(&self.item.clone());
            }
            self.new_line();
            write_item(self, item)?;
        }
        self.depth -= 1;
        if !items.is_empty() {
            self.new_line();
        }
        self.text.push(close);
        Ok(())
    }

    fn new_line(&mut self) {
        if let Some(indent) = &self.style.indent {
            self.text.push('\n');
            self.text.push_str(&indent.repeat(self.depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for character in text.chars() {
            self.character(character);
        }
        self.text.push('"');
    }

    fn character(&mut self, character: char) {
        match character {
            '"' => self.text.push_str("\\\""),
            '\\' => self.text.push_str("\\\\"),
            '\n' => self.text.push_str("\\n"),
            '\r' => self.text.push_str("\\r"),
            '\t' => self.text.push_str("\\t"),
            '\u{8}' => self.text.push_str("\\b"),
            '\u{c}' => self.text.push_str("\\f"),
            plain if plain >= ' ' && (!self.style.ascii_only || plain < '\u{7f}') => {
                self.text.push(plain);
            }
            '\u{7f}' => self.text.push('\u{7f}'),
            escaped => {
                for unit in escaped.encode_utf16(&mut [0; 2]) {
                    let _infallible = write!(self.text, "\\u{unit:04x}");
                }
            }
        }
    }
}

/// `null`, `true`, `false` or a number, as JSON has them in Python.
fn scalar(value: &Value) -> String {
    match value.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => value.is_true().to_string(),
        _ => match f64::try_from(value.clone()) {
            Ok(real) if !value.is_integer() => json_float(real),
            _ => value.to_string(),
        },
    }
}

fn json_float(real: f64) -> String {
    match real {
        _ if real.is_nan() => "NaN".to_owned(),
        _ if real.is_infinite() => if real > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        _ => float_repr(real),
    }
}

/// Python's `repr` of a finite float: the shortest digits that read back the same, with an
/// exponent below 1e-4 and from 1e16 on.
fn float_repr(real: f64) -> String {
    let scientific = format!("{real:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(-4..16) | Err(_) => format!("{real:?}"),
        Ok(exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
    }
}

/// Python's `strftime` for the UTC time `unix_seconds`; a directive it does not know stays as it is.
pub(super) fn strftime(format: &str, unix_seconds: u64) -> String {
    CivilTime::from_unix(unix_seconds).format(format)
}

fn without_padding(padded: &str) -> &str {
    let bare = padded.trim_start_matches(['0', ' ']);
    if bare.is_empty() && !padded.is_empty() { "0" } else { bare }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTH_DAYS: [u64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// A UTC time in the Gregorian calendar; months and days count from 0.
struct CivilTime {
    year: u64,
    month: usize,
    day: u64,
    year_day: u64,
    weekday: usize,
    second_of_day: u64,
}

impl CivilTime {
    fn from_unix(unix_seconds: u64) -> Self {
        let days = unix_seconds / 86_400;
        // The calendar repeats after 400 years of 146097 days.
        let (mut year, mut year_day) = (1970 + days / 146_097 * 400, days % 146_097);
        while year_day >= days_in_year(year) {
            year_day -= days_in_year(year);
            year += 1;
        }
        let (mut month, mut day) = (0, year_day);
        while day >= days_in_month(year, month) {
            day -= days_in_month(year, month);
            month += 1;
        }
        let weekday = usize::try_from(days % 7).unwrap_or_default();
        Self { year, month, day, year_day, weekday, second_of_day: unix_seconds % 86_400 }
    }

    fn format(&self, format: &str) -> String {
        let mut text = String::new();
        let mut characters = format.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                text.push(character);
                continue;
            }
            let mut directive = characters.next();
            let bare = directive == Some('-');
            if bare {
                directive = characters.next();
            }
            match directive.and_then(|directive| self.directive(directive)) {
                Some(padded) if bare => text.push_str(without_padding(&padded)),
                Some(padded) => text.push_str(&padded),
                None => {
                    text.push_str(if bare { "%-" } else { "%" });
                    text.extend(directive);
                }
            }
        }
        text
    }

    fn directive(&self, directive: char) -> Option<String> {
        let (hour, minute) = (self.second_of_day / 3600, self.second_of_day / 60 % 60);
        let hour_of_12 = (hour + 11) % 12 + 1;
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year % 100),
            'm' => format!("{:02}", self.month + 1),
            'B' => MONTHS[self.month].to_owned(),
            'b' | 'h' => MONTHS[self.month][..3].to_owned(),
            'd' => format!("{:02}", self.day + 1),
            'e' => format!("{:2}", self.day + 1),
            'j' => format!("{:03}", self.year_day + 1),
            'A' => WEEKDAYS[self.weekday].to_owned(),
            'a' => WEEKDAYS[self.weekday][..3].to_owned(),
            'H' => format!("{hour:02}"),
            'I' => format!("{hour_of_12:02}"),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'M' => format!("{minute:02}"),
            'S' => format!("{:02}", self.second_of_day % 60),
            'F' => self.format("%Y-%m-%d"),
            'T' => self.format("%H:%M:%S"),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in_year(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn days_in_month(year: u64, month: usize) -> u64 {
    MONTH_DAYS[month] + u64::from(month == 1 && is_leap(year))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_spelled_as_python_spells_them() {
        let spelled = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (123_456_789_012_345.6, "123456789012345.6"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (-2.5e100, "-2.5e+100"),
        ];
        for (real, expected) in spelled {
            assert_eq!(float_repr(real), expected);
        }
    }

    #[test]
    fn keys_that_are_not_strings_become_strings() {
        let pairs = [(Value::from(7), 2), (Value::from(true), 3), (Value::from(()), 4)];
        let json = to_json(&Value::from_pairs(pairs), &JsonStyle::default()).unwrap();
        assert_eq!(json, r#"{"7": 2, "true": 3, "null": 4}"#);
    }

    #[test]
    fn control_characters_are_escaped_and_others_only_when_asked() {
        let value = Value::from("\u{1}\n\u{7f}é😀");
        let json = |ascii_only| {
            to_json(&value, &JsonStyle { ascii_only, ..JsonStyle::default() }).unwrap()
        };
        assert_eq!(json(false), "\"\\u0001\\n\u{7f}é😀\"");
        assert_eq!(json(true), "\"\\u0001\\n\u{7f}\\u00e9\\ud83d\\ude00\"");
    }

    #[test]
    fn an_undefined_value_is_no_json() {
        assert!(to_json(&Value::UNDEFINED, &JsonStyle::default()).is_err());
    }

    #[test]
    fn times_are_written_as_python_writes_them() {
        let every = "%Y %y %m %B %b %d %-d %e %j %A %a %H %I %p %M %S %F %T %Z %z %% %Q %-Q %";
        let check = |seconds, expected: &str| assert_eq!(strftime(every, seconds), expected);
        check(
            0,
            "1970 70 01 January Jan 01 1  1 001 Thursday Thu 00 12 AM 00 00 1970-01-01 00:00:00 \
             UTC +0000 % %Q %-Q %",
        );
        check(
            1_709_210_096,
            "2024 24 02 February Feb 29 29 29 060 Thursday Thu 12 12 PM 34 56 2024-02-29 12:34:56 \
             UTC +0000 % %Q %-Q %",
        );
        check(
            4_107_542_399,
            "2100 00 02 February Feb 28 28 28 059 Sunday Sun 23 11 PM 59 59 2100-02-28 23:59:59 \
             UTC +0000 % %Q %-Q %",
        );
    }
}

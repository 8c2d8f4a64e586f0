//! Numbers of bytes as people write and read them.

use std::fmt;

/// The suffixes that are read, with or without a `B` after them: powers of 1000, and with an `i` of
/// 1024. A longer suffix comes before the one that it ends in.
const UNITS: [(&str, u64); 9] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("k", 1_000),
    ("K", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
];

/// A number of bytes, shown in decimal units: `1.2 GB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteCount(pub u64);

impl fmt::Display for ByteCount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        match bytes {
            0..1_000 => write!(formatter, "{bytes} B"),
            // The limits lie where one digit would round up to the next unit.
            1_000..999_950 => write!(formatter, "{:.1} kB", bytes as f64 / 1e3),
            999_950..999_950_000 => write!(formatter, "{:.1} MB", bytes as f64 / 1e6),
            999_950_000..999_950_000_000 => write!(formatter, "{:.1} GB", bytes as f64 / 1e9),
            _ => write!(formatter, "{:.1} TB", bytes as f64 / 1e12),
        }
    }
}

/// Reads `4096`, `4k`, `1.5G`, `1.5GB`, `512Mi` or `512MiB`; `None` when it is none of those.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.strip_suffix('B').unwrap_or(text);
    let unit = UNITS.iter().find(|(suffix, _)| text.ends_with(suffix));
    let (number, unit_bytes) = match unit {
        Some((suffix, unit_bytes)) => (&text[..text.len() - suffix.len()], *unit_bytes),
        None => (text, 1),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || number.ends_with('.') {
        return None;
    }
    if !fraction.is_empty() && unit_bytes == 1 {
        return None;
    }
    let whole_bytes = whole.parse::<u64>().ok()?.checked_mul(unit_bytes)?;
    let fraction_of_unit: f64 = format!("0.{fraction}0").parse().ok()?;
    whole_bytes.checked_add((fraction_of_unit * unit_bytes as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_plain_and_with_decimal_and_binary_suffixes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4k", 4_000),
            ("4K", 4_000),
            ("4kB", 4_000),
            ("1.5M", 1_500_000),
            ("2G", 2_000_000_000),
            ("2GB", 2_000_000_000),
            ("1Ki", 1_024),
            ("1KiB", 1_024),
            ("512Mi", 536_870_912),
            ("1.5Gi", 1_610_612_736),
            ("0.25Ti", 274_877_906_944),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_number_of_bytes_is_refused() {
        for text in [
            "",
            "G",
            "B",
            ".5G",
            "1.G",
            "1.5",
            "1.5B",
            "-1",
            "+1",
            "1e9",
            "1 G",
            "1g",
            "1Gib",
            "1.2.3G",
            "0x10",
            "inf",
            "NaN",
            "99999999999T",
            "18446744073709551616",
            "1GG",
        ] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }

    #[test]
    fn bytes_are_shown_in_the_unit_that_leaves_one_to_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (999_949, "999.9 kB"),
            (999_950, "1.0 MB"),
            (300_000_000, "300.0 MB"),
            (1_240_000_000, "1.2 GB"),
            (999_950_000_000, "1.0 TB"),
        ] {
            assert_eq!(ByteCount(bytes).to_string(), text);
        }
    }
}

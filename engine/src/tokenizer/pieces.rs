//! What each token contributes to the text, for the decoders whose pieces are bytes.
//!
//! Two families cover nearly every language model: byte-level BPE, where the vocabulary spells each
//! byte as one printable character (GPT-2's table), and SentencePiece-like vocabularies with byte
//! fallback, where `<0xE2>` is a byte, other tokens are text, and `▁` is a space.

use tokenizers::decoders::DecoderWrapper;
use tokenizers::normalizers::replace::Replace;
use tokenizers::{Decoder, Result};

/// How a token's spelling becomes bytes.
#[derive(Debug)]
pub(super) struct Pieces {
    spelling: Spelling,
    /// Characters taken off the front of the whole text.
    pub(super) lead: Option<Lead>,
}

/// Up to `count_max` times `content` are dropped at the start of a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lead {
    pub(super) content: char,
    pub(super) count_max: usize,
}

#[derive(Debug)]
enum Spelling {
    ByteLevel,
    ByteFallback { replacements: Vec<Replace> },
}

impl Pieces {
    /// The pieces of `decoder`, or `None` if its tokens are not independent bytes.
    pub(super) fn of(decoder: Option<&DecoderWrapper>) -> Option<Self> {
        let mut steps = Vec::new();
        flatten(decoder?, &mut steps);
        if let [DecoderWrapper::ByteLevel(_)] = steps[..] {
            return Some(Self { spelling: Spelling::ByteLevel, lead: None });
        }
        let replaced = steps.iter().map_while(|step| match step {
            DecoderWrapper::Replace(replace) => Some(replace.clone()),
            _ => None,
        });
        let replacements: Vec<Replace> = replaced.collect();
        let lead = after_replacements(&steps[replacements.len()..])?;
        Some(Self { spelling: Spelling::ByteFallback { replacements }, lead })
    }

    /// The bytes of one token.
    pub(super) fn bytes(&self, token: String) -> Result<Vec<u8>> {
        match &self.spelling {
            Spelling::ByteLevel => Ok(byte_level(token)),
            Spelling::ByteFallback { replacements } => byte_fallback(token, replacements),
        }
    }
}

fn flatten<'a>(decoder: &'a DecoderWrapper, steps: &mut Vec<&'a DecoderWrapper>) {
    match decoder {
        DecoderWrapper::Sequence(sequence) => {
            sequence.get_decoders().iter().for_each(|step| flatten(step, steps));
        }
        step => steps.push(step),
    }
}

/// Recognises byte fallback and what may follow it; a strip means the whole text only once the
/// pieces are fused, and one at the end would need all of the text.
fn after_replacements(steps: &[&DecoderWrapper]) -> Option<Option<Lead>> {
    match steps {
        [DecoderWrapper::ByteFallback(_)]
        | [DecoderWrapper::ByteFallback(_), DecoderWrapper::Fuse(_)] => Some(None),
        [
            DecoderWrapper::ByteFallback(_),
            DecoderWrapper::Fuse(_),
            DecoderWrapper::Strip(strip),
        ] if strip.stop == 0 => Some(Some(Lead { content: strip.content, count_max: strip.start })),
        _ => None,
    }
}

/// A token with a character that spells no byte is an added token: it is plain text.
fn byte_level(token: String) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    bytes.unwrap_or_else(|| token.into_bytes())
}

/// The byte that a character of a byte-level vocabulary spells. Printable Latin-1 characters spell
/// themselves; the other bytes, in ascending order, are the characters from U+0100 on.
fn byte_of(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

fn byte_fallback(token: String, replacements: &[Replace]) -> Result<Vec<u8>> {
    let mut text = token;
    for replacement in replacements {
        text = replacement.decode_chain(vec![text])?.concat();
    }
    Ok(match fallback_byte(&text) {
        Some(byte) => vec![byte],
        None => text.into_bytes(),
    })
}

/// The byte that `<0x0A>` names.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_byte_level_table_has_one_character_for_each_byte() {
        let bytes: HashSet<u8> =
            (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        let characters = (0..0x200).filter_map(char::from_u32).filter(|c| byte_of(*c).is_some());
        assert_eq!((bytes.len(), characters.count()), (256, 256));
    }

    #[test]
    fn the_byte_level_table_is_the_one_of_the_tokenizers_crate() {
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        assert!(alphabet.into_iter().all(|character| byte_of(character).is_some()));
        let decoder = tokenizers::pre_tokenizers::byte_level::ByteLevel::default();
        for byte in 0..0x80 {
            let character =
                (0..0x200).filter_map(char::from_u32).find(|c| byte_of(*c) == Some(byte));
            let decoded = decoder.decode(vec![character.unwrap().to_string()]).unwrap();
            assert_eq!(decoded.as_bytes(), [byte]);
        }
    }

    #[test]
    fn only_two_hexadecimal_digits_name_a_byte() {
        assert_eq!(fallback_byte("<0x0a>"), Some(0x0A));
        assert_eq!(fallback_byte("<0xFF>"), Some(0xFF));
        for token in ["<0x>", "<0x0>", "<0x000>", "<0xZZ>", "<0xé>", "0x0A", "<0x0A"] {
            assert_eq!(fallback_byte(token), None, "{token}");
        }
    }
}

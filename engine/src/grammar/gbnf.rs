//! Grammars in GBNF, as llama.cpp writes them, in llguidance's dialect of Lark.
//!
//! Rules are renamed (`root` is `start`, the others are numbered), since GBNF's names may be any words.
//! Literals and character classes stay what they are: terminals of one literal or one character, so the
//! converted grammar says the same texts whatever follows what.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::constraint::literal;
use crate::error::{Code, Error, Result};

/// The largest number of a repetition.
const REPETITIONS_MAX: u32 = 10_000;

/// Whether `grammar` is written in GBNF: some line begins a rule with `::=`.
pub(super) fn is_gbnf(grammar: &str) -> bool {
    grammar.lines().any(|line| {
        let rest = line.trim_start().trim_start_matches(is_name);
        rest.len() < line.trim_start().len() && rest.trim_start().starts_with("::=")
    })
}

/// The same grammar in Lark.
///
/// # Errors
/// `InvalidRequest` with the line of the fault.
pub(super) fn to_lark(grammar: &str) -> Result<String> {
    let tokens = Scanner { rest: grammar, line: 1 }.tokens()?;
    let names = rule_names(&tokens)?;
    let mut lark = String::new();
    for (index, (token, line)) in tokens.iter().enumerate() {
        let defines = tokens.get(index + 1).is_some_and(|(next, _)| *next == Token::Defines);
        match token {
            Token::Name(name) => {
                let new_name = names
                    .get(name.as_str())
                    .ok_or_else(|| fault(*line, &format!("the rule `{name}` is not defined")))?;
                let lead = if defines { "\n" } else { " " };
                lark.push_str(lead);
                lark.push_str(new_name);
            }
            Token::Defines => lark.push(':'),
            Token::Terminal(text) => {
                lark.push(' ');
                lark.push_str(text);
            }
            Token::Mark(mark @ ('*' | '+' | '?')) => lark.push(*mark),
            Token::Mark(mark) => {
                lark.push(' ');
                lark.push(*mark);
            }
            Token::Repeat(text) => lark.push_str(text),
        }
    }
    lark.push('\n');
    Ok(lark)
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Name(String),
    /// `::=`
    Defines,
    /// In Lark already.
    Terminal(String),
    /// One of `( ) | * + ?`.
    Mark(char),
    /// `{m,n}`, in Lark already.
    Repeat(String),
}

/// New names of all rules.
fn rule_names(tokens: &[(Token, usize)]) -> Result<HashMap<&str, String>> {
    let mut names = HashMap::new();
    for pair in tokens.windows(2) {
        let [(Token::Name(name), line), (Token::Defines, _)] = pair else {
            continue;
        };
        let new_name = match name.as_str() {
            "root" => "start".to_owned(),
            _ => format!("rule_{}", names.len()),
        };
        if names.insert(name.as_str(), new_name).is_some() {
            return Err(fault(*line, &format!("the rule `{name}` is defined twice")));
        }
    }
    match names.contains_key("root") {
        true => Ok(names),
        false => Err(fault(1, "there is no rule `root`")),
    }
}

struct Scanner<'a> {
    rest: &'a str,
    line: usize,
}

impl Scanner<'_> {
    fn tokens(mut self) -> Result<Vec<(Token, usize)>> {
        let mut tokens = Vec::new();
        while let Some(first) = self.skip_space() {
            let line = self.line;
            tokens.push((self.token(first)?, line));
        }
        Ok(tokens)
    }

    /// Passes space and comments; the character that comes next.
    fn skip_space(&mut self) -> Option<char> {
        loop {
            let next = self.rest.chars().next()?;
            match next {
                '#' => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.rest = &self.rest[end..];
                }
                space if space.is_whitespace() => {
                    self.take();
                }
                other => return Some(other),
            }
        }
    }

    fn token(&mut self, first: char) -> Result<Token> {
        match first {
            '"' => self.string(),
            '[' => self.class(),
            '.' => {
                self.take();
                Ok(Token::Terminal("/(?s:.)/".to_owned()))
            }
            '{' => self.repeat(),
            ':' if self.rest.starts_with("::=") => {
                self.rest = &self.rest[3..];
                Ok(Token::Defines)
            }
            '(' | ')' | '|' | '*' | '+' | '?' => {
                self.take();
                Ok(Token::Mark(first))
            }
            first if is_name(first) => {
                let end = self.rest.find(|next| !is_name(next)).unwrap_or(self.rest.len());
                let (name, rest) = self.rest.split_at(end);
                self.rest = rest;
                Ok(Token::Name(name.to_owned()))
            }
            other => Err(self.fault(&format!("`{other}` is not expected here"))),
        }
    }

    fn string(&mut self) -> Result<Token> {
        self.take();
        let mut text = String::new();
        loop {
            match self.take() {
                Some('"') => return Ok(Token::Terminal(literal(&text))),
                Some('\\') => text.push(self.escaped()?),
                Some(other) => text.push(other),
                None => return Err(self.fault("a string has no end")),
            }
        }
    }

    fn class(&mut self) -> Result<Token> {
        self.take();
        let mut regex = String::from("/[");
        if self.rest.starts_with('^') {
            self.take();
            regex.push('^');
        }
        let start = regex.len();
        loop {
            let low = match self.take() {
                Some(']') if regex.len() > start => return Ok(Token::Terminal(regex + "]/")),
                Some(']') => return Err(self.fault("a character class is empty")),
                Some('\\') => self.escaped()?,
                Some(other) => other,
                None => return Err(self.fault("a character class has no end")),
            };
            let high = self.range_end()?.unwrap_or(low);
            if high < low {
                return Err(self.fault(&format!("the range `{low}-{high}` runs backwards")));
            }
            // Writing to a string cannot fail.
            let _ = write!(regex, "\\x{{{:x}}}-\\x{{{:x}}}", u32::from(low), u32::from(high));
        }
    }

    /// The end of a range that begins here, if one does. A hyphen before the `]` is itself.
    fn range_end(&mut self) -> Result<Option<char>> {
        if !self.rest.starts_with('-') || self.rest.starts_with("-]") {
            return Ok(None);
        }
        self.take();
        match self.take() {
            Some('\\') => self.escaped().map(Some),
            Some(other) => Ok(Some(other)),
            None => Err(self.fault("a character class has no end")),
        }
    }

    /// The character that stands behind a backslash.
    fn escaped(&mut self) -> Result<char> {
        let digits = match self.take() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(other) if !other.is_alphanumeric() => return Ok(other),
            other => {
                let name = other.map_or_else(String::new, |other| other.to_string());
                return Err(self.fault(&format!("`\\{name}` is no escape")));
            }
        };
        let code = self.rest.get(..digits).and_then(|code| u32::from_str_radix(code, 16).ok());
        let character = code.and_then(char::from_u32);
        let character =
            character.ok_or_else(|| self.fault(&format!("an escape needs {digits} hex digits")))?;
        self.rest = &self.rest[digits..];
        Ok(character)
    }

    fn repeat(&mut self) -> Result<Token> {
        let malformed = "a repetition is written `{m}`, `{m,}` or `{m,n}`";
        let end = self.rest.find('}').ok_or_else(|| self.fault(malformed))?;
        let inside = &self.rest[1..end];
        let bounds: Vec<&str> = inside.split(',').map(str::trim).collect();
        let number =
            |text: &str| text.parse::<u32>().ok().filter(|times| *times <= REPETITIONS_MAX);
        let text = match bounds[..] {
            [times] => number(times).map(|times| format!("{{{times}}}")),
            [least, ""] => number(least).map(|least| format!("{{{least},}}")),
            [least, most] => {
                number(least).zip(number(most)).map(|(least, most)| format!("{{{least},{most}}}"))
            }
            _ => None,
        };
        let text = text.ok_or_else(|| self.fault(malformed))?;
        self.rest = &self.rest[end + 1..];
        Ok(Token::Repeat(text))
    }

    fn take(&mut self) -> Option<char> {
        let next = self.rest.chars().next()?;
        self.line += usize::from(next == '\n');
        self.rest = &self.rest[next.len_utf8()..];
        Some(next)
    }

    fn fault(&self, what: &str) -> Error {
        fault(self.line, what)
    }
}

fn fault(line: usize, what: &str) -> Error {
    Error::new(Code::InvalidRequest, format!("failed to read line {line} of the grammar: {what}"))
}

fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '-' || character == '_'
}

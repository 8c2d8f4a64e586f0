//! Calls of tools in a model's own markup, as a grammar around the schemas of their arguments.

use std::fmt::Write as _;

use super::constraint::literal;
use super::schema;
use super::vocabulary::Vocabulary;
use crate::error::{Code, Error, Result};

/// An answer that calls tools.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Calls {
    /// What comes before the first call.
    pub open: Vec<Part>,
    /// What a call may be, one way for each tool at least.
    pub ways: Vec<Vec<Part>>,
    /// What comes between two calls; `None` when one is all.
    pub between: Option<Vec<Part>>,
    /// What comes behind the last call.
    pub close: Vec<Part>,
    /// What the answer may be instead, if the model may do without a call.
    pub instead: Option<Part>,
}

/// A part of a call's markup.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Part {
    /// This text.
    Text(String),
    /// This marker: the special token where the vocabulary has one of the name, else its text.
    Marker(String),
    /// A match of this regular expression.
    Match(String),
    /// One of these texts.
    OneOf(Vec<String>),
    /// Any text up to the first place where this one ends it, and that one.
    Until(String),
    /// These parts, or nothing.
    Maybe(Vec<Part>),
    /// JSON that validates against this schema.
    Json {
        /// Its text.
        schema: String,
        /// Whether an unsupported keyword is an error. Otherwise it constrains nothing.
        strict: bool,
    },
}

impl Calls {
    /// Bytes of all texts.
    pub(super) fn bytes(&self) -> usize {
        let ways = self.ways.iter().flatten();
        let around = self.open.iter().chain(self.between.iter().flatten()).chain(&self.close);
        ways.chain(around).chain(&self.instead).map(Part::bytes).sum()
    }

    /// The grammar in Lark.
    ///
    /// # Errors
    /// As [`schema::prepared`]; `InvalidRequest` when there is nothing to call.
    pub(super) fn to_lark(&self, vocabulary: &Vocabulary) -> Result<String> {
        if self.ways.is_empty() {
            return Err(Error::new(Code::InvalidRequest, "there is no tool to call"));
        }
        let mut writer = Writer { vocabulary, rules: String::new(), count: 0 };
        let ways = self.ways.iter().map(|way| writer.sequence(way)).collect::<Result<Vec<_>>>()?;
        let open = writer.sequence(&self.open)?;
        let more = match &self.between {
            None => String::new(),
            Some(between) => format!("({} call)*", writer.sequence(between)?),
        };
        let close = writer.sequence(&self.close)?;
        let instead = match &self.instead {
            None => String::new(),
            Some(part) => format!(" | {}", writer.part(part)?),
        };
        let rules = writer.rules;
        let ways = ways.join(" | ");
        Ok(format!("start: {open} call {more} {close}{instead}\ncall: {ways}\n{rules}"))
    }
}

impl Part {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Marker(text) | Self::Match(text) | Self::Until(text) => {
                text.len()
            }
            Self::OneOf(texts) => texts.iter().map(String::len).sum(),
            Self::Maybe(parts) => parts.iter().map(Self::bytes).sum(),
            Self::Json { schema, .. } => schema.len(),
        }
    }
}

/// What a rule of Lark is.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Rule,
    /// One lexeme, of which one alternative may begin another.
    Terminal,
}

struct Writer<'a> {
    vocabulary: &'a Vocabulary,
    /// Rules of single parts, one a line.
    rules: String,
    count: usize,
}

impl Writer<'_> {
    fn sequence(&mut self, parts: &[Part]) -> Result<String> {
        let parts = parts.iter().map(|part| self.part(part)).collect::<Result<Vec<_>>>()?;
        Ok(parts.join(" "))
    }

    fn part(&mut self, part: &Part) -> Result<String> {
        Ok(match part {
            Part::Text(text) => literal(text),
            Part::Marker(name) => match self.vocabulary.marker_token(name) {
                Some(token) => format!("<[{token}]>"),
                None => literal(name),
            },
            Part::Match(pattern) => format!("/{}/", llguidance::regex_to_lark(pattern, "")),
            Part::OneOf(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
                self.rule(Kind::Terminal, "", &texts.join(" | "))
            }
            Part::Until(end) => match self.vocabulary.marker_token(end.trim()) {
                Some(token) => format!("/(?s:.*)/ <[{token}]>"),
                None => {
                    let suffix = format!("[suffix={}]", literal(end));
                    self.rule(Kind::Rule, &suffix, "/(?s:.*)/")
                }
            },
            Part::Maybe(parts) => format!("({})?", self.sequence(parts)?),
            Part::Json { schema, strict } => {
                let schema = schema::prepared(schema, *strict)?;
                self.rule(Kind::Rule, "", &format!("%json {schema}"))
            }
        })
    }

    /// Writes a rule and returns its name.
    fn rule(&mut self, kind: Kind, attributes: &str, body: &str) -> String {
        let name = match kind {
            Kind::Rule => format!("part_{}", self.count),
            Kind::Terminal => format!("PART_{}", self.count),
        };
        self.count += 1;
        // Writing to a string cannot fail.
        let _ = writeln!(self.rules, "{name}{attributes}: {body}");
        name
    }
}

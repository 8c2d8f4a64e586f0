//! Calls of tools in a model's own markup, as a grammar around the schemas of their arguments.

use std::fmt::Write as _;

use super::constraint::literal;
use super::schema;
use super::vocabulary::Vocabulary;
use crate::error::{Code, Error, Result};

/// An answer that calls tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Calls {
    /// What may come before everything, as often as the model likes: its thoughts, where calls are messages.
    pub lead: Vec<Part>,
    /// What comes before the first call.
    pub open: Vec<Part>,
    /// What a call may be, one way for each tool at least.
    pub ways: Vec<Vec<Part>>,
    /// What comes between two calls; `None` when one is all.
    pub between: Option<Vec<Part>>,
    /// What comes behind the last call.
    pub close: Vec<Part>,
    /// What the answer may be instead, if the model may do without a call.
    pub instead: Option<Vec<Part>>,
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
    /// A match of the first regular expression that is none of the second.
    MatchBut(String, String),
    /// One of these texts.
    OneOf(Vec<String>),
    /// Text up to the first place where these texts and markers end it, and those.
    Until {
        /// A regular expression of the text.
        body: String,
        /// What the text must not spell beside its end.
        but: Vec<String>,
        /// What ends it.
        end: Vec<Part>,
    },
    /// These parts, or nothing.
    Maybe(Vec<Part>),
    /// One of these ways.
    Either(Vec<Vec<Part>>),
    /// So many items, with the separator between them.
    List {
        /// An item.
        item: Vec<Part>,
        /// What comes between two.
        separator: String,
        /// The fewest.
        least: usize,
        /// The most; `None` for any number.
        most: Option<usize>,
    },
    /// The members in their order, with the separator between them.
    Members {
        /// What comes between two.
        separator: String,
        /// What each is, and whether it must be there.
        members: Vec<(Vec<Part>, bool)>,
    },
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
        let around = [&self.lead, &self.open, &self.close].into_iter();
        let around = around.chain(&self.between).chain(&self.instead);
        around.chain(&self.ways).map(|parts| bytes(parts)).sum()
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
        let lead = match writer.sequence(&self.lead)? {
            lead if lead.is_empty() => lead,
            lead => format!("({lead})* "),
        };
        let ways = writer.ways(&self.ways)?;
        let open = writer.sequence(&self.open)?;
        let more = match &self.between {
            None => String::new(),
            Some(between) => format!("({} call)*", writer.sequence(between)?),
        };
        let close = writer.sequence(&self.close)?;
        let instead = match &self.instead {
            None => String::new(),
            Some(parts) => format!(" | {}", writer.sequence(parts)?),
        };
        let rules = writer.rules;
        Ok(format!(
            "start: {lead}answer\nanswer: {open} call {more} {close}{instead}\ncall: {ways}\n{rules}"
        ))
    }
}

impl Part {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Marker(text) | Self::Match(text) => text.len(),
            Self::MatchBut(pattern, but) => pattern.len() + but.len(),
            Self::OneOf(texts) => texts.iter().map(String::len).sum(),
            Self::Until { body, but, end } => {
                body.len() + but.iter().map(String::len).sum::<usize>() + bytes(end)
            }
            Self::Maybe(parts) => bytes(parts),
            Self::Either(ways) => ways.iter().map(|way| bytes(way)).sum(),
            Self::List { item, separator, .. } => bytes(item) + separator.len(),
            Self::Members { members, separator } => {
                members.iter().map(|(parts, _)| bytes(parts) + separator.len()).sum()
            }
            Self::Json { schema, .. } => schema.len(),
        }
    }
}

fn bytes(parts: &[Part]) -> usize {
    parts.iter().map(Part::bytes).sum()
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

    fn ways(&mut self, ways: &[Vec<Part>]) -> Result<String> {
        let ways = ways.iter().map(|way| self.sequence(way)).collect::<Result<Vec<_>>>()?;
        Ok(ways.join(" | "))
    }

    fn part(&mut self, part: &Part) -> Result<String> {
        Ok(match part {
            Part::Text(text) => literal(text),
            Part::Marker(name) => match self.vocabulary.marker_token(name) {
                Some(token) => format!("<[{token}]>"),
                None => literal(name),
            },
            Part::Match(pattern) => regex(pattern),
            Part::MatchBut(pattern, but) => {
                let body = format!("{} & ~{}", regex(pattern), regex(but));
                self.rule(Kind::Terminal, "", &body)
            }
            Part::OneOf(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
                self.rule(Kind::Terminal, "", &texts.join(" | "))
            }
            Part::Until { body, but, end } => self.until(body, but, end)?,
            Part::Maybe(parts) => format!("({})?", self.sequence(parts)?),
            Part::Either(ways) => format!("({})", self.ways(ways)?),
            Part::List { item, separator, least, most } => {
                self.list(item, separator, *least, *most)?
            }
            Part::Members { separator, members } => self.members(separator, members)?,
            Part::Json { schema, strict } => {
                let schema = schema::prepared(schema, *strict)?;
                self.rule(Kind::Rule, "", &format!("%json {schema}"))
            }
        })
    }

    /// Where the end has a token of its own, that token ends the text, which must not spell the end either:
    /// whoever reads the answer sees no tokens.
    fn until(&mut self, body: &str, but: &[String], end: &[Part]) -> Result<String> {
        let spelled: String = end.iter().map(spelling).collect();
        let token = |part: &Part| match part {
            Part::Marker(name) => self.vocabulary.marker_token(name).is_some(),
            _ => false,
        };
        let Some(at) = end.iter().position(token) else {
            let suffix = format!("[suffix={}]", literal(&spelled));
            return Ok(self.rule(Kind::Rule, &suffix, &text_but(body, but)));
        };
        let before: String = end[..at].iter().map(spelling).collect();
        let body = format!("({body}){}", regex_of(&before));
        let text = text_but(&body, &[but, &[spelled]].concat());
        let text = self.rule(Kind::Terminal, "", &text);
        Ok(format!("{text} {}", self.sequence(&end[at..])?))
    }

    fn list(
        &mut self,
        item: &[Part],
        separator: &str,
        least: usize,
        most: Option<usize>,
    ) -> Result<String> {
        if most == Some(0) {
            return Ok(literal(""));
        }
        let item = self.sequence(item)?;
        let item = self.rule(Kind::Rule, "", &item);
        let fewest = least.saturating_sub(1);
        let more = match most {
            Some(most) => format!("{{{fewest},{}}}", most.max(least).max(1) - 1),
            None => format!("{{{fewest},}}"),
        };
        let list = format!("{item} ({} {item}){more}", literal(separator));
        Ok(if least == 0 { format!("({list})?") } else { list })
    }

    /// Two rules for each member: what may come from it on where none came before it, and where one did.
    fn members(&mut self, separator: &str, members: &[(Vec<Part>, bool)]) -> Result<String> {
        let separator = literal(separator);
        let (mut first, mut more) = (literal(""), literal(""));
        for (parts, required) in members.iter().rev() {
            let member = self.sequence(parts)?;
            let member = self.rule(Kind::Rule, "", &member);
            let or = |without: &str| {
                if *required { String::new() } else { format!(" | {without}") }
            };
            let as_first = format!("{member} {more}{}", or(&first));
            let as_next = format!("{separator} {member} {more}{}", or(&more));
            first = self.rule(Kind::Rule, "", &as_first);
            more = self.rule(Kind::Rule, "", &as_next);
        }
        Ok(first)
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

/// The text of a part that is a text or a marker; others have none.
fn spelling(part: &Part) -> &str {
    match part {
        Part::Text(text) | Part::Marker(text) => text,
        _ => "",
    }
}

/// Matches of `body` that spell none of `others`.
fn text_but(body: &str, others: &[String]) -> String {
    if others.is_empty() {
        return regex(body);
    }
    let others: Vec<String> = others.iter().map(|other| regex_of(other)).collect();
    let spells = format!("(?s:.*)({})(?s:.*)", others.join("|"));
    format!("{} & ~{}", regex(body), regex(&spells))
}

fn regex(pattern: &str) -> String {
    format!("/{}/", llguidance::regex_to_lark(pattern, ""))
}

/// The regular expression that matches `text` alone.
fn regex_of(text: &str) -> String {
    text.chars().map(|next| format!("\\x{{{:x}}}", u32::from(next))).collect()
}

//! What is asked of the hub.

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::hub::WeightDtype;
use crate::hub::repo::{RepoId, Revision};
use crate::hub::search::{SearchOrder, SearchQuery};
use crate::hub::token::Token;
use crate::limits;
use crate::wire::Fields;
use crate::wire::fields::shortened;
use crate::wire::models::flag;

/// Characters of what is searched for.
const TEXT_CHARS_MAX: usize = 200;

/// A model to fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchRequest {
    /// Which.
    pub repo: RepoId,
    /// At which branch, tag or commit.
    pub revision: Revision,
    /// Bytes per second that all downloads together keep to from then on; 0 is no bound.
    pub bytes_per_second: Option<u64>,
}

/// A GGUF file to import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportRequest {
    /// Where it lies.
    pub path: PathBuf,
    /// What the model is to be called.
    pub out: Option<RepoId>,
    /// The type to write weights in.
    pub dtype: WeightDtype,
}

/// A model to convert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvertRequest {
    /// What it is called.
    pub model: String,
    /// What the new one is to be called.
    pub out: Option<RepoId>,
    /// Bits of a packed number.
    pub bits: i32,
    /// Numbers that share a scale.
    pub group_size: i32,
}

/// Reads the repository that a path names.
///
/// # Errors
/// `InvalidRequest` for what is none.
pub fn repo(id: &str) -> Result<RepoId> {
    id.parse()
}

/// Reads the number of the job that a path names.
///
/// # Errors
/// `InvalidRequest` for what is no number.
pub fn job(id: &str) -> Result<u64> {
    id.parse().map_err(|_| Error::invalid("id", format!("`{}` is no job", shortened(id))))
}

/// Reads `revision` of a query.
///
/// # Errors
/// `InvalidRequest` for what is none.
pub fn revision(query: &HashMap<String, String>) -> Result<Revision> {
    query.get("revision").map_or_else(|| Ok(Revision::default()), |text| text.parse())
}

/// Reads the query of a search: `q`, `all`, `sort`, `limit`.
///
/// # Errors
/// `InvalidRequest`, naming the parameter.
pub fn search(query: &HashMap<String, String>) -> Result<SearchQuery> {
    let text = query.get("q").cloned().unwrap_or_default();
    if text.chars().count() > TEXT_CHARS_MAX || text.chars().any(char::is_control) {
        let message = format!("`q` must be a line of at most {TEXT_CHARS_MAX} characters");
        return Err(Error::invalid("q", message));
    }
    let all = flag("all", query.get("all").map(String::as_str))?;
    let order = query.get("sort").map_or(Ok(SearchOrder::Downloads), |sort| order(sort))?;
    let hits_max = query.get("limit").map_or(Ok(limits::SEARCH_HITS_DEFAULT), |text| hits(text))?;
    Ok(SearchQuery { text, mlx_only: !all, order, hits_max })
}

fn order(text: &str) -> Result<SearchOrder> {
    shortened(text).parse()
}

fn hits(text: &str) -> Result<usize> {
    let hits = text.parse().ok().filter(|hits| (1..=limits::SEARCH_HITS_MAX).contains(hits));
    hits.ok_or_else(|| {
        let (most, got) = (limits::SEARCH_HITS_MAX, shortened(text));
        Error::invalid("limit", format!("`limit` must be between 1 and {most}, got `{got}`"))
    })
}

/// Reads the body that starts a download.
///
/// # Errors
/// `InvalidRequest`, naming the field.
pub fn fetch(body: &Value) -> Result<FetchRequest> {
    let fields = Fields::of_body(body)?;
    let repo = fields.required_text("repo")?.parse()?;
    let revision = fields.text("revision")?.map_or_else(|| Ok(Revision::default()), str::parse)?;
    let bytes = fields.integer("bytes_per_second", 0..=i64::MAX)?;
    Ok(FetchRequest { repo, revision, bytes_per_second: bytes.map(i64::unsigned_abs) })
}

/// Reads the body that keeps a token.
///
/// # Errors
/// `InvalidRequest`, naming the field and nothing of what it holds.
pub fn token(body: &Value) -> Result<Token> {
    let fields = Fields::of_body(body)?;
    match fields.required("token")? {
        Value::String(text) => Token::parse(text),
        _ => Err(Error::invalid("token", "`token` must be a string")),
    }
}

/// Reads the body that imports a file.
///
/// # Errors
/// `InvalidRequest`, naming the field.
pub fn import(body: &Value) -> Result<ImportRequest> {
    let fields = Fields::of_body(body)?;
    let path = PathBuf::from(fields.required_text("path")?);
    let dtype = match fields.text("dtype")? {
        None => WeightDtype::F32,
        Some(name) => {
            name.parse().map_err(|_| fields.unexpected("dtype", "`f32`, `bf16` or `f16`"))?
        }
    };
    Ok(ImportRequest { path, out: out(&fields)?, dtype })
}

/// Reads the body that converts a model.
///
/// # Errors
/// `InvalidRequest`, naming the field.
pub fn convert(body: &Value) -> Result<ConvertRequest> {
    let fields = Fields::of_body(body)?;
    let model = fields.required_text("model")?.to_owned();
    fields.required("bits")?;
    let bits = one_of(&fields, "bits", &[4, 8], "4 or 8")?.unwrap_or_default();
    let group_size = one_of(&fields, "group_size", &[32, 64, 128], "32, 64 or 128")?;
    Ok(ConvertRequest { model, out: out(&fields)?, bits, group_size: group_size.unwrap_or(64) })
}

fn out(fields: &Fields<'_>) -> Result<Option<RepoId>> {
    let parse = |name: &str| name.parse().map_err(|error: Error| error.with_param("out"));
    fields.text("out")?.map(parse).transpose()
}

fn one_of(fields: &Fields<'_>, name: &str, choices: &[i32], expected: &str) -> Result<Option<i32>> {
    let Some(value) = fields.get(name) else { return Ok(None) };
    let number = value.as_i64().and_then(|number| i32::try_from(number).ok());
    let number = number.filter(|number| choices.contains(number));
    number.map(Some).ok_or_else(|| fields.unexpected(name, expected))
}

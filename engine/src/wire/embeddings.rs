//! `/v1/embeddings`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::gateway::ModelCard;
use crate::limits;
use crate::wire::Fields;
use crate::wire::fields::mismatch;

/// The body of `/v1/embeddings`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingsRequest {
    /// A fresh id.
    pub id: String,
    /// What is to become vectors, one each.
    pub inputs: Vec<Input>,
    /// How the vectors are written.
    pub encoding: Encoding,
    /// Numbers of a vector; unset is all of them.
    pub dimensions: Option<usize>,
}

/// A text, or its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// How vectors are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// As numbers.
    Float,
    /// As the little-endian bytes of f32 numbers, in base64.
    Base64,
}

/// Reads the body of `/v1/embeddings`.
///
/// # Errors
/// `InvalidRequest`, `Unsupported` or `ModelNotFound`, naming the field.
pub fn embeddings(body: &Value, card: &ModelCard) -> Result<EmbeddingsRequest> {
    let fields = Fields::of_body(body)?;
    let encoding = match fields.text("encoding_format")? {
        None | Some("float") => Encoding::Float,
        Some("base64") => Encoding::Base64,
        Some(_) => {
            let given = &fields.object()["encoding_format"];
            return Err(mismatch("encoding_format", "`float` or `base64`", given));
        }
    };
    fields.text("user")?;
    let inputs = inputs(fields.required("input")?)?;
    let vectors = card.text_vectors()?;
    let most = i64::try_from(vectors.dimensions).unwrap_or(i64::MAX);
    let dimensions = fields.integer("dimensions", 1..=most)?;
    let dimensions = dimensions.and_then(|dimensions| usize::try_from(dimensions).ok());
    dimensions.map_or(Ok(()), |dimensions| vectors.check_dimensions(dimensions))?;
    let id = format!("embd-{}", Uuid::new_v4().simple());
    Ok(EmbeddingsRequest { id, inputs, encoding, dimensions })
}

fn inputs(value: &Value) -> Result<Vec<Input>> {
    const EXPECTED: &str = "a string, an array of strings, or token ids";
    let inputs = match value {
        Value::String(_) => vec![input("input", value)?],
        Value::Array(items) => match items.as_slice() {
            [Value::Number(_), ..] => vec![input("input", value)?],
            items => {
                let each = |(index, item)| input(&format!("input[{index}]"), item);
                items.iter().enumerate().map(each).collect::<Result<_>>()?
            }
        },
        other => return Err(mismatch("input", EXPECTED, other)),
    };
    let most = limits::EMBEDDING_INPUTS_MAX;
    match inputs.len() {
        0 => Err(Error::invalid("input", "`input` must not be empty")),
        count if count > most => {
            let message = format!("`input` holds {count} texts, and {most} are allowed");
            Err(Error::invalid("input", message))
        }
        _ => Ok(inputs),
    }
}

fn input(path: &str, value: &Value) -> Result<Input> {
    let empty = || Error::invalid(path, format!("`{path}` must not be empty"));
    match value {
        Value::String(text) if text.is_empty() => Err(empty()),
        Value::String(text) => Ok(Input::Text(text.clone())),
        Value::Array(tokens) if tokens.is_empty() => Err(empty()),
        Value::Array(tokens) => {
            let id = |(index, token): (usize, &Value)| {
                let id = token.as_u64().and_then(|id| u32::try_from(id).ok());
                id.ok_or_else(|| mismatch(&format!("{path}[{index}]"), "a token id", token))
            };
            Ok(Input::Tokens(tokens.iter().enumerate().map(id).collect::<Result<_>>()?))
        }
        other => Err(mismatch(path, "a string or an array of token ids", other)),
    }
}

/// The answer of `/v1/embeddings`.
#[derive(Debug, Clone, Serialize)]
pub struct EmbeddingsBody {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: EmbeddingsUsage,
}

#[derive(Debug, Clone, Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Clone, Copy, Serialize)]
struct EmbeddingsUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl EmbeddingsBody {
    /// `vectors` of the model `card`, made of `tokens` tokens together.
    pub fn new(
        card: &ModelCard,
        vectors: Vec<Vec<f32>>,
        encoding: Encoding,
        tokens: usize,
    ) -> Self {
        let data = vectors.into_iter().enumerate().map(|(index, vector)| Embedding {
            object: "embedding",
            index,
            embedding: Vector::encoded(vector, encoding),
        });
        let usage = EmbeddingsUsage { prompt_tokens: tokens, total_tokens: tokens };
        Self { object: "list", data: data.collect(), model: card.id.clone(), usage }
    }
}

impl Vector {
    fn encoded(vector: Vec<f32>, encoding: Encoding) -> Self {
        match encoding {
            Encoding::Float => Self::Float(vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector.into_iter().flat_map(f32::to_le_bytes).collect();
                Self::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

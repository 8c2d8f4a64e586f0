//! Looking for models at the hub, and looking at one without fetching it.

use std::str::FromStr;

use reqwest::Url;
use serde_json::Value;

use crate::error::{Code, Error, Result};
use crate::hub::download::{Choice, choose};
use crate::hub::remote::{Remote, Repository, is_gated};
use crate::hub::repo::{RepoId, Revision};
use crate::limits;

/// What is asked of each model beyond its name.
const FIELDS: [&str; 7] =
    ["downloads", "likes", "lastModified", "gated", "private", "tags", "safetensors"];
/// The tag of models in MLX's layout.
const MLX_TAG: &str = "mlx";
/// Bytes of a `config.json`.
const CONFIG_BYTES_MAX: usize = 4 << 20;

/// What is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchQuery {
    /// Words of the name; empty for any.
    pub text: String,
    /// Only models in MLX's layout.
    pub mlx_only: bool,
    /// What comes first.
    pub order: SearchOrder,
    /// Models at most; 1 to [`limits::SEARCH_HITS_MAX`].
    pub hits_max: usize,
}

impl SearchQuery {
    /// The most downloaded models in MLX's layout with `text` in their names.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            mlx_only: true,
            order: SearchOrder::Downloads,
            hits_max: limits::SEARCH_HITS_DEFAULT,
        }
    }
}

/// What comes first among the models that were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchOrder {
    /// The most downloaded of the last month.
    Downloads,
    /// The most liked.
    Likes,
    /// The last changed.
    Updated,
}

impl SearchOrder {
    /// Its name in the hub's API.
    fn parameter(self) -> &'static str {
        match self {
            Self::Downloads => "downloads",
            Self::Likes => "likes",
            Self::Updated => "lastModified",
        }
    }
}

impl FromStr for SearchOrder {
    type Err = Error;

    /// # Errors
    /// `InvalidRequest` for an unknown name.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "downloads" => Ok(Self::Downloads),
            "likes" => Ok(Self::Likes),
            "updated" => Ok(Self::Updated),
            other => Err(Error::invalid(
                "sort",
                format!("models are not sorted by `{}`", other.escape_debug()),
            )
            .with_hint("sort by `downloads`, `likes` or `updated`")),
        }
    }
}

/// A model that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    /// Its name.
    pub repo: RepoId,
    /// How often it was downloaded in the last month.
    pub downloads: u64,
    /// How many people like it.
    pub likes: u64,
    /// When it was changed last, as the hub writes times: `2026-03-01T12:00:00.000Z`.
    pub updated: Option<String>,
    /// Whether its files are only for those who accepted its terms.
    pub gated: bool,
    /// Whether only some see it at all.
    pub private: bool,
    /// What the hub files it under.
    pub tags: Vec<String>,
    /// Its weights by type, where the hub knows.
    pub weights: Vec<WeightShare>,
}

impl Hit {
    /// Bytes of its weights, where the hub knows and every type has a known size.
    pub fn weight_bytes(&self) -> Option<u64> {
        let bytes = self
            .weights
            .iter()
            .map(|share| share.bytes)
            .try_fold(0, |sum: u64, bytes| sum.checked_add(bytes?));
        bytes.filter(|_| !self.weights.is_empty())
    }

    /// Its weights' types and the bytes of each, where all are known.
    pub fn weights_by_type(&self) -> Option<Vec<(&str, u64)>> {
        let weights = self.weights.iter().map(|share| Some((share.dtype.as_str(), share.bytes?)));
        weights.collect::<Option<Vec<_>>>().filter(|weights| !weights.is_empty())
    }
}

/// The weights of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightShare {
    /// The type, as safetensors writes it: `BF16`. Packed weights are `U32`.
    pub dtype: String,
    /// Elements of it.
    pub elements: u64,
    /// Their bytes, where the type's size is known.
    pub bytes: Option<u64>,
}

/// A model as the hub has it, nothing of which was fetched but its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Its name, commit and all its files.
    pub repository: Repository,
    /// The files that a download would fetch, or why there are none.
    pub choice: Result<Choice>,
    /// Its `config.json`, if it has one.
    pub config: Option<Value>,
}

impl Description {
    /// Bytes of the weights among them.
    pub fn weight_bytes(&self) -> u64 {
        let files = self.choice.iter().flat_map(|choice| &choice.files);
        let weights = files.filter(|file| file.path.extension() == "safetensors");
        weights.map(|file| file.bytes).fold(0, u64::saturating_add)
    }

    /// Bytes that a download would fetch.
    pub fn fetched_bytes(&self) -> u64 {
        let files = self.choice.iter().flat_map(|choice| &choice.files);
        files.map(|file| file.bytes).fold(0, u64::saturating_add)
    }
}

/// Looks for models.
///
/// # Errors
/// `HubUnreachable` when the hub cannot be asked, offline among the reasons, or answers nonsense.
pub async fn search(remote: &Remote, query: &SearchQuery) -> Result<Vec<Hit>> {
    let url = query_url(remote, query);
    let (answer, _) = remote.json(&url, &format!("models called `{}`", query.text)).await?;
    let models = answer.as_array().ok_or_else(|| {
        Error::new(Code::HubUnreachable, "the hub's answer to a search is no list of models")
            .with_hint("is `HF_ENDPOINT` a hub?")
    })?;
    // What cannot be named cannot be fetched either.
    Ok(models.iter().filter_map(read_hit).take(query.hits_max).collect())
}

/// Looks at `repo` at `revision`.
///
/// # Errors
/// As [`Remote::repository`], and what keeps its `config.json` from being read.
pub async fn describe(remote: &Remote, repo: &RepoId, revision: &Revision) -> Result<Description> {
    let repository = remote.repository(repo, revision).await?;
    let choice = choose(&repository);
    let config = match repository.files.iter().any(|file| file.path == "config.json") {
        true => Some(config(remote, &repository).await?),
        false => None,
    };
    Ok(Description { repository, choice, config })
}

async fn config(remote: &Remote, repository: &Repository) -> Result<Value> {
    let path = "config.json".parse()?;
    let url = remote.file_url(&repository.repo, &repository.commit, &path);
    let about = format!("`config.json` of `{}`", repository.repo);
    let (text, _) = remote.bytes(&url, &about, CONFIG_BYTES_MAX).await?;
    serde_json::from_slice(&text)
        .map_err(|error| Error::new(Code::BadModel, format!("failed to read {about}: {error}")))
}

fn query_url(remote: &Remote, query: &SearchQuery) -> Url {
    let mut url = remote.url(["api", "models"]);
    let hits = query.hits_max.clamp(1, limits::SEARCH_HITS_MAX).to_string();
    let mut pairs = url.query_pairs_mut();
    if !query.text.trim().is_empty() {
        pairs.append_pair("search", query.text.trim());
    }
    if query.mlx_only {
        pairs.append_pair("filter", MLX_TAG);
    }
    pairs.append_pair("sort", query.order.parameter()).append_pair("direction", "-1");
    pairs.append_pair("limit", &hits);
    for field in FIELDS {
        pairs.append_pair("expand[]", field);
    }
    drop(pairs);
    url
}

fn read_hit(model: &Value) -> Option<Hit> {
    let repo = model["id"].as_str()?.parse().ok()?;
    let tags = model["tags"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let parameters = model["safetensors"]["parameters"].as_object().into_iter().flatten();
    let share = |(dtype, elements): (&String, &Value)| {
        let elements = elements.as_u64()?;
        let bytes =
            bits(dtype).and_then(|bits| elements.checked_mul(bits)).map(|bits| bits.div_ceil(8));
        Some(WeightShare { dtype: dtype.clone(), elements, bytes })
    };
    Some(Hit {
        repo,
        downloads: model["downloads"].as_u64().unwrap_or(0),
        likes: model["likes"].as_u64().unwrap_or(0),
        updated: model["lastModified"].as_str().map(str::to_owned),
        gated: is_gated(&model["gated"]),
        private: model["private"].as_bool().unwrap_or(false),
        tags: tags.map(str::to_owned).collect(),
        weights: parameters.filter_map(share).collect(),
    })
}

/// Bits of an element of a type of safetensors.
fn bits(dtype: &str) -> Option<u64> {
    match dtype {
        "F64" | "I64" | "U64" => Some(64),
        "F32" | "I32" | "U32" => Some(32),
        "F16" | "BF16" | "I16" | "U16" => Some(16),
        "I8" | "U8" | "BOOL" => Some(8),
        other if other.starts_with("F8") => Some(8),
        other if other.starts_with("F6") => Some(6),
        other if other.starts_with("F4") => Some(4),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clock::Clock;
    use crate::hub::remote::RemoteConfig;

    #[test]
    fn a_search_is_asked_for_as_the_hub_has_it() {
        let remote = Remote::new(RemoteConfig::at("http://h").unwrap(), Clock::manual()).unwrap();
        let query = SearchQuery { hits_max: 1_000, ..SearchQuery::new(" qwen3 & co ") };
        assert_eq!(
            query_url(&remote, &query).as_str(),
            "http://h/api/models?search=qwen3+%26+co&filter=mlx&sort=downloads&direction=-1&limit=100\
             &expand%5B%5D=downloads&expand%5B%5D=likes&expand%5B%5D=lastModified&expand%5B%5D=gated\
             &expand%5B%5D=private&expand%5B%5D=tags&expand%5B%5D=safetensors"
        );
        let any = SearchQuery {
            mlx_only: false,
            order: SearchOrder::Updated,
            hits_max: 0,
            ..SearchQuery::new("")
        };
        assert!(
            query_url(&remote, &any)
                .as_str()
                .starts_with("http://h/api/models?sort=lastModified&direction=-1&limit=1&")
        );
    }

    #[test]
    fn a_hit_tells_what_the_hub_knows_and_what_its_weights_take() {
        let hit = read_hit(&json!({
            "id": "mlx-community/x", "downloads": 7, "likes": 2, "lastModified": "2026-03-01T12:00:00.000Z",
            "gated": "manual", "private": false, "tags": ["mlx", "safetensors"],
            "safetensors": {"parameters": {"U32": 100, "BF16": 8}, "total": 108},
        }))
        .unwrap();
        assert_eq!((hit.downloads, hit.likes, hit.gated, hit.private), (7, 2, true, false));
        assert_eq!(hit.weight_bytes(), Some(416));
        let bare = read_hit(&json!({"id": "gpt2", "gated": false})).unwrap();
        assert_eq!((bare.gated, bare.weight_bytes()), (false, None));
        let odd =
            read_hit(&json!({"id": "a/b", "safetensors": {"parameters": {"Q9": 1, "F32": 1}}}))
                .unwrap();
        assert_eq!(odd.weight_bytes(), None);
        for bad in [json!({}), json!({"id": "../x"}), json!("x")] {
            assert_eq!(read_hit(&bad), None, "{bad}");
        }
    }

    #[test]
    fn an_order_is_read_by_its_name() {
        assert_eq!("likes".parse::<SearchOrder>().unwrap(), SearchOrder::Likes);
        assert!("size".parse::<SearchOrder>().unwrap_err().to_string().contains("`updated`"));
    }
}

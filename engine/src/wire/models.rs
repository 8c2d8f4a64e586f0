//! `/api/models`: how the models stand.

use serde::Serialize;
use serde_json::Value;

use super::Fields;
use crate::error::{Error, Result};
use crate::gateway::ModelStatus;
use crate::limits::CLIENT_NAME_CHARS_MAX;

/// Reads the body that pins a model: `pinned`, true or false.
///
/// # Errors
/// `InvalidRequest`, naming the field.
pub fn pin(body: &Value) -> Result<bool> {
    let fields = Fields::of_body(body)?;
    fields.required("pinned")?;
    Ok(fields.boolean("pinned")?.unwrap_or_default())
}

/// Reads the switch `name` of a query.
///
/// # Errors
/// `InvalidRequest` for anything but `true` and `false`.
pub fn flag(name: &str, value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => {
            let shown: String = other.chars().take(CLIENT_NAME_CHARS_MAX).collect();
            let message = format!("`{name}` must be `true` or `false`, got `{shown}`");
            Err(Error::invalid(name, message))
        }
    }
}

/// All models.
#[derive(Debug, Clone, Serialize)]
pub struct ModelsBody {
    object: &'static str,
    data: Vec<ModelBody>,
}

/// How a model stands.
#[derive(Debug, Clone, Serialize)]
pub struct ModelBody {
    id: String,
    object: &'static str,
    state: &'static str,
    default: bool,
    pinned: bool,
    leases: usize,
    waiting: usize,
    weights_bytes: u64,
    /// Seconds that it stays after its last use.
    ttl_seconds: Option<f64>,
    /// Seconds until it goes if nobody uses it.
    expires_in_seconds: Option<f64>,
    /// Seconds since its last use.
    idle_seconds: Option<f64>,
    loading: Option<ProgressBody>,
    download: Option<ProgressBody>,
    failure: Option<FailureBody>,
    aliases: Vec<String>,
    profiles: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
struct ProgressBody {
    done_bytes: u64,
    total_bytes: u64,
}

#[derive(Debug, Clone, Serialize)]
struct FailureBody {
    code: &'static str,
    message: String,
    seconds_ago: f64,
}

impl ModelsBody {
    /// The list of these models.
    pub fn new(models: &[ModelStatus]) -> Self {
        Self { object: "list", data: models.iter().map(ModelBody::new).collect() }
    }
}

impl ModelBody {
    /// A model that stands like that.
    pub fn new(status: &ModelStatus) -> Self {
        let seconds = |time: std::time::Duration| time.as_secs_f64();
        Self {
            id: status.id.to_string(),
            object: "model.status",
            state: status.state,
            default: status.is_default,
            pinned: status.pinned,
            leases: status.leases,
            waiting: status.waiting,
            weights_bytes: status.weights_bytes,
            ttl_seconds: status.ttl.map(seconds),
            expires_in_seconds: status.expires_in.map(seconds),
            idle_seconds: status.idle.map(seconds),
            loading: status
                .progress
                .map(|(done_bytes, total_bytes)| ProgressBody { done_bytes, total_bytes }),
            download: status.download.map(|download| ProgressBody {
                done_bytes: download.done_bytes,
                total_bytes: download.total_bytes,
            }),
            failure: status.failure.as_ref().map(|(error, ago)| FailureBody {
                code: error.code().name(),
                message: error.to_string(),
                seconds_ago: ago.as_secs_f64(),
            }),
            aliases: status.aliases.clone(),
            profiles: status.profiles.clone(),
        }
    }
}

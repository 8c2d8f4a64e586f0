//! Which model a request means.
//!
//! A name is, in this order: one of the default model's; the id of a model; an alias; either of these with a
//! profile behind a colon; or, where a dialect's clients ask for models of their own maker, the default model.

use std::sync::Arc;

use crate::error::{Code, Error, Result};
use crate::gateway::catalogue::{Catalogue, Source};
use crate::gateway::profile::Profile;
use crate::gateway::settings::{DEFAULT_NAMES, ModelSettings};

/// Names that an error lists before it counts the rest.
const NAMES_LISTED_MAX: usize = 32;

/// Characters that are shown of a name that is not known, as of other values of requests.
const NAME_CHARS_MAX: usize = 60;

/// The model that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked<'a> {
    /// As the request calls it, if it does.
    pub name: Option<&'a str>,
    /// Whether a name that is not known means the default model.
    pub or_default: bool,
}

impl Asked<'_> {
    /// The default model.
    pub const DEFAULT: Asked<'static> = Asked { name: None, or_default: true };
}

impl<'a> From<&'a str> for Asked<'a> {
    fn from(name: &'a str) -> Self {
        Asked { name: Some(name), or_default: false }
    }
}

/// What a request asked for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Selection {
    pub(super) source: Source,
    pub(super) profile: Option<Profile>,
}

/// Selects among the models of `catalogue`, of which `default` tells the default one's id.
pub(super) fn select(
    asked: Asked<'_>,
    catalogue: &dyn Catalogue,
    settings: &ModelSettings,
    default: &dyn Fn() -> Option<Arc<str>>,
) -> Result<Selection> {
    let find_default = || default().and_then(|id| catalogue.find(&id));
    let find = |name: &str| match DEFAULT_NAMES.contains(&name) {
        true => find_default(),
        false => {
            let aliased = || settings.aliased(name).and_then(|id| catalogue.find(id));
            catalogue.find(name).or_else(aliased)
        }
    };
    let name = asked.name.unwrap_or_default();
    if let Some(source) = find(name) {
        return Ok(Selection { source, profile: None });
    }
    if let Some((base, profile)) = name.rsplit_once(':')
        && let Some(source) = find(base)
        && let Some(found) = settings.of_model(&source.id).and_then(|one| one.profiles.get(profile))
    {
        return Ok(Selection { source, profile: Some(found.clone()) });
    }
    let default = asked.or_default.then(find_default).flatten();
    default.map(|source| Selection { source, profile: None }).ok_or_else(|| {
        let told = catalogue.refusal(name);
        told.unwrap_or_else(|| not_found(name, &names(catalogue, settings)))
    })
}

/// Every name by which models of `catalogue` can be asked for, profiles included.
pub(super) fn names(catalogue: &dyn Catalogue, settings: &ModelSettings) -> Vec<Arc<str>> {
    let mut names = Vec::new();
    for Source { id, .. } in catalogue.sources() {
        let said = settings.of_model(&id);
        names.push(Arc::clone(&id));
        names.extend(said.iter().flat_map(|one| &one.aliases).map(|alias| alias.as_str().into()));
        let profiles = said.iter().flat_map(|one| one.profiles.keys());
        names.extend(profiles.map(|profile| format!("{id}:{profile}").into()));
    }
    names
}

fn not_found(name: &str, names: &[Arc<str>]) -> Error {
    let listed: Vec<String> =
        names.iter().take(NAMES_LISTED_MAX).map(|name| format!("`{name}`")).collect();
    let more = match names.len().saturating_sub(NAMES_LISTED_MAX) {
        0 => String::new(),
        count => format!(" and {count} more, which `/v1/models` lists"),
    };
    let name = match name.char_indices().nth(NAME_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    };
    let listed = if listed.is_empty() { "none".to_owned() } else { listed.join(", ") };
    let message = match DEFAULT_NAMES.contains(&name.as_str()) {
        false => format!("no model `{name}` is served; this server serves {listed}{more}"),
        true => {
            format!("no model is named, and none is the default; this server serves {listed}{more}")
        }
    };
    Error::new(Code::ModelNotFound, message).with_param("model")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::catalogue::Directories;

    fn catalogue() -> Directories {
        let source = |id: &str| Source {
            id: id.into(),
            directory: format!("/models/{id}").into(),
            weights_bytes: 0,
            download: None,
        };
        Directories::new(["large", "small", "odd:name"].map(source).to_vec()).unwrap()
    }

    fn settings() -> ModelSettings {
        ModelSettings::of_toml(
            "version = 1
            [models.small]
            aliases = ['s', 'claude-haiku']
            profiles.wild = { temperature = 1.5 }
            [models.large]
            profiles.calm = { temperature = 0.0 }
            [models.'odd:name']
            profiles.p = {}",
        )
        .unwrap()
    }

    /// The id that a name selects, and the temperature of its profile if it has one.
    fn selected(name: Option<&str>, or_default: bool) -> Result<(String, Option<Option<f32>>)> {
        let selection = select(Asked { name, or_default }, &catalogue(), &settings(), &|| {
            Some("large".into())
        })?;
        let temperature = selection.profile.map(|profile| profile.sampling.temperature);
        Ok((selection.source.id.to_string(), temperature))
    }

    #[track_caller]
    fn check(name: &str, id: &str, temperature: Option<Option<f32>>) {
        assert_eq!(selected(Some(name), false), Ok((id.to_owned(), temperature)));
    }

    #[test]
    fn a_model_goes_by_its_id_its_aliases_and_either_with_a_profile() {
        check("small", "small", None);
        check("s", "small", None);
        check("small:wild", "small", Some(Some(1.5)));
        check("s:wild", "small", Some(Some(1.5)));
        check("odd:name", "odd:name", None);
        check("odd:name:p", "odd:name", Some(None));
    }

    #[test]
    fn the_default_model_goes_by_no_name_and_by_names_of_its_own() {
        assert_eq!(selected(None, false), Ok(("large".to_owned(), None)));
        for name in ["", "default", "default_model"] {
            check(name, "large", None);
        }
        check("default:calm", "large", Some(Some(0.0)));
    }

    #[test]
    fn a_name_that_is_not_known_is_refused_with_all_names_or_means_the_default_model() {
        for name in ["Large", "small:calm", "nothing", "nothing:wild", "s:", ":wild"] {
            let error = selected(Some(name), false).unwrap_err();
            assert_eq!((error.code(), error.param()), (Code::ModelNotFound, Some("model")));
            let words = format!(
                "no model `{name}` is served; this server serves `large`, `large:calm`, `small`, `s`, \
                 `claude-haiku`, `small:wild`, `odd:name`, `odd:name:p`"
            );
            assert_eq!(error.message(), words);
            assert_eq!(selected(Some(name), true), Ok(("large".to_owned(), None)));
        }
        assert_eq!(selected(Some("claude-haiku"), true), Ok(("small".to_owned(), None)));
    }
}

//! Profiles: named settings of a model, asked for as `model:profile`.
//!
//! A request's own fields win over its profile, the profile over the flags, and those over what the model's files
//! say.

use serde_json::{Map, Value};

use super::card::ModelCard;
use super::request::Reasoning;
use crate::sampling::SamplingOverrides;

/// What a request means that does not say.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// How tokens are picked.
    pub sampling: SamplingOverrides,
    /// Tokens of an answer at most.
    pub max_tokens: Option<usize>,
    /// How the model is asked to think.
    pub reasoning: Option<Reasoning>,
    /// Variables of the chat template.
    pub template_variables: Map<String, Value>,
}

/// What requests of a model mean that do not say, beyond sampling and length.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestDefaults {
    /// How the model is asked to think; `None` leaves it to each dialect.
    pub reasoning: Option<Reasoning>,
    /// Variables of the chat template; those of a request win.
    pub template_variables: Map<String, Value>,
}

impl Profile {
    /// `card` with what the profile says.
    pub(super) fn over(&self, card: &ModelCard) -> ModelCard {
        ModelCard {
            sampling_defaults: self.sampling.over(&card.sampling_defaults),
            max_tokens_default: self.max_tokens.unwrap_or(card.max_tokens_default),
            request_defaults: RequestDefaults {
                reasoning: self.reasoning.or(card.request_defaults.reasoning),
                template_variables: self.template_variables.clone(),
            },
            ..card.clone()
        }
    }
}

impl RequestDefaults {
    /// The template's variables for a request that says `asked`.
    pub fn variables(&self, asked: Map<String, Value>) -> Map<String, Value> {
        let mut variables = self.template_variables.clone();
        variables.extend(asked);
        variables
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::gateway::script::card;

    fn map(value: &Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn a_profile_changes_what_it_says_and_nothing_else() {
        let silent = Profile::default().over(&card());
        assert_eq!(silent, card());
        let sampling = SamplingOverrides { top_k: Some(7), ..SamplingOverrides::default() };
        let reasoning = Some(Reasoning { enabled: Some(true), effort: None });
        let variables = map(&json!({"tone": "dry"}));
        let profile = Profile {
            sampling,
            max_tokens: Some(12),
            reasoning,
            template_variables: variables.clone(),
        };
        let mut expected = card();
        expected.sampling_defaults.top_k = 7;
        expected.max_tokens_default = 12;
        expected.request_defaults = RequestDefaults { reasoning, template_variables: variables };
        assert_eq!(profile.over(&card()), expected);
    }

    #[test]
    fn variables_of_a_request_win_over_those_of_its_profile() {
        let template_variables = map(&json!({"tone": "dry", "length": 3}));
        let defaults = RequestDefaults { reasoning: None, template_variables };
        let asked = map(&json!({"tone": "warm", "name": "x"}));
        let expected = map(&json!({"tone": "warm", "length": 3, "name": "x"}));
        assert_eq!(defaults.variables(asked), expected);
    }
}

//! Which experts a token goes through, and what each result counts for.

use super::{Linear, RmsNorm};
use crate::error::{Code, Error, Result};
use crate::mlx::{Array, Weights, experts, ops};
use crate::model::ModelConfig;

/// A router's answer.
#[derive(Debug)]
pub struct Choice {
    /// `[B, L, K]` of u32.
    pub experts: Array,
    /// `[B, L, K]`.
    pub weights: Array,
}

/// How scores become a choice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Routing {
    /// The greatest of a softmax over all experts (Qwen: mlx-lm 0.32.2, `qwen3_moe.py`).
    TopOfSoftmax {
        /// Whether their weights are made to sum to 1.
        normalized: bool,
    },
    /// A softmax over the greatest (gpt-oss: `gpt_oss.py`).
    SoftmaxOfTop,
    /// Each expert by itself through a sigmoid (DeepSeek-AI 2024; `deepseek_v3.group_expert_select`).
    Sigmoid(SigmoidRouting),
    /// A softmax over the greatest of normalized tokens' scores, times a factor of each expert's own
    /// (Gemma 4: `gemma4_text.Router`).
    SoftmaxOfTopNormed {
        /// What the norm adds under the root.
        epsilon: f32,
    },
}

/// See [`Routing::Sigmoid`]: a learned correction counts in choosing, not in weighing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SigmoidRouting {
    /// Groups in which the experts lie.
    pub groups: i32,
    /// Of those, the ones whose two best experts are best.
    pub groups_kept: i32,
    /// Whether weights are made to sum to 1.
    pub normalized: bool,
    /// What they are multiplied by then.
    pub factor: f32,
}

/// What a router is loaded from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterSpec {
    /// Width of the residual stream.
    pub hidden: i32,
    /// Experts to choose from.
    pub experts: i32,
    /// Experts chosen for each token.
    pub chosen: i32,
    /// How.
    pub routing: Routing,
}

/// Scores experts and chooses.
#[derive(Debug)]
pub struct Router {
    scores: Linear,
    chosen: i32,
    rule: Rule,
}

#[derive(Debug)]
enum Rule {
    TopOfSoftmax { normalized: bool },
    SoftmaxOfTop,
    Sigmoid { routing: SigmoidRouting, correction: Array },
    SoftmaxOfTopNormed { norm: RmsNorm, factors: Array },
}

impl Router {
    /// Takes `path.weight` and its bias if there is one; with sigmoid routing
    /// `path.e_score_correction_bias` too; Gemma 4's is `path.{proj.weight,scale,per_expert_scale}`.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape, or more experts or groups are asked for
    /// than there are.
    pub fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        spec: RouterSpec,
    ) -> Result<Self> {
        spec.check()?;
        let scores = match spec.routing {
            Routing::SoftmaxOfTopNormed { .. } => format!("{path}.proj"),
            _ => path.to_owned(),
        };
        let scores = Linear::load(weights, config, &scores, (spec.experts, spec.hidden))?;
        Ok(Self { scores, chosen: spec.chosen, rule: Rule::load(weights, path, spec)? })
    }

    /// Chooses for each token of `x` `[B, L, hidden]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, x: &Array) -> Result<Choice> {
        match &self.rule {
            Rule::TopOfSoftmax { normalized } => self.top_of_softmax(x, *normalized),
            Rule::SoftmaxOfTop => self.softmax_of_top(x),
            Rule::Sigmoid { routing, correction } => self.sigmoid(x, *routing, correction),
            Rule::SoftmaxOfTopNormed { norm, factors } => {
                self.softmax_of_top_normed(x, norm, factors)
            }
        }
    }

    fn top_of_softmax(&self, x: &Array, normalized: bool) -> Result<Choice> {
        let shares = ops::softmax_last(&self.scores.forward(x)?)?;
        let experts = experts::greatest(&shares, self.chosen)?;
        let weights = experts::at(&shares, &experts)?;
        let weights = if normalized { experts::share_out(&weights)? } else { weights };
        Ok(Choice { experts, weights })
    }

    fn softmax_of_top(&self, x: &Array) -> Result<Choice> {
        let scores = self.scores.forward(x)?;
        let experts = experts::greatest(&scores, self.chosen)?;
        let weights = ops::softmax_last(&experts::at(&scores, &experts)?)?;
        Ok(Choice { experts, weights })
    }

    fn sigmoid(&self, x: &Array, routing: SigmoidRouting, correction: &Array) -> Result<Choice> {
        let SigmoidRouting { groups, groups_kept, normalized, factor } = routing;
        let plain = experts::sigmoid_f32(&self.scores.forward(x)?)?;
        let corrected = plain.add(correction)?;
        let ranked = match groups > groups_kept {
            true => experts::drop_groups(&corrected, groups, groups - groups_kept)?,
            false => corrected,
        };
        let experts = experts::least_negated(&ranked, self.chosen)?;
        let weights = experts::at(&plain, &experts)?;
        // `glm4_moe_lite` adds 1e-20 to the sum, which no sum of sigmoids feels in f32.
        let weights = match normalized && self.chosen > 1 {
            true => experts::share_out(&weights)?,
            false => weights,
        };
        Ok(Choice { experts, weights: ops::scale(&weights, factor)? })
    }

    fn softmax_of_top_normed(&self, x: &Array, norm: &RmsNorm, factors: &Array) -> Result<Choice> {
        let scores = self.scores.forward(&norm.forward(x)?)?;
        let experts = experts::greatest(&scores, self.chosen)?;
        let weights = experts::softmax_in_own_type(&experts::at(&scores, &experts)?)?;
        let weights = weights.multiply(ops::take_axis(factors, &experts, 0)?)?;
        Ok(Choice { experts, weights })
    }
}

impl Rule {
    fn load(weights: &mut Weights, path: &str, spec: RouterSpec) -> Result<Self> {
        let mut take =
            |name: &str, entries| weights.take_shaped(&format!("{path}.{name}"), &[entries]);
        Ok(match spec.routing {
            Routing::TopOfSoftmax { normalized } => Self::TopOfSoftmax { normalized },
            Routing::SoftmaxOfTop => Self::SoftmaxOfTop,
            Routing::Sigmoid(routing) => {
                let correction = take("e_score_correction_bias", spec.experts)?;
                Self::Sigmoid { routing, correction }
            }
            Routing::SoftmaxOfTopNormed { epsilon } => {
                // In f64, as Python computes it.
                let root = f64::from(spec.hidden).powf(-0.5) as f32;
                let scale = ops::scale(&take("scale", spec.hidden)?, root)?;
                Self::SoftmaxOfTopNormed {
                    norm: RmsNorm::of_weight(scale, epsilon),
                    factors: take("per_expert_scale", spec.experts)?,
                }
            }
        })
    }
}

impl RouterSpec {
    fn check(&self) -> Result<()> {
        let Self { experts, chosen, .. } = *self;
        if chosen > experts {
            return Err(refusal(format!("{chosen} of {experts} experts cannot be chosen")));
        }
        let Routing::Sigmoid(SigmoidRouting { groups, groups_kept, .. }) = self.routing else {
            return Ok(());
        };
        if groups < 1 || experts % groups != 0 || (groups > 1 && experts / groups < 2) {
            return Err(refusal(format!("{experts} experts cannot lie in {groups} groups")));
        }
        let fits = (1..=groups).contains(&groups_kept);
        if !fits || groups_kept * (experts / groups) < chosen {
            let message =
                format!("{chosen} experts cannot be chosen from {groups_kept} of {groups} groups");
            return Err(refusal(message));
        }
        Ok(())
    }
}

fn refusal(message: String) -> Error {
    Error::new(Code::BadModel, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mlx::Device;

    const HIDDEN: usize = 16;
    const EXPERTS: usize = 8;
    const TOKENS: usize = 11;
    const EPSILON: f32 = 1e-6;

    fn smooth(count: usize, seed: f32) -> Vec<f32> {
        (0..count).map(|i| (seed + i as f32 * 0.731).sin()).collect()
    }

    fn array(values: &[f32], shape: &[usize]) -> Array {
        let shape: Vec<i32> = shape.iter().map(|size| ops::axis_index(*size)).collect();
        Array::from_slice(values, &shape)
    }

    fn tensors() -> Weights {
        let tensor = |name: &str, values: Vec<f32>, shape: &[usize]| {
            (name.to_owned(), array(&values, shape))
        };
        let table = smooth(EXPERTS * HIDDEN, 0.4);
        Weights::of([
            tensor("gate.weight", table.clone(), &[EXPERTS, HIDDEN]),
            tensor("gate.proj.weight", table, &[EXPERTS, HIDDEN]),
            tensor("gate.e_score_correction_bias", smooth(EXPERTS, 2.0), &[EXPERTS]),
            tensor("gate.scale", smooth(HIDDEN, 5.0), &[HIDDEN]),
            tensor("gate.per_expert_scale", smooth(EXPERTS, 9.0), &[EXPERTS]),
        ])
    }

    fn spec(routing: Routing, chosen: i32) -> RouterSpec {
        let (hidden, experts) = (ops::axis_index(HIDDEN), ops::axis_index(EXPERTS));
        RouterSpec { hidden, experts, chosen, routing }
    }

    fn load(spec: RouterSpec) -> Result<Router> {
        let config = ModelConfig::from_fields(json!({}).as_object().unwrap().clone());
        Router::load(&mut tensors(), &config, "gate", spec)
    }

    /// For each token its experts in ascending order with their weights.
    type Choices = Vec<Vec<(usize, f32)>>;

    fn route(routing: Routing, chosen: i32) -> Choices {
        let x = array(&smooth(TOKENS * HIDDEN, 7.7), &[1, TOKENS, HIDDEN]);
        let choice = load(spec(routing, chosen)).unwrap().forward(&x).unwrap();
        assert_eq!(choice.experts.shape(), [1, ops::axis_index(TOKENS), chosen]);
        let experts = choice.experts.contiguous().unwrap();
        let experts = ops::read_u32(&experts).unwrap();
        let experts = experts.into_iter().map(|expert| expert as usize);
        let pairs: Vec<_> = experts.zip(ops::read_f32(&choice.weights).unwrap()).collect();
        let sorted = |pairs: &[(usize, f32)]| {
            let mut pairs = pairs.to_vec();
            pairs.sort_by_key(|(expert, _)| *expert);
            pairs
        };
        pairs.chunks(chosen.unsigned_abs() as usize).map(sorted).collect()
    }

    /// The scores of each token, after `prepare`.
    fn scores(prepare: impl Fn(&[f32]) -> Vec<f32>) -> Vec<Vec<f32>> {
        let table = smooth(EXPERTS * HIDDEN, 0.4);
        let dot = |x: &[f32], row: &[f32]| x.iter().zip(row).map(|(a, b)| a * b).sum();
        let tokens = smooth(TOKENS * HIDDEN, 7.7);
        let tokens = tokens.chunks(HIDDEN).map(prepare);
        tokens.map(|x| table.chunks(HIDDEN).map(|row| dot(&x, row)).collect()).collect()
    }

    /// The `count` greatest by `rank`, in ascending order of their numbers.
    fn best(rank: &[f32], count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..rank.len()).collect();
        order.sort_by(|a, b| rank[*b].total_cmp(&rank[*a]));
        let mut best = order[..count].to_vec();
        best.sort_unstable();
        best
    }

    fn softmax(scores: &[f32]) -> Vec<f32> {
        let sum: f32 = scores.iter().map(|score| score.exp()).sum();
        scores.iter().map(|score| score.exp() / sum).collect()
    }

    fn sigmoid(score: f32) -> f32 {
        1.0 / (1.0 + (-score).exp())
    }

    fn assert_same(got: &Choices, wanted: &Choices) {
        assert_eq!(got.len(), wanted.len());
        for (got, wanted) in got.iter().zip(wanted) {
            assert_eq!(got.len(), wanted.len());
            for (got, wanted) in got.iter().zip(wanted) {
                assert_eq!(got.0, wanted.0, "{got:?} and {wanted:?}");
                assert!((got.1 - wanted.1).abs() < 1e-5, "{got:?} and {wanted:?}");
            }
        }
    }

    #[test]
    fn qwens_routers_take_the_greatest_of_a_softmax_over_all() {
        Device::cpu();
        for normalized in [false, true] {
            let choices = scores(<[f32]>::to_vec).into_iter().map(|scores| {
                let shares = softmax(&scores);
                let best = best(&shares, 3);
                let sum: f32 = best.iter().map(|expert| shares[*expert]).sum();
                let of = |expert: usize| shares[expert] / if normalized { sum } else { 1.0 };
                best.into_iter().map(|expert| (expert, of(expert))).collect()
            });
            let routing = Routing::TopOfSoftmax { normalized };
            assert_same(&route(routing, 3), &choices.collect());
        }
    }

    #[test]
    fn gpt_oss_routers_take_a_softmax_over_the_greatest() {
        Device::cpu();
        let choices = scores(<[f32]>::to_vec).into_iter().map(|scores| {
            let best = best(&scores, 3);
            let weights = softmax(&best.iter().map(|expert| scores[*expert]).collect::<Vec<_>>());
            best.into_iter().zip(weights).collect()
        });
        assert_same(&route(Routing::SoftmaxOfTop, 3), &choices.collect());
    }

    #[test]
    fn gemmas_router_normalizes_first_and_scales_each_expert_by_its_own_factor() {
        Device::cpu();
        let scale = smooth(HIDDEN, 5.0);
        let normed = |x: &[f32]| {
            let mean = x.iter().map(|x| x * x).sum::<f32>() / HIDDEN as f32;
            let root = (mean + EPSILON).sqrt() * (HIDDEN as f32).sqrt();
            x.iter().zip(&scale).map(|(x, scale)| x / root * scale).collect()
        };
        let factors = smooth(EXPERTS, 9.0);
        let choices = scores(normed).into_iter().map(|scores| {
            let best = best(&scores, 3);
            let weights = softmax(&best.iter().map(|expert| scores[*expert]).collect::<Vec<_>>());
            let of = |(expert, weight): (usize, f32)| (expert, weight * factors[expert]);
            best.into_iter().zip(weights).map(of).collect()
        });
        let routing = Routing::SoftmaxOfTopNormed { epsilon: EPSILON };
        assert_same(&route(routing, 3), &choices.collect());
    }

    #[test]
    fn sigmoid_routers_choose_with_a_correction_and_weigh_without_it() {
        Device::cpu();
        let correction = smooth(EXPERTS, 2.0);
        for (groups, groups_kept, normalized) in [(1, 1, true), (4, 2, true), (2, 1, false)] {
            let routing = SigmoidRouting { groups, groups_kept, normalized, factor: 2.5 };
            let kept = |ranks: &[f32]| {
                let size = EXPERTS / groups.unsigned_abs() as usize;
                let two_best = |group: &[f32]| best(group, 2).iter().map(|i| group[*i]).sum();
                let sums: Vec<f32> = ranks.chunks(size).map(two_best).collect();
                let groups = best(&sums, groups_kept.unsigned_abs() as usize);
                (0..EXPERTS).map(|expert| groups.contains(&(expert / size))).collect::<Vec<_>>()
            };
            let choices = scores(<[f32]>::to_vec).into_iter().map(|scores| {
                let plain: Vec<f32> = scores.into_iter().map(sigmoid).collect();
                let ranks: Vec<f32> = plain.iter().zip(&correction).map(|(a, b)| a + b).collect();
                let kept = kept(&ranks);
                let rank = |expert: usize| if kept[expert] { ranks[expert] } else { 0.0 };
                let best = best(&(0..EXPERTS).map(rank).collect::<Vec<_>>(), 2);
                let sum: f32 = best.iter().map(|expert| plain[*expert]).sum();
                let share = |expert: usize| plain[expert] / if normalized { sum } else { 1.0 };
                best.into_iter().map(|expert| (expert, share(expert) * 2.5)).collect()
            });
            assert_same(&route(Routing::Sigmoid(routing), 2), &choices.collect());
        }
    }

    #[test]
    fn a_router_that_cannot_choose_is_refused() {
        Device::cpu();
        let sigmoid = |groups, groups_kept| {
            Routing::Sigmoid(SigmoidRouting { groups, groups_kept, normalized: true, factor: 1.0 })
        };
        let cases = [
            (Routing::SoftmaxOfTop, 9, "9 of 8 experts"),
            (sigmoid(3, 1), 2, "3 groups"),
            (sigmoid(8, 4), 2, "8 groups"),
            (sigmoid(4, 5), 2, "5 of 4 groups"),
            (sigmoid(4, 1), 3, "3 experts"),
        ];
        for (routing, chosen, named) in cases {
            let error = load(spec(routing, chosen)).unwrap_err();
            assert_eq!(error.code(), Code::BadModel);
            assert!(error.message().contains(named), "{error}");
        }
    }
}

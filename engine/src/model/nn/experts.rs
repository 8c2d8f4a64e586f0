//! Feed-forward blocks side by side, of which each token goes through few (Shazeer et al. 2017): the
//! switch layers of mlx-lm 0.32.2 (`switch_layers.SwitchGLU`).
//!
//! Words: a **stack** holds one matrix per expert, `[E, out, in]`. Tokens are brought into the order of
//! their experts where that pays, so that each expert's weights are read once; the numbers are the same.

use super::quantization::load_packed;
use super::{Activation, Choice};
use crate::error::{Code, Error, Result};
use crate::mlx::experts::{self, ExpertOrder};
use crate::mlx::{Array, Packed, Weights, ops};
use crate::model::ModelConfig;

/// Tokens times chosen experts from which they are sorted.
const SORTED_FROM: usize = 64;

/// How many experts there are, and their widths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertSizes {
    /// How many there are.
    pub experts: i32,
    /// Width of the residual stream.
    pub hidden: i32,
    /// Width inside one of them.
    pub intermediate: i32,
}

/// `down(activation(gate(x)) * up(x))` for each expert.
#[derive(Debug)]
pub struct Experts {
    gate: ExpertLinear,
    up: ExpertLinear,
    down: ExpertLinear,
    activation: Activation,
}

impl Experts {
    /// Takes the stacks `path.{gate_proj,up_proj,down_proj}`; `stack_experts` makes them of other
    /// layouts.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape, or in a type that the device cannot
    /// multiply.
    pub fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        sizes: ExpertSizes,
        activation: Activation,
    ) -> Result<Self> {
        let ExpertSizes { experts, hidden, intermediate } = sizes;
        let mut part = |name: &str, outputs, inputs| {
            ExpertLinear::load(
                weights,
                config,
                &format!("{path}.{name}"),
                [experts, outputs, inputs],
            )
        };
        Ok(Self {
            gate: part("gate_proj", intermediate, hidden)?,
            up: part("up_proj", intermediate, hidden)?,
            down: part("down_proj", hidden, intermediate)?,
            activation,
        })
    }

    /// Sends `x` `[B, L, hidden]` through the chosen experts and sums what they make of it by its
    /// weights: `[B, L, hidden]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, x: &Array, choice: &Choice) -> Result<Array> {
        experts::weighted_sum(&self.forward_each(x, &choice.experts)?, &choice.weights)
    }

    /// What each of `chosen` `[B, L, K]` makes of its token of `x` `[B, L, hidden]`:
    /// `[B, L, K, hidden]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward_each(&self, x: &Array, chosen: &Array) -> Result<Array> {
        match chosen.size() < SORTED_FROM {
            true => self.forward_as_chosen(x, chosen),
            false => self.forward_sorted(x, chosen),
        }
    }

    fn forward_as_chosen(&self, x: &Array, chosen: &Array) -> Result<Array> {
        let tokens = x.reshape(&[x.dim(0), x.dim(1), 1, 1, x.dim(2)])?;
        Ok(self.products(&tokens, chosen, false)?.squeeze_axes(&[-2])?)
    }

    fn forward_sorted(&self, x: &Array, chosen: &Array) -> Result<Array> {
        let order = ExpertOrder::of(chosen)?;
        let tokens = x.reshape(&[-1, 1, x.dim(2)])?;
        let tokens = ops::take_axis(&tokens, &order.tokens, 0)?;
        let results = self.products(&tokens, &order.experts, true)?;
        Ok(order.restore(&results)?.squeeze_axes(&[-2])?)
    }

    fn products(&self, x: &Array, chosen: &Array, sorted: bool) -> Result<Array> {
        let up = self.up.forward(x, chosen, sorted)?;
        let gate = self.gate.forward(x, chosen, sorted)?;
        self.down.forward(&self.activation.gate(&gate, &up)?, chosen, sorted)
    }
}

/// `y = x W[e]^T + b[e]`.
#[derive(Debug)]
struct ExpertLinear {
    stack: Stack,
    /// `[E, out]`.
    bias: Option<Array>,
}

#[derive(Debug)]
enum Stack {
    /// `[E, in, out]`.
    Dense(Array),
    Packed(Packed),
}

impl ExpertLinear {
    fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        shape: [i32; 3],
    ) -> Result<Self> {
        let stack = match load_packed(weights, config, path, &shape)? {
            Some(packed) => Stack::Packed(packed),
            None => Stack::Dense(load_dense(weights, path, shape)?),
        };
        let bias_name = format!("{path}.bias");
        let bias = weights.contains(&bias_name);
        let bias = bias.then(|| weights.take_shaped(&bias_name, &shape[..2])).transpose()?;
        Ok(Self { stack, bias })
    }

    /// `x` `[.., 1, in]` to `[.., 1, out]`, its leading axes met with those of `chosen`.
    fn forward(&self, x: &Array, chosen: &Array, sorted: bool) -> Result<Array> {
        let product = match &self.stack {
            Stack::Dense(transposed) => experts::multiply_each(x, transposed, chosen, sorted)?,
            Stack::Packed(stack) => stack.multiply_each(x, chosen, sorted)?,
        };
        match &self.bias {
            Some(bias) => Ok(product.add(ops::take_axis(bias, chosen, 0)?.expand_dims(-2)?)?),
            None => Ok(product),
        }
    }
}

fn load_dense(weights: &mut Weights, path: &str, shape: [i32; 3]) -> Result<Array> {
    let stack = weights.take_shaped(&format!("{path}.weight"), &shape)?;
    if experts::knows_dense_experts(stack.dtype()) {
        return Ok(stack.transpose_axes(&[0, 2, 1])?);
    }
    let message =
        format!("the processor cannot multiply the experts `{path}` in {:?}", stack.dtype());
    Err(Error::new(Code::BadModel, message).with_hint("load the model in float32"))
}

/// Brings experts that a checkpoint holds under `source` in another layout to stacks under `target`:
/// one by one (`source.N.gate_proj.weight`), or with gate and up in one (`source.gate_up_proj`, the gate
/// first, and `source.down_proj`, each maybe packed). What is stacked already stays.
///
/// # Errors
/// `BadModel` naming the expert's tensor that is missing, or does not halve.
pub fn stack_experts(
    weights: &mut Weights,
    (source, target): (&str, &str),
    experts: i32,
) -> Result<()> {
    for name in ["gate_proj", "up_proj", "down_proj"] {
        for part in ["weight", "scales", "biases", "bias"] {
            if weights.contains(&format!("{source}.0.{name}.{part}")) {
                let one = |expert| format!("{source}.{expert}.{name}.{part}");
                let all = (0..experts).map(|expert| weights.detach(&one(expert)));
                let all = all.collect::<Result<Vec<_>>>()?;
                check_alike(&all, one)?;
                let stack = experts::stack(&all)?;
                put_now(weights, format!("{target}.{name}.{part}"), stack)?;
            }
        }
    }
    for (end, part) in
        [("", "weight"), (".weight", "weight"), (".scales", "scales"), (".biases", "biases")]
    {
        let fused = format!("{source}.gate_up_proj{end}");
        if weights.contains(&fused) {
            halve(weights, &fused, |name| format!("{target}.{name}.{part}"))?;
        }
        let down = format!("{source}.down_proj{end}");
        if source != target && weights.contains(&down) {
            let stack = weights.detach(&down)?;
            weights.put(format!("{target}.down_proj.{part}"), stack);
        }
    }
    Ok(())
}

/// Holds that the tensors of all experts have one shape; `name_of` names that of each.
fn check_alike(all: &[Array], name_of: impl Fn(i32) -> String) -> Result<()> {
    let Some(first) = all.first().map(Array::shape) else { return Ok(()) };
    match (0..).zip(all).find(|(_, array)| array.shape() != first) {
        None => Ok(()),
        Some((expert, array)) => {
            let (name, shape) = (name_of(expert), array.shape());
            let message = format!("tensor `{name}` has shape {shape:?}, but the first {first:?}");
            Err(Error::new(Code::BadModel, message))
        }
    }
}

/// Parts the stack `fused` into the gate's rows and those of what it gates.
fn halve(weights: &mut Weights, fused: &str, name_of: impl Fn(&str) -> String) -> Result<()> {
    let both = weights.detach(fused)?;
    let [_, rows, _] = both.shape() else { return Err(cannot_halve(fused, &both)) };
    let (rows, half) = (*rows, rows / 2);
    if rows % 2 != 0 {
        return Err(cannot_halve(fused, &both));
    }
    for (name, start, stop) in [("gate_proj", 0, half), ("up_proj", half, rows)] {
        put_now(weights, name_of(name), experts::rows_of_each(&both, start, stop)?)?;
    }
    Ok(())
}

/// Evaluates first, so that what `array` was made of can go.
fn put_now(weights: &mut Weights, name: String, array: Array) -> Result<()> {
    ops::evaluate([&array])?;
    weights.put(name, array);
    Ok(())
}

fn cannot_halve(name: &str, array: &Array) -> Error {
    let message = format!(
        "tensor `{name}` has shape {:?}, but gate and up take an even number of rows of each expert",
        array.shape()
    );
    Error::new(Code::BadModel, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mlx::{Device, Dtype};
    use crate::model::nn::Mlp;

    const SIZES: ExpertSizes = ExpertSizes { experts: 5, hidden: 64, intermediate: 32 };
    const PROJECTIONS: [(&str, [i32; 2]); 3] =
        [("gate_proj", [32, 64]), ("up_proj", [32, 64]), ("down_proj", [64, 32])];

    fn smooth(shape: &[i32], seed: f32) -> Array {
        let count: i32 = shape.iter().product();
        let data: Vec<f32> = (0..count).map(|i| (seed + i as f32 * 0.731).sin() * 0.3).collect();
        Array::from_slice(&data, shape)
    }

    fn seed(name: &str, expert: i32) -> f32 {
        name.len() as f32 + expert as f32 * 17.3
    }

    /// Each projection of one expert, as a dense checkpoint under `path` would hold it.
    fn one(path: &str, expert: i32, biases: bool) -> Vec<(String, Array)> {
        let of = |(name, shape): &(&str, [i32; 2])| {
            let weight = (format!("{path}.{name}.weight"), smooth(shape, seed(name, expert)));
            let bias = smooth(&shape[..1], seed(name, expert) + 3.0);
            let bias = biases.then(|| (format!("{path}.{name}.bias"), bias));
            [Some(weight), bias].into_iter().flatten().collect::<Vec<_>>()
        };
        PROJECTIONS.iter().flat_map(of).collect()
    }

    fn apart(biases: bool) -> Weights {
        let of = |expert| one(&format!("experts.{expert}"), expert, biases);
        Weights::of((0..SIZES.experts).flat_map(of))
    }

    fn config(quantization: &serde_json::Value) -> ModelConfig {
        let fields = json!({ "quantization": quantization });
        ModelConfig::from_fields(fields.as_object().unwrap().clone())
    }

    fn dense(biases: bool, activation: Activation) -> Experts {
        let mut weights = apart(biases);
        stack_experts(&mut weights, ("experts", "stacks"), SIZES.experts).unwrap();
        Experts::load(&mut weights, &config(&json!(null)), "stacks", SIZES, activation).unwrap()
    }

    /// The same matrices, affine in 4 bits.
    fn packed(activation: Activation) -> Experts {
        let mut weights = apart(false);
        stack_experts(&mut weights, ("experts", "stacks"), SIZES.experts).unwrap();
        for (name, _) in PROJECTIONS {
            let at = |part: &str| format!("stacks.{name}.{part}");
            let (values, scales, biases) =
                ops::quantize(&weights.take(&at("weight")).unwrap(), (32, 4)).unwrap();
            for (part, array) in [("weight", values), ("scales", scales), ("biases", biases)] {
                weights.put(at(part), array);
            }
        }
        let config = config(&json!({ "group_size": 32, "bits": 4 }));
        Experts::load(&mut weights, &config, "stacks", SIZES, activation).unwrap()
    }

    /// `[rows, tokens, 2]`: two different experts for each token.
    fn chosen(rows: i32, tokens: i32) -> Array {
        let count = rows * tokens;
        let pair = |token: i32| {
            let first = (token * 7 + 3) % SIZES.experts;
            [first, (first + 1 + token % (SIZES.experts - 1)) % SIZES.experts]
        };
        let flat: Vec<u32> = (0..count).flat_map(pair).map(i32::unsigned_abs).collect();
        Array::from_slice(&flat, &[rows, tokens, 2])
    }

    const ACTIVATIONS: [Activation; 3] = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::ClippedSilu { alpha: 1.702, limit: 0.4 },
    ];

    #[test]
    fn sorting_tokens_by_expert_changes_no_bit() {
        Device::cpu();
        for activation in ACTIVATIONS {
            for experts in [dense(false, activation), dense(true, activation), packed(activation)] {
                for (rows, tokens) in [(1, 1), (1, 32), (3, 13)] {
                    let (x, chosen) = (smooth(&[rows, tokens, 64], 0.2), chosen(rows, tokens));
                    let read = |array: Result<Array>| {
                        let array = array.unwrap();
                        assert_eq!(array.shape(), [rows, tokens, 2, 64]);
                        ops::read_f32(&array).unwrap()
                    };
                    let sorted = read(experts.forward_sorted(&x, &chosen));
                    assert_eq!(sorted, read(experts.forward_as_chosen(&x, &chosen)));
                    assert_eq!(sorted, read(experts.forward_each(&x, &chosen)));
                }
            }
        }
    }

    #[test]
    fn each_expert_makes_of_its_token_what_it_would_make_of_it_as_the_only_block() {
        Device::cpu();
        for activation in ACTIVATIONS {
            for biases in [false, true] {
                let experts = dense(biases, activation);
                let (x, chosen) = (smooth(&[2, 20, 64], 0.2), chosen(2, 20));
                let results = ops::read_f32(&experts.forward_each(&x, &chosen).unwrap()).unwrap();
                let chosen = ops::read_u32(&chosen).unwrap();
                for (place, (result, expert)) in results.chunks(64).zip(chosen).enumerate() {
                    let (row, token) = (place as i32 / 40, place as i32 / 2 % 20);
                    let x = ops::slice_axis(&x, 0, row, row + 1).unwrap();
                    let x = ops::slice_axis(&x, 1, token, token + 1).unwrap();
                    let alone = alone(expert.cast_signed(), biases, activation);
                    let alone = ops::read_f32(&alone.forward(&x).unwrap()).unwrap();
                    assert_near(result, &alone);
                }
            }
        }
    }

    fn alone(expert: i32, biases: bool, activation: Activation) -> Mlp {
        let mut weights = Weights::of(one("mlp", expert, biases));
        let mlp = Mlp::load(&mut weights, &config(&json!(null)), "mlp", (64, 32)).unwrap();
        mlp.with_activation(activation)
    }

    /// Sums of 64 products below 0.1, which BLAS adds up in an order of its own.
    fn assert_near(left: &[f32], right: &[f32]) {
        for (left, right) in left.iter().zip(right) {
            assert!((left - right).abs() < 1e-6, "{left} and {right}");
        }
    }

    #[test]
    fn every_layout_holds_the_same_experts() {
        Device::cpu();
        let (x, chosen) = (smooth(&[1, 3, 64], 0.2), chosen(1, 3));
        let expected = dense(false, Activation::Silu).forward_each(&x, &chosen).unwrap();
        let stack = |name: &str, shape: &[i32; 2]| {
            let of = |expert| smooth(shape, seed(name, expert));
            experts::stack(&(0..SIZES.experts).map(of).collect::<Vec<_>>()).unwrap()
        };
        let [(gate, gate_shape), (up, up_shape), (down, down_shape)] = PROJECTIONS;
        let both = [stack(gate, &gate_shape), stack(up, &up_shape)];
        let mut weights = Weights::of([
            ("experts.gate_up_proj".to_owned(), ops::concatenate_axis(&both, 1).unwrap()),
            ("experts.down_proj".to_owned(), stack(down, &down_shape)),
        ]);
        stack_experts(&mut weights, ("experts", "experts.stacks"), SIZES.experts).unwrap();
        let config = config(&json!(null));
        let fused = Experts::load(&mut weights, &config, "experts.stacks", SIZES, Activation::Silu)
            .unwrap();
        let fused = fused.forward_each(&x, &chosen).unwrap();
        assert_eq!(ops::read_f32(&fused).unwrap(), ops::read_f32(&expected).unwrap());
        assert!(weights.read(&mut |_| ()).is_ok(), "nothing is left");
    }

    #[test]
    fn experts_that_are_missing_or_do_not_fit_are_refused_by_name() {
        Device::cpu();
        let load = |mut weights: Weights, sizes: ExpertSizes| {
            stack_experts(&mut weights, ("experts", "stacks"), sizes.experts)?;
            Experts::load(&mut weights, &config(&json!(null)), "stacks", sizes, Activation::Silu)
        };
        let error = load(apart(false), ExpertSizes { experts: 6, ..SIZES }).unwrap_err();
        assert!(error.message().contains("`experts.5.gate_proj.weight`"), "{error}");
        let error = load(apart(false), ExpertSizes { intermediate: 48, ..SIZES }).unwrap_err();
        assert!(error.message().contains("`stacks.gate_proj.weight`"), "{error}");
        let odd = Weights::of([("experts.gate_up_proj".to_owned(), smooth(&[5, 3, 64], 0.1))]);
        assert!(load(odd, SIZES).unwrap_err().message().contains("`experts.gate_up_proj`"));
        let mut half = apart(false);
        half.cast(Dtype::Bfloat16).unwrap();
        let error = load(half, SIZES).unwrap_err();
        assert!(error.message().contains("`stacks.gate_proj`"), "{error}");
        assert_eq!(error.code(), Code::BadModel);
    }
}

//! Token embeddings, which may serve as the head too.

use super::linear::Matrix;
use crate::error::Result;
use crate::mlx::{Array, Dtype, Weights, ops};
use crate::model::ModelConfig;

/// A table of `[vocabulary, hidden]`. A clone shares the table.
#[derive(Debug, Clone)]
pub struct Embedding {
    table: Matrix,
    /// Of vectors that are unpacked: the type of the weights that are not packed. MLX would make bf16
    /// ones of floating-point modes, whatever the rest computes in; their numbers are the same.
    dtype: Dtype,
    factor: Option<f32>,
}

impl Embedding {
    /// Takes `path.weight`, packed as that of a [`Linear`](super::Linear) may be.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        (vocabulary, hidden): (i32, i32),
    ) -> Result<Self> {
        let dtype = weights.dtype().unwrap_or(Dtype::Bfloat16);
        let table = Matrix::load(weights, config, path, (vocabulary, hidden))?;
        Ok(Self { table, dtype, factor: None })
    }

    /// The same with every vector times `factor`, which does not concern the head.
    pub fn scaled(self, factor: f32) -> Self {
        Self { factor: Some(factor), ..self }
    }

    /// Tokens `[B, L]` to vectors `[B, L, hidden]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, tokens: &Array) -> Result<Array> {
        let vectors = self.look_up(tokens)?;
        match self.factor {
            Some(factor) => ops::scale(&vectors, factor),
            None => Ok(vectors),
        }
    }

    fn look_up(&self, tokens: &Array) -> Result<Array> {
        match &self.table {
            Matrix::Dense { weight, .. } => ops::take_axis(weight, tokens, 0),
            Matrix::Packed(matrix) => matrix.rows(tokens, self.dtype),
        }
    }

    /// The vectors' means, weighted by the softmax of `logits` `[B, L, vocabulary]`:
    /// `[B, L, hidden]`. A dense table's softmax is taken of logits in the table's type, a packed one's in
    /// their own (mlx-vlm 0.7.10, `diffusion_gemma/language.py`).
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn mean(&self, logits: &Array) -> Result<Array> {
        let mean = match &self.table {
            Matrix::Dense { weight, .. } => {
                ops::softmax_last(&logits.as_dtype(weight.dtype())?)?.matmul(weight)?
            }
            Matrix::Packed(table) => {
                table.mix_rows(&ops::softmax_last(logits)?.as_dtype(self.dtype)?)?
            }
        };
        match self.factor {
            Some(factor) => ops::scale(&mean, factor),
            None => Ok(mean),
        }
    }

    /// The tied head: vectors `[B, L, hidden]` to logits `[B, L, vocabulary]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn as_head(&self, x: &Array) -> Result<Array> {
        self.table.multiply(x)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mlx::Device;

    #[test]
    fn a_packed_table_gives_vectors_in_the_type_that_the_model_computes_in() {
        Device::cpu();
        for (mode, bits, group_size) in [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)] {
            for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
                let zeros = |columns, dtype| ops::zeros(&[8, columns], dtype).unwrap();
                let mut weights = Weights::of([
                    ("table.weight".to_owned(), zeros(64 * bits / 32, Dtype::Uint32)),
                    ("table.scales".to_owned(), zeros(64 / group_size, Dtype::Uint8)),
                    ("norm.weight".to_owned(), zeros(64, Dtype::Bfloat16)),
                ]);
                weights.cast(dtype).unwrap();
                let quantization = json!({ "mode": mode, "bits": bits, "group_size": group_size });
                let fields = json!({ "quantization": quantization });
                let config = ModelConfig::from_fields(fields.as_object().unwrap().clone());
                let table = Embedding::load(&mut weights, &config, "table", (8, 64)).unwrap();
                let vectors = table.forward(&ops::token_matrix(&[1, 7, 2], 1)).unwrap();
                assert_eq!(vectors.shape(), [1, 3, 64]);
                assert_eq!(vectors.dtype(), dtype, "{mode}");
            }
        }
    }
}

//! Token embeddings, which may serve as the head too.

use super::linear::Matrix;
use crate::error::Result;
use crate::mlx::{Array, Weights, ops};
use crate::model::ModelConfig;

/// A table of `[vocabulary, hidden]`.
#[derive(Debug)]
pub struct Embedding {
    table: Matrix,
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
        let table = Matrix::load(weights, config, path, (vocabulary, hidden))?;
        Ok(Self { table, factor: None })
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
            Matrix::Packed(matrix) => matrix.rows(tokens),
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

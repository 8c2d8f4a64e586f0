//! Latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1): of each token one latent that all
//! heads share and one turned key, and where a layer chooses what it attends to ("DeepSeek-V3.2",
//! section 2.1) the key that it chooses by.
//!
//! Columns are those of full attention: a set's full mask and offsets hold for them. Their heads are
//! one, so a row costs the same however many heads attend. They are stored plain: a KV scheme that
//! packs keys and values has none to pack here.

use super::buffers::{Buffers, Tensors};
use super::columns::Columns;
use super::geometry::{self, Geometry};
use super::layer::row_count;
use super::owned::OwnedCache;
use super::profile::LayerBytes;
use crate::error::{Code, Error, Result};
use crate::mlx::{Array, ops, sparse};

/// Columns `[B, 1, S, D]`, each tensor with its own `D`.
#[derive(Debug, Clone)]
pub struct LatentColumns {
    /// What keys and values of all heads are made from.
    pub latents: Columns,
    /// The keys' part with positions.
    pub rope_keys: Columns,
    /// What a layer chooses columns by, in layers that choose.
    pub index_keys: Option<Columns>,
}

impl LatentColumns {
    /// Plain ones.
    pub fn plain(latents: Array, rope_keys: Array, index_keys: Option<Array>) -> Self {
        Self {
            latents: Columns::Plain(latents),
            rope_keys: Columns::Plain(rope_keys),
            index_keys: index_keys.map(Columns::Plain),
        }
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        let tensors = [&self.latents, &self.rope_keys].into_iter().chain(&self.index_keys);
        tensors.flat_map(Columns::arrays)
    }
}

impl Tensors for LatentColumns {
    fn first(&self) -> &Columns {
        &self.latents
    }

    fn map(&self, change: impl Fn(&Columns) -> Result<Columns>) -> Result<Self> {
        Ok(Self {
            latents: change(&self.latents)?,
            rope_keys: change(&self.rope_keys)?,
            index_keys: self.index_keys.as_ref().map(change).transpose()?,
        })
    }

    fn zip(
        &self,
        other: &Self,
        change: impl Fn(&Columns, &Columns) -> Result<Columns>,
    ) -> Result<Self> {
        Ok(Self {
            latents: change(&self.latents, &other.latents)?,
            rope_keys: change(&self.rope_keys, &other.rope_keys)?,
            index_keys: match (&self.index_keys, &other.index_keys) {
                (Some(own), Some(other)) => Some(change(own, other)?),
                (None, None) => None,
                (Some(_), None) | (None, Some(_)) => return Err(half_indexed()),
            },
        })
    }

    fn stack(parts: &[Self]) -> Result<Self> {
        let all = |pick: fn(&Self) -> &Columns| parts.iter().map(move |part| pick(part).clone());
        let index_keys: Vec<_> = parts.iter().filter_map(|part| part.index_keys.clone()).collect();
        Ok(Self {
            latents: Columns::stack(&all(|part| &part.latents).collect::<Vec<_>>())?,
            rope_keys: Columns::stack(&all(|part| &part.rope_keys).collect::<Vec<_>>())?,
            index_keys: match index_keys.len() {
                0 => None,
                count if count == parts.len() => Some(Columns::stack(&index_keys)?),
                _ => return Err(half_indexed()),
            },
        })
    }
}

/// The columns of one layer, and where each row's stand among them.
#[derive(Debug)]
pub struct LatentCache {
    buffers: Buffers<LatentColumns>,
    geometry: Geometry,
    token_bytes: u64,
}

impl LatentCache {
    /// An empty cache of one row, each of whose tokens will take `token_bytes`.
    pub fn new(token_bytes: u64) -> Self {
        Self { buffers: Buffers::default(), geometry: Geometry::solo(), token_bytes }
    }

    /// Writes new columns behind those before them and returns all. Whoever evaluates the latents has
    /// evaluated the index keys too: a step that attends to everything does not look at them, and
    /// unlooked-at they would pile up as a graph (mlx-lm 0.32.2, `deepseek_v32`, ties them likewise).
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn update(&mut self, new: &LatentColumns) -> Result<LatentColumns> {
        let seen = self.buffers.write(self.geometry.width(), new)?;
        self.geometry.advance(new.count().unsigned_abs() as usize);
        let Some(index_keys) = &seen.index_keys else { return Ok(seen) };
        let latents = sparse::depend(seen.latents.as_plain()?, index_keys.as_plain()?)?;
        Ok(LatentColumns { latents: Columns::Plain(latents), ..seen })
    }
}

impl OwnedCache for LatentCache {
    fn extend(&mut self, joiner: Self) -> Result<()> {
        let widths = (self.geometry.width(), joiner.geometry.width());
        let rows = (row_count(self.geometry.rows()), row_count(joiner.geometry.rows()));
        self.buffers.extend(joiner.buffers, widths, rows)?;
        self.geometry.extend(&joiner.geometry);
        Ok(())
    }

    fn merge(solos: Vec<Self>) -> Result<Self> {
        let geometries: Vec<_> = solos.iter().map(|solo| solo.geometry.clone()).collect();
        let widths: Vec<_> = geometries.iter().map(Geometry::width).collect();
        Ok(Self {
            buffers: Buffers::merge(solos.iter().map(|solo| &solo.buffers), &widths)?,
            geometry: Geometry::merge(&geometries),
            token_bytes: solos.first().map_or(0, |solo| solo.token_bytes),
        })
    }

    fn filter(&mut self, keep: &[usize]) -> Result<()> {
        let shift = self.geometry.filter(keep);
        let columns = shift..shift + geometry::granules(self.geometry.width());
        self.buffers.filter(&geometry::indices(keep), &columns)
    }

    fn extract(&self, row: usize) -> Result<Self> {
        let columns = self.geometry.columns_of(row);
        Ok(Self {
            buffers: self.buffers.extract(row, &columns)?,
            geometry: Geometry::solo_of_width(columns.end - columns.start),
            token_bytes: self.token_bytes,
        })
    }

    fn share(&self) -> Self {
        let (geometry, token_bytes) = (self.geometry.clone(), self.token_bytes);
        Self { buffers: self.buffers.share(), geometry, token_bytes }
    }

    fn tensors(&self) -> Result<Vec<Array>> {
        let columns = self.buffers.columns(self.geometry.width())?;
        Ok(columns.iter().flat_map(LatentColumns::arrays).map(ops::share).collect())
    }

    fn restore(self, tokens: i32, tensors: Vec<Array>) -> Result<Self> {
        let mut tensors = tensors.into_iter();
        let columns = match (tensors.next(), tensors.next(), tensors.next()) {
            (None, ..) => None,
            (Some(latents), Some(rope_keys), index_keys) => {
                Some(LatentColumns::plain(latents, rope_keys, index_keys))
            }
            (Some(_), None, _) => return Err(Error::new(Code::BadModel, "a latent without keys")),
        };
        let geometry = Geometry::solo_of_width(tokens);
        Ok(Self { buffers: Buffers(columns), geometry, token_bytes: self.token_bytes })
    }

    fn can_trim(&self) -> bool {
        true
    }

    fn trim(&mut self, tokens: i32) -> Result<()> {
        self.geometry.trim(tokens);
        self.buffers.cut_to(self.geometry.width())
    }

    fn arrays(&self) -> Vec<&Array> {
        self.buffers.0.iter().flat_map(LatentColumns::arrays).collect()
    }

    fn row_bytes(&self) -> LayerBytes {
        LayerBytes::Full { token_bytes: self.token_bytes }
    }

    fn serial_because(&self) -> Option<String> {
        None
    }
}

fn half_indexed() -> Error {
    Error::new(Code::Internal, "columns with and without index keys meet in one layer")
}

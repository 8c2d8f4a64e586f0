//! The caches of all layers of one row or of a batch, moved together.

use super::columns::KeyValues;
use super::geometry::{self, Geometry, Offset};
use super::layer::{Extraction, Joining, Keeping, LayerCache, LayerSlot, Merging, row_count};
use super::owned::OwnedCache;
use super::profile::KvProfile;
use super::recurrent::RecurrentCache;
use super::ring::Ring;
use super::scheme::KvScheme;
use crate::error::{Code, Error, Result};
use crate::mlx::ops::{self, Mask};
use crate::mlx::{Array, ThreadBound};

/// The caches of all layers of one row or of a batch of rows. It stays on the engine thread:
///
/// ```compile_fail
/// fn leaves_its_thread<T: Send>() {}
/// leaves_its_thread::<slipstream_engine::cache::CacheSet>();
/// ```
#[derive(Debug)]
pub struct CacheSet {
    layers: Vec<LayerCache>,
    geometry: Geometry,
    /// One per window among the layers.
    rings: Vec<Ring>,
    bound: ThreadBound,
}

/// What all layers of one forward share: made once, before the first layer writes.
#[derive(Debug)]
pub struct Positions {
    /// Where the new tokens stand, for rotary embeddings.
    pub offset: Offset,
    /// What full-attention layers may attend to.
    pub full_mask: Mask,
    /// What sliding layers may attend to, one per ring; [`LayerSlot::mask`] picks.
    pub ring_masks: Vec<Mask>,
}

impl CacheSet {
    /// An empty row with these layers.
    pub fn solo(layers: Vec<LayerCache>) -> Self {
        let mut rings: Vec<Ring> = Vec::new();
        for layer in &layers {
            match layer {
                LayerCache::Rotating(cache) => {
                    if rings.iter().all(|ring| ring.window() != cache.window()) {
                        rings.push(Ring::solo(cache.window()));
                    }
                }
                LayerCache::Full(_) | LayerCache::Recurrent(_) | LayerCache::Owned(_) => {}
            }
        }
        Self { layers, geometry: Geometry::solo(), rings, bound: ThreadBound::default() }
    }

    pub(super) fn of_parts(
        layers: Vec<LayerCache>,
        geometry: Geometry,
        rings: Vec<Ring>,
        bound: ThreadBound,
    ) -> Self {
        Self { layers, geometry, rings, bound }
    }

    pub(super) fn into_parts(self) -> (Vec<LayerCache>, Vec<Ring>, ThreadBound) {
        (self.layers, self.rings, self.bound)
    }

    pub(super) fn layers(&self) -> &[LayerCache] {
        &self.layers
    }

    /// How many rows it holds.
    pub fn rows(&self) -> usize {
        self.geometry.rows()
    }

    /// The rows' widths and paddings.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The rings of its windows.
    pub fn rings(&self) -> &[Ring] {
        &self.rings
    }

    /// Offsets and masks for `tokens` new columns. Nothing is written.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn positions(&self, tokens: usize) -> Result<Positions> {
        Ok(Positions {
            offset: self.geometry.offset(),
            full_mask: self.geometry.full_mask(tokens)?,
            ring_masks: self.rings.iter().map(|ring| ring.mask(tokens)).collect::<Result<_>>()?,
        })
    }

    /// The cache of attention layer `index`.
    pub fn layer(&mut self, index: usize) -> LayerSlot<'_> {
        let cache = &mut self.layers[index];
        LayerSlot { cache, geometry: &self.geometry, rings: &self.rings }
    }

    /// The columns of attention layer `index` that a token in the next column would see, the oldest
    /// first, itself not among them; `None` where nothing was written. For a lone row.
    ///
    /// # Errors
    /// `Internal` when there are more rows, or the layer keeps no columns of this kind; `EngineFailed`
    /// with MLX's text.
    pub fn before_next(&self, index: usize) -> Result<Option<KeyValues>> {
        match self.rows() {
            1 => self.layers[index].before_next(self.geometry.width(), &self.rings),
            rows => {
                let message = format!("{rows} rows look back together, expected 1");
                Err(Error::new(Code::Internal, message))
            }
        }
    }

    /// The states of recurrent layer `index`.
    ///
    /// # Errors
    /// `Internal` when the layer is of another kind.
    pub fn recurrent(&mut self, index: usize) -> Result<&mut RecurrentCache> {
        match &mut self.layers[index] {
            LayerCache::Recurrent(cache) => Ok(cache),
            LayerCache::Full(_) | LayerCache::Rotating(_) | LayerCache::Owned(_) => {
                Err(Error::new(Code::Internal, format!("layer {index} is not recurrent")))
            }
        }
    }

    /// The cache that the architecture of layer `index` brought along.
    ///
    /// # Errors
    /// `Internal` when the layer is of another kind or type.
    pub fn owned<T: OwnedCache>(&mut self, index: usize) -> Result<&mut T> {
        match &mut self.layers[index] {
            LayerCache::Owned(cache) => cache.get_mut(),
            LayerCache::Full(_) | LayerCache::Rotating(_) | LayerCache::Recurrent(_) => {
                Err(Error::new(Code::Internal, format!("layer {index} is not its model's own")))
            }
        }
    }

    /// Counts `tokens` columns that every layer has written.
    pub fn advance(&mut self, tokens: usize) {
        self.geometry.advance(tokens);
        self.rings.iter_mut().for_each(|ring| ring.advance(tokens));
    }

    /// In which way each cache keeps tokens, in one word.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.layers.iter().map(|layer| match layer {
            LayerCache::Full(_) => "full",
            LayerCache::Rotating(_) => "sliding",
            LayerCache::Recurrent(_) => "recurrent",
            LayerCache::Owned(_) => "latent",
        })
    }

    /// Why rows with such caches cannot share a batch; `None` when they can. It depends on the layers
    /// alone, so what a fresh set says holds for all sets of the model.
    pub fn serial_because(&self) -> Option<String> {
        self.layers.iter().find_map(LayerCache::serial_because)
    }

    /// Adds `joiner`'s rows below these, right-aligned on the wider set, as mlx-lm 0.32.2's
    /// `BatchKVCache.extend` does: padding grows, nothing is renormalized.
    ///
    /// # Errors
    /// `Internal` when rows cannot share a batch; `EngineFailed` with MLX's text. The set is then
    /// unusable.
    pub fn extend(&mut self, joiner: Self) -> Result<()> {
        self.check_batchable()?;
        joiner.check_batchable()?;
        let widths = (self.geometry.width(), joiner.geometry.width());
        let rows = (row_count(self.rows()), row_count(joiner.rows()));
        let rings = self.rings.iter_mut().zip(joiner.rings).map(|(own, other)| own.extend(other));
        let joining = Joining { widths, rows, rings: rings.collect() };
        for (layer, other) in self.layers.iter_mut().zip(joiner.layers) {
            layer.extend(other, &self.rings, &joining)?;
        }
        self.geometry.extend(&joiner.geometry);
        Ok(())
    }

    /// Adds `joiner`'s row by taking every row out and merging them all: what [`CacheSet::extend`]
    /// saves, for measurements side by side.
    ///
    /// # Errors
    /// As [`CacheSet::merge`].
    pub fn remerge(&mut self, joiner: Self) -> Result<()> {
        let rows = (0..self.rows()).map(|row| self.extract(row));
        let mut solos = rows.collect::<Result<Vec<_>>>()?;
        solos.push(joiner);
        *self = Self::merge(solos)?;
        Ok(())
    }

    /// One batch of several lone rows, rebuilt from their columns: paddings are as small as can be
    /// (mlx-lm 0.32.2, `BatchKVCache.merge` and its siblings).
    ///
    /// # Errors
    /// `Internal` when there is no row, a set is not lone or rows cannot share a batch;
    /// `EngineFailed` with MLX's text.
    pub fn merge(solos: Vec<Self>) -> Result<Self> {
        let Some(first) = solos.first() else {
            return Err(Error::new(Code::Internal, "no rows to merge"));
        };
        if let Some(batch) = solos.iter().find(|solo| solo.rows() != 1) {
            let message = format!("a batch of {} rows was merged as a lone one", batch.rows());
            return Err(Error::new(Code::Internal, message));
        }
        first.check_batchable()?;
        let geometries: Vec<_> = solos.iter().map(|solo| solo.geometry.clone()).collect();
        let rings = (0..first.rings.len()).map(|index| {
            Ring::merge(&solos.iter().map(|solo| solo.rings[index].clone()).collect::<Vec<_>>())
        });
        let (rings, parts): (Vec<_>, Vec<_>) = rings.unzip();
        let widths = geometries.iter().map(Geometry::width).collect();
        let merging = Merging { widths, rings: parts };
        let bound = first.bound;
        let layers = merge_layers(solos, &rings, &merging)?;
        Ok(Self { layers, geometry: Geometry::merge(&geometries), rings, bound })
    }

    /// Keeps the rows at `keep`, in that order. Full layers drop the padding that the rows share;
    /// rings overwrite theirs in time.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text; the set is then unusable.
    pub fn filter(&mut self, keep: &[usize]) -> Result<()> {
        let shift = self.geometry.filter(keep);
        self.rings.iter_mut().for_each(|ring| ring.filter(keep));
        let columns = shift..shift + geometry::granules(self.geometry.width());
        let keeping = Keeping { rows: keep, columns };
        self.layers.iter_mut().try_for_each(|layer| layer.filter(&keeping))
    }

    /// Copies row `row` out as fresh solo caches. Recurrent states come as they are: they are those
    /// of the row's last fed token, and stay so ([`CacheSet::can_trim`]).
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn extract(&self, row: usize) -> Result<Self> {
        let columns = self.geometry.columns_of(row);
        let tokens = columns.end - columns.start;
        let rings = self.rings.iter().map(|ring| ring.extract(row, tokens));
        let (ranges, rings) = rings.unzip();
        let extraction = Extraction { row, columns, rings: ranges };
        let layers = self.layers.iter().map(|layer| layer.extract(&self.rings, &extraction));
        let layers = layers.collect::<Result<_>>()?;
        Ok(Self { layers, geometry: Geometry::solo_of_width(tokens), rings, bound: self.bound })
    }

    /// The same rows under new handles. Nothing is copied until one of the two is written.
    #[must_use]
    pub fn share(&self) -> Self {
        Self {
            layers: self.layers.iter().map(LayerCache::share).collect(),
            geometry: self.geometry.clone(),
            rings: self.rings.clone(),
            bound: self.bound,
        }
    }

    /// Whether tokens can be taken back: full layers always can, rotating ones until they wrap,
    /// recurrent ones never.
    pub fn can_trim(&self) -> bool {
        self.layers.iter().all(|layer| layer.can_trim(&self.rings))
    }

    /// Takes the last `tokens` tokens back from every row, or as many as the shortest row has, and
    /// returns how many.
    ///
    /// # Errors
    /// `Internal` when a layer cannot; nothing has changed then.
    pub fn trim(&mut self, tokens: usize) -> Result<usize> {
        if !self.can_trim() {
            return Err(Error::new(Code::Internal, format!("cannot take back {tokens} tokens")));
        }
        let tokens = ops::axis_index(tokens).min(self.geometry.shortest());
        self.geometry.trim(tokens);
        let width = self.geometry.width();
        self.layers.iter_mut().try_for_each(|layer| layer.trim(tokens, width))?;
        self.rings.iter_mut().for_each(|ring| ring.trim(tokens));
        Ok(tokens.unsigned_abs() as usize)
    }

    /// What a row costs, when a token's keys and values take `token_bytes` in a layer.
    pub fn profile(&self, token_bytes: impl Fn(usize) -> u64) -> KvProfile {
        let layers = self.layers.iter().enumerate();
        KvProfile { layers: layers.map(|(i, layer)| layer.row_bytes(token_bytes(i))).collect() }
    }

    /// Brings the layers into the form that `scheme` has for them after a forward, one after the other:
    /// each is evaluated before the next, so that its plain buffers are free by then.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text; the set is then unusable.
    pub fn convert(&mut self, scheme: &KvScheme) -> Result<()> {
        let tokens = self.geometry.width().unsigned_abs() as usize;
        for (index, layer) in self.layers.iter_mut().enumerate() {
            if let Some(packing) = scheme.packing_at(index, tokens)
                && layer.convert(packing)?
            {
                ops::evaluate(layer.arrays())?;
            }
        }
        Ok(())
    }

    /// Every array, to evaluate them at once.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(LayerCache::arrays)
    }

    /// Bytes of all buffers, granules and padding included.
    pub fn bytes(&self) -> u64 {
        self.arrays().map(|array| array.nbytes() as u64).sum()
    }

    fn check_batchable(&self) -> Result<()> {
        match self.serial_because() {
            None => Ok(()),
            Some(reason) => {
                Err(Error::new(Code::Internal, format!("rows of this model cannot join: {reason}")))
            }
        }
    }
}

/// Layer by layer, so that each one's sources end before the next is built.
fn merge_layers(
    solos: Vec<CacheSet>,
    rings: &[Ring],
    merging: &Merging,
) -> Result<Vec<LayerCache>> {
    let mut rows: Vec<_> = solos.into_iter().map(|solo| solo.layers.into_iter()).collect();
    let mut layers = Vec::new();
    loop {
        let mut column: Vec<_> = rows.iter_mut().filter_map(Iterator::next).collect();
        if column.is_empty() {
            return Ok(layers);
        }
        let first = column.remove(0);
        layers.push(LayerCache::merge(first, column, rings, merging)?);
    }
}

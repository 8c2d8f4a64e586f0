//! A cache that only its architecture knows, as multi-head latent attention has one: a pair of
//! tensors with a layout and paddings of its own.

use super::super::columns::Columns;
use super::super::{KeyValues, LayerBytes, OwnedCache};
use super::TOKEN_BYTES;
use crate::error::Result;
use crate::mlx::Array;
use crate::mlx::ops;

/// Two tensors `[B, H, S, D]` of exactly the columns written.
#[derive(Debug)]
pub(super) struct Latent {
    pair: Option<KeyValues>,
    left_padding: Vec<i32>,
}

impl Default for Latent {
    fn default() -> Self {
        Self { pair: None, left_padding: vec![0] }
    }
}

impl Latent {
    pub(super) fn append(&mut self, keys: &Array) {
        let new = KeyValues::plain(keys.clone(), keys.negative().unwrap());
        let pair = match self.pair.take() {
            Some(pair) => pair.zip(&new, Columns::then).unwrap(),
            None => new,
        };
        self.pair = Some(pair);
    }

    fn width(&self) -> i32 {
        self.pair.as_ref().map_or(0, KeyValues::count)
    }

    fn widened(&self, width: i32, like: &KeyValues) -> Result<KeyValues> {
        match &self.pair {
            Some(pair) => pair.map(|columns| columns.pad(width - columns.count(), 0)),
            None => like.map(|columns| columns.blank(self.left_padding.len() as i32, width)),
        }
    }
}

impl OwnedCache for Latent {
    fn extend(&mut self, joiner: Self) -> Result<()> {
        let width = self.width().max(joiner.width());
        let shift = |latent: &Self| {
            let more = width - latent.width();
            latent.left_padding.iter().map(|padding| padding + more).collect::<Vec<_>>()
        };
        let left_padding = [shift(self), shift(&joiner)].concat();
        if let Some(like) = self.pair.clone().or_else(|| joiner.pair.clone()) {
            let (own, other) = (self.widened(width, &like)?, joiner.widened(width, &like)?);
            self.pair = Some(own.zip(&other, Columns::above)?);
        }
        self.left_padding = left_padding;
        Ok(())
    }

    fn merge(solos: Vec<Self>) -> Result<Self> {
        let mut solos = solos.into_iter();
        let mut merged = solos.next().unwrap();
        solos.try_for_each(|solo| merged.extend(solo))?;
        Ok(merged)
    }

    fn filter(&mut self, keep: &[usize]) -> Result<()> {
        let rows: Vec<i32> = keep.iter().map(|row| *row as i32).collect();
        self.left_padding = keep.iter().map(|row| self.left_padding[*row]).collect();
        let pick = |pair: &KeyValues| pair.map(|columns| columns.pick_rows(&rows));
        self.pair = self.pair.as_ref().map(pick).transpose()?;
        Ok(())
    }

    fn extract(&self, row: usize) -> Result<Self> {
        let range = self.left_padding[row]..self.width();
        let copy = |pair: &KeyValues| {
            pair.map(|columns| columns.copy_row(row as i32, std::slice::from_ref(&range)))
        };
        Ok(Self { pair: self.pair.as_ref().map(copy).transpose()?, left_padding: vec![0] })
    }

    fn can_trim(&self) -> bool {
        true
    }

    fn trim(&mut self, tokens: i32) -> Result<()> {
        let cut = |pair: &KeyValues| pair.map(|columns| columns.slice(0..columns.count() - tokens));
        self.pair = self.pair.as_ref().map(cut).transpose()?;
        Ok(())
    }

    fn arrays(&self) -> Vec<&Array> {
        self.pair.iter().flat_map(KeyValues::arrays).collect()
    }

    fn row_bytes(&self) -> LayerBytes {
        LayerBytes::Full { token_bytes: TOKEN_BYTES }
    }

    fn serial_because(&self) -> Option<String> {
        None
    }
}

/// A second type, to show that one is not taken for the other.
#[derive(Debug)]
pub(super) struct Stubborn(pub(super) Array);

impl Stubborn {
    pub(super) fn new() -> Self {
        Self(ops::int_vector(&[1]))
    }
}

impl OwnedCache for Stubborn {
    fn extend(&mut self, _: Self) -> Result<()> {
        panic!("a serial cache was joined")
    }

    fn merge(_: Vec<Self>) -> Result<Self> {
        panic!("a serial cache was merged")
    }

    fn filter(&mut self, _: &[usize]) -> Result<()> {
        Ok(())
    }

    fn extract(&self, _: usize) -> Result<Self> {
        Ok(Self(self.0.clone()))
    }

    fn can_trim(&self) -> bool {
        false
    }

    fn trim(&mut self, _: i32) -> Result<()> {
        panic!("a stubborn cache was trimmed")
    }

    fn arrays(&self) -> Vec<&Array> {
        vec![&self.0]
    }

    fn row_bytes(&self) -> LayerBytes {
        LayerBytes::Fixed { bytes: 4 }
    }

    fn serial_because(&self) -> Option<String> {
        Some("it is stubborn".to_owned())
    }
}

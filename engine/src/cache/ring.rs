//! A sliding window's columns: which column holds what, and what the next tokens do to them. Pure
//! bookkeeping and masks; all layers of one window share one ring.
//!
//! Words: the **window** is how many tokens a query sees, itself included; the **sinks** are the first
//! `keep` of a row, which stay; the **index** is the column that is written next; the **length** counts
//! the tokens of the longest row, so it goes past the window; a ring is **rotated** once the index has
//! wrapped around; **temporal order** puts the oldest column first again. A row's **left padding** here
//! sinks below 0 as its padding is overwritten.
//!
//! The columns and masks are those of mlx-lm 0.32.2's `RotatingKVCache` for a row that was never
//! joined, and of its `BatchRotatingKVCache` for others. The two differ in the sinks (a joined row has
//! none, so rows with sinks do not join) and in that the latter always makes a mask; where no row has
//! padding left that mask hides nothing. Spare capacity is ours: whole granules, as projected.
//!
//! A join puts rings that do not lie alike into temporal order, so the step in which a row joins decides in
//! which order later sums over the others' columns run. f32 shows it; f16 and bf16 seldom do, in a last bit
//! of an intermediate result. Joined at the same step, rows have the oracle's bits; its `BatchGenerator`
//! lets rows join some steps later than our scheduler.
//!
//! In two places, which no decoding batch comes to, the latter class errs and ours does not: its mask
//! for several tokens in a rotated ring hides a column too many of a padded row, and a full row beside
//! a ring that still holds a chunk gains a column of zeros.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::geometry::granules;
use super::window::Window;
use crate::error::Result;
use crate::mlx::Array;
use crate::mlx::ops::{self, Mask};

/// Which column of a window's buffers holds what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ring {
    window: Window,
    cursor: Cursor,
    left_padding: Vec<i32>,
}

/// Where the next column goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Cursor {
    /// Columns of the buffers.
    capacity: i32,
    index: i32,
    length: i32,
    rotated: bool,
}

/// A lone row's ring as it is written down; its window is the model's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedRing {
    window_tokens: i32,
    window_keep: i32,
    #[serde(flatten)]
    cursor: Cursor,
}

/// What an update does to the buffers of each layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Update {
    /// Which columns stay, in their new order.
    pub(super) held: Held,
    /// Where the new ones go.
    pub(super) placing: Placing,
}

/// Columns that stay, in their new order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Held {
    /// All of them where they are.
    AsTheyLie,
    /// These ranges, one after the other.
    Ranges(Vec<Range<i32>>),
}

/// Where new columns go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placing {
    /// Behind the held ones.
    Append,
    /// Onto column `index`, after `fresh` columns were added; the first `visible` ones are seen.
    Overwrite {
        /// Columns to add.
        fresh: i32,
        /// The column to write.
        index: i32,
        /// Columns that hold something.
        visible: i32,
    },
}

/// How the columns of two rings come to lie in one frame.
#[derive(Debug, Clone)]
pub(super) struct Join {
    /// The running rows: their order, then their index.
    pub(super) own: (Held, i32),
    /// The joiners: the same.
    pub(super) joiner: (Held, i32),
}

impl Ring {
    /// One row, nothing written.
    pub fn solo(window: Window) -> Self {
        Self { window, cursor: Cursor::default(), left_padding: vec![0] }
    }

    /// The window.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Columns from the left that are not the row's, per row; below 0 once they were overwritten.
    pub fn left_padding(&self) -> &[i32] {
        &self.left_padding
    }

    /// What `tokens` new columns do to the buffers.
    pub(super) fn update(&self, tokens: i32) -> Update {
        self.cursor.next(self.window, tokens).update
    }

    /// Counts `tokens` columns that every layer has written.
    pub(super) fn advance(&mut self, tokens: usize) {
        let next = self.cursor.next(self.window, ops::axis_index(tokens));
        self.cursor = next.cursor;
        self.left_padding.iter_mut().for_each(|padding| *padding -= next.scrolled);
    }

    /// What `tokens` new columns may attend to among the columns of their update: nothing to hide for
    /// one token without padding, the causal rule without padding inside the window, else booleans
    /// `[tokens, columns]`, or `[B, 1, tokens, columns]` with padding.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn mask(&self, tokens: usize) -> Result<Mask> {
        let span = Span::of(self, ops::axis_index(tokens));
        let hidden = span.hidden(&self.left_padding);
        let padded = hidden.iter().any(|hidden| *hidden > 0);
        match (padded, tokens) {
            (false, 1) => Ok(Mask::None),
            (false, _) if span.columns() <= self.window.tokens => Ok(Mask::Causal),
            (false, _) => Ok(Mask::Array(span.windowed(self.window)?)),
            (true, 1) => Ok(Mask::Array(span.unpadded(&hidden)?)),
            (true, _) => {
                let windowed = span.windowed(self.window)?;
                Ok(Mask::Array(ops::logical_and(&span.unpadded(&hidden)?, &windowed)?))
            }
        }
    }

    /// Adds `joiner`'s rows, right-aligned on the greater index, both in temporal order unless they
    /// lie alike (mlx-lm 0.32.2, `BatchRotatingKVCache.extend`).
    pub(super) fn extend(&mut self, mut joiner: Self) -> Join {
        let (own, other) = (self.cursor, joiner.cursor);
        let alike = own.rotated == other.rotated && own.index == other.index;
        let (own_held, other_held) = match alike {
            true => (Held::AsTheyLie, Held::AsTheyLie),
            false => (self.cursor.unroll(), joiner.cursor.unroll()),
        };
        let places = (self.cursor.index, joiner.cursor.index);
        let index = places.0.max(places.1);
        // Padding that was overwritten is none: what comes to lie left of such a row is padding again.
        let shift = |padding: &mut i32, by: i32| {
            if by > 0 {
                *padding = (*padding).max(0) + by;
            }
        };
        self.left_padding.iter_mut().for_each(|padding| shift(padding, index - places.0));
        joiner.left_padding.iter_mut().for_each(|padding| shift(padding, index - places.1));
        self.left_padding.append(&mut joiner.left_padding);
        self.cursor = Cursor {
            capacity: own.capacity.max(other.capacity),
            index,
            length: own.length.max(other.length),
            rotated: self.cursor.rotated,
        };
        Join { own: (own_held, places.0), joiner: (other_held, places.1) }
    }

    /// One ring of several lone rows, right-aligned on the longest, and the columns of each that go
    /// in (mlx-lm 0.32.2, `BatchRotatingKVCache.merge`).
    pub(super) fn merge(rings: &[Self]) -> (Self, Vec<Vec<Range<i32>>>) {
        let first = &rings[0];
        let parts: Vec<_> = rings.iter().map(Self::window_ranges).collect();
        let counts: Vec<i32> = parts.iter().map(|ranges| count(ranges)).collect();
        let longest = counts.iter().copied().max().unwrap_or(0);
        let cursor = Cursor { capacity: longest, index: longest, length: longest, rotated: false };
        let left_padding = counts.iter().map(|count| longest - count).collect();
        (Self { window: first.window, cursor, left_padding }, parts)
    }

    /// A lone row's last columns in temporal order, as many as the window has.
    fn window_ranges(&self) -> Vec<Range<i32>> {
        self.last_ranges(self.window.tokens)
    }

    /// A lone row's columns in temporal order that a token in the next column would see.
    pub(super) fn ranges_before_next(&self) -> Vec<Range<i32>> {
        self.last_ranges(self.window.tokens - 1)
    }

    /// A lone row's last `tokens` columns in temporal order, or as many as there are.
    fn last_ranges(&self, tokens: i32) -> Vec<Range<i32>> {
        let ordered = self.cursor.ordered(self.window.keep);
        let surplus = count(&ordered) - self.cursor.length.min(tokens);
        without(&ordered, 0..surplus)
    }

    /// Keeps the rows at `keep`. Padding that all survivors share stays, as in mlx-lm 0.32.2's
    /// `BatchRotatingKVCache.filter`: the ring will overwrite it.
    pub(super) fn filter(&mut self, keep: &[usize]) {
        self.left_padding = keep.iter().map(|row| self.left_padding[*row]).collect();
    }

    /// The columns of row `row`, which has fed `tokens` tokens, in temporal order, and their ring.
    pub(super) fn extract(&self, row: usize, tokens: i32) -> (Vec<Range<i32>>, Self) {
        let ordered = self.cursor.ordered(self.window.keep);
        let ranges = without(&ordered, 0..self.left_padding[row].max(0));
        let columns = count(&ranges);
        let cursor = Cursor { capacity: columns, index: columns, length: tokens, rotated: false };
        (ranges, Self { window: self.window, cursor, left_padding: vec![0] })
    }

    /// A lone row's ring, to be written down.
    pub(super) fn save(&self) -> SavedRing {
        let Window { tokens, keep } = self.window;
        SavedRing { window_tokens: tokens, window_keep: keep, cursor: self.cursor }
    }

    /// The ring that was written down; `self` is a fresh one. `None` when that had another window.
    pub(super) fn restore(&self, saved: &SavedRing) -> Option<Self> {
        let window = Window { tokens: saved.window_tokens, keep: saved.window_keep };
        (window == self.window).then(|| Self { cursor: saved.cursor, ..self.clone() })
    }

    /// Whether columns can be taken back: nothing was overwritten yet.
    pub fn can_trim(&self) -> bool {
        self.cursor.length < self.window.tokens
    }

    /// Takes the last `tokens` columns back.
    pub(super) fn trim(&mut self, tokens: i32) {
        self.cursor.length -= tokens;
        self.cursor.index -= tokens;
    }
}

/// An update and what it leads to.
struct Next {
    update: Update,
    cursor: Cursor,
    /// Columns that went from the left of each row.
    scrolled: i32,
}

impl Cursor {
    fn next(self, window: Window, tokens: i32) -> Next {
        if tokens == 1 { self.step(window) } else { self.append(window, tokens) }
    }

    /// One column: the buffers grow up to the window, then the oldest column is overwritten.
    fn step(mut self, window: Window) -> Next {
        let surplus = (self.capacity - window.tokens).max(0);
        let held = match surplus {
            0 => Held::AsTheyLie,
            _ => {
                let dropped = window.keep..window.keep + surplus;
                Held::Ranges(without(&self.ordered(window.keep), dropped))
            }
        };
        let full = self.capacity >= window.tokens || self.length < self.capacity;
        let fresh =
            if full { 0 } else { granules(self.length + 1).min(window.tokens) - self.capacity };
        self.capacity += fresh - surplus;
        if surplus > 0 || self.index == window.tokens {
            self.index = window.keep;
            self.rotated = true;
        }
        let index = self.index;
        self.index += 1;
        self.length += 1;
        let visible = self.length.min(self.capacity);
        Next {
            update: Update { held, placing: Placing::Overwrite { fresh, index, visible } },
            cursor: self,
            scrolled: surplus + i32::from(self.rotated),
        }
    }

    /// Several columns: the last `window - 1` ones in temporal order, then the new ones, so that the
    /// first of these sees a whole window.
    fn append(self, window: Window, tokens: i32) -> Next {
        let ordered = self.ordered(window.keep);
        let surplus = (count(&ordered) - window.tokens + 1).max(0);
        let ranges = without(&ordered, window.keep..window.keep + surplus);
        let columns = count(&ranges) + tokens;
        let held = self.held(ranges);
        let cursor = Self {
            capacity: columns,
            index: columns,
            length: self.length + tokens,
            rotated: false,
        };
        Next { update: Update { held, placing: Placing::Append }, cursor, scrolled: surplus }
    }

    /// The written columns in temporal order, those from `keep` on rolled.
    fn ordered(self, keep: i32) -> Vec<Range<i32>> {
        let nothing = 0..0;
        let ranges = match self.rotated {
            true => [0..keep, self.index..self.capacity, keep..self.index],
            false => [0..self.index, nothing.clone(), nothing],
        };
        joined(ranges)
    }

    /// Puts rolled columns in temporal order; capacity that was never written stays.
    fn unroll(&mut self) -> Held {
        if !self.rotated {
            return Held::AsTheyLie;
        }
        let held = self.held(self.ordered(0));
        self.index = self.capacity;
        self.rotated = false;
        held
    }

    fn held(self, ranges: Vec<Range<i32>>) -> Held {
        match ranges.as_slice() {
            [all] if *all == (0..self.capacity) => Held::AsTheyLie,
            _ => Held::Ranges(ranges),
        }
    }
}

/// The columns that a mask is about.
struct Span {
    /// The position of the first query among them.
    start: i32,
    tokens: i32,
    /// Columns that the update will take from the left before they are seen.
    dropped: i32,
    /// How far the columns are rolled, for one query in a full ring.
    roll: i32,
}

impl Span {
    fn of(ring: &Ring, tokens: i32) -> Self {
        let (window, cursor) = (ring.window, ring.cursor);
        let written = if cursor.rotated { cursor.capacity } else { cursor.index };
        let surplus = match tokens {
            1 => cursor.index - window.tokens,
            _ => written - window.tokens + 1,
        };
        let rotates = tokens == 1 && (cursor.rotated || cursor.index >= window.tokens);
        let index = if cursor.index >= window.tokens { 0 } else { cursor.index };
        Self {
            start: cursor.length.min(window.tokens - 1),
            tokens,
            dropped: surplus.max(0) + i32::from(rotates),
            roll: if rotates { index + 1 } else { 0 },
        }
    }

    fn columns(&self) -> i32 {
        self.start + self.tokens
    }

    fn hidden(&self, left_padding: &[i32]) -> Vec<i32> {
        left_padding.iter().map(|padding| padding - self.dropped).collect()
    }

    /// `[tokens, columns]`: causal, within the window (mlx-lm 0.32.2, `base.create_causal_mask`).
    fn windowed(&self, window: Window) -> Result<Array> {
        let total = self.columns();
        let queries = Array::from_iter(self.start..total, &[self.tokens, 1]);
        let columns = Array::from_iter(0..total, &[1, total]);
        let ends = Array::from_iter(window.tokens..total + window.tokens, &[1, total]);
        Ok(ops::logical_and(&queries.ge(&columns)?, queries.lt(&ends)?)?)
    }

    /// `[B, 1, 1, columns]`: what is not the padding that is left.
    fn unpadded(&self, hidden: &[i32]) -> Result<Array> {
        let total = self.columns();
        let order = (0..total).map(|column| (column - self.roll).rem_euclid(total));
        let columns = Array::from_iter(order, &[1, 1, 1, total]);
        let hidden = Array::from_slice(hidden, &[ops::axis_index(hidden.len()), 1, 1, 1]);
        Ok(hidden.le(&columns)?)
    }
}

/// Columns in all.
fn count(ranges: &[Range<i32>]) -> i32 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// `ranges` without the columns that come at the places `dropped`.
fn without(ranges: &[Range<i32>], dropped: Range<i32>) -> Vec<Range<i32>> {
    let mut place = 0;
    let mut kept = Vec::with_capacity(ranges.len() + 1);
    for range in ranges {
        let at = |wanted: i32| range.start + (wanted - place).clamp(0, range.end - range.start);
        kept.push(range.start..at(dropped.start));
        kept.push(at(dropped.end)..range.end);
        place += range.end - range.start;
    }
    joined(kept)
}

/// The same columns in as few ranges as can be.
fn joined(ranges: impl IntoIterator<Item = Range<i32>>) -> Vec<Range<i32>> {
    let mut kept: Vec<Range<i32>> = Vec::new();
    for range in ranges.into_iter().filter(|range| !range.is_empty()) {
        match kept.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => kept.push(range),
        }
    }
    kept
}

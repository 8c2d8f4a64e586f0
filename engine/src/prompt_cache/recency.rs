//! In which order entries are evicted: those that are not pinned first, and of them the one that was
//! used the longest ago.

use std::collections::BTreeMap;

use super::entries::EntryId;

/// A moment of use. Later ones are greater, and no two entries share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Stamp(u64);

/// The order of eviction.
#[derive(Debug, Default)]
pub(super) struct Recency {
    uses: u64,
    /// By whether it is pinned, then by its last use.
    order: BTreeMap<(bool, Stamp), EntryId>,
}

impl Recency {
    /// The stamp of a use that happens now.
    pub(super) fn next(&mut self) -> Stamp {
        self.uses += 1;
        Stamp(self.uses)
    }

    pub(super) fn insert(&mut self, pinned: bool, stamp: Stamp, id: EntryId) {
        self.order.insert((pinned, stamp), id);
    }

    pub(super) fn remove(&mut self, pinned: bool, stamp: Stamp) {
        self.order.remove(&(pinned, stamp));
    }

    /// Who is evicted first.
    pub(super) fn first(&self) -> Option<EntryId> {
        self.order.first_key_value().map(|(_, id)| *id)
    }

    /// All, the most recently used first, pinned or not.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = EntryId> {
        let loose = self.order.range(..(true, Stamp(0))).rev();
        let pinned = self.order.range((true, Stamp(0))..).rev();
        let (mut loose, mut pinned) = (loose.peekable(), pinned.peekable());
        std::iter::from_fn(move || {
            let stamp = |next: Option<&(&(bool, Stamp), &EntryId)>| next.map(|(key, _)| key.1);
            let next = if stamp(loose.peek()) > stamp(pinned.peek()) {
                loose.next()
            } else {
                pinned.next()
            };
            next.map(|(_, id)| *id)
        })
    }
}

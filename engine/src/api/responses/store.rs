//! Responses that were answered, for as long as they are remembered.
//!
//! A response is forgotten an hour after it was made, or when newer ones need its bytes and it was used
//! the longest ago. A response belongs to the API key that it was asked for with: others do not find it.
//!
//! Invariant: the bytes counted are those of the responses in it, and at most the cap.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;

use crate::clock::{Clock, Time};
use crate::error::{Error, Result};
use crate::limits;
use crate::wire::responses::Past;

/// The responses of one server.
#[derive(Debug)]
pub(in crate::api) struct ResponseStore {
    clock: Clock,
    bytes_max: usize,
    shelf: Mutex<Shelf>,
}

/// A response and the conversation up to and with it.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) owner: Option<Arc<str>>,
    pub(super) body: Value,
    pub(super) conversation: Vec<Value>,
}

#[derive(Debug, Default)]
struct Shelf {
    entries: HashMap<String, Entry>,
    /// Ids in the order of making.
    by_age: VecDeque<(Time, String)>,
    /// Ids in the order of use.
    by_use: BTreeMap<u64, String>,
    /// Which response an item is in, and its place there.
    items: HashMap<String, (String, usize)>,
    uses: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    kept: Kept,
    bytes: usize,
    last_use: u64,
}

impl ResponseStore {
    /// An empty store that goes by `clock`.
    pub(in crate::api) fn new(clock: Clock) -> Self {
        Self::with_bytes_max(clock, limits::RESPONSES_BYTES_MAX)
    }

    fn with_bytes_max(clock: Clock, bytes_max: usize) -> Self {
        Self { clock, bytes_max, shelf: Mutex::default() }
    }

    /// What the requests of `owner` may refer to.
    pub(super) fn past_of(self: &Arc<Self>, owner: Option<Arc<str>>) -> OwnPast {
        OwnPast { store: Arc::clone(self), owner }
    }

    /// Keeps the response `id`, unless it alone is larger than the store.
    pub(super) fn keep(&self, id: &str, kept: Kept) {
        let bytes = bytes_of(&kept);
        if bytes > self.bytes_max {
            tracing::warn!(id, bytes, "the response is too large to be kept");
            return;
        }
        let now = self.clock.now();
        let mut shelf = self.shelf.lock();
        shelf.forget_old(now);
        while shelf.bytes + bytes > self.bytes_max {
            shelf.forget_least_used();
        }
        shelf.add(id, kept, bytes, now);
    }

    /// The response `id` of `owner`.
    pub(super) fn body(&self, id: &str, owner: Option<&Arc<str>>) -> Option<Value> {
        self.find(id, owner, |kept| kept.body.clone())
    }

    /// Forgets the response `id` of `owner`; `false` when there is none.
    pub(super) fn remove(&self, id: &str, owner: Option<&Arc<str>>) -> bool {
        let found = self.find(id, owner, |_| ()).is_some();
        if found {
            self.shelf.lock().forget(id);
        }
        found
    }

    fn find<T>(
        &self,
        id: &str,
        owner: Option<&Arc<str>>,
        read: impl FnOnce(&Kept) -> T,
    ) -> Option<T> {
        let mut shelf = self.shelf.lock();
        shelf.forget_old(self.clock.now());
        shelf.entries.get(id).filter(|entry| entry.kept.owner.as_ref() == owner)?;
        shelf.note_use(id);
        shelf.entries.get(id).map(|entry| read(&entry.kept))
    }

    fn item(&self, id: &str, owner: Option<&Arc<str>>) -> Option<Value> {
        let (response, place) = self.shelf.lock().items.get(id).cloned()?;
        self.find(&response, owner, |kept| kept.body["output"][place].clone())
    }
}

impl Shelf {
    fn add(&mut self, id: &str, kept: Kept, bytes: usize, now: Time) {
        for (place, item) in kept.body["output"].as_array().into_iter().flatten().enumerate() {
            if let Some(item) = item["id"].as_str() {
                self.items.insert(item.to_owned(), (id.to_owned(), place));
            }
        }
        self.entries.insert(id.to_owned(), Entry { kept, bytes, last_use: 0 });
        self.by_age.push_back((now, id.to_owned()));
        self.bytes += bytes;
        self.note_use(id);
    }

    fn note_use(&mut self, id: &str) {
        if let Some(entry) = self.entries.get_mut(id) {
            self.by_use.remove(&entry.last_use);
            self.uses += 1;
            entry.last_use = self.uses;
            self.by_use.insert(self.uses, id.to_owned());
        }
    }

    fn forget_old(&mut self, now: Time) {
        let longest = Duration::from_millis(limits::RESPONSES_TTL_MS);
        while let Some((_, id)) =
            self.by_age.pop_front_if(|(made, _)| now.saturating_sub(*made) >= longest)
        {
            self.forget(&id);
        }
    }

    fn forget_least_used(&mut self) {
        if let Some((_, id)) = self.by_use.pop_first() {
            self.forget(&id);
        }
    }

    fn forget(&mut self, id: &str) {
        let Some(entry) = self.entries.remove(id) else {
            return;
        };
        self.by_use.remove(&entry.last_use);
        self.by_age.retain(|(_, other)| other != id);
        self.items.retain(|_, (response, _)| response != id);
        self.bytes -= entry.bytes;
    }
}

/// The past of one owner.
#[derive(Debug)]
pub(super) struct OwnPast {
    store: Arc<ResponseStore>,
    owner: Option<Arc<str>>,
}

impl Past for OwnPast {
    fn conversation(&self, id: &str) -> Result<Vec<Value>> {
        let found = self.store.find(id, self.owner.as_ref(), |kept| kept.conversation.clone());
        found.ok_or_else(|| {
            let hours = limits::RESPONSES_TTL_MS / 3_600_000;
            let message = format!("no stored response is called `{id}`");
            Error::invalid("previous_response_id", message)
                .with_hint(format!("responses are kept for {hours} h, unless `store` is false"))
        })
    }

    fn item(&self, id: &str) -> Option<Value> {
        self.store.item(id, self.owner.as_ref())
    }
}

/// What a response counts: the text of its JSON, and of its conversation.
fn bytes_of(kept: &Kept) -> usize {
    kept.body.to_string().len()
        + kept.conversation.iter().map(|message| message.to_string().len()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kept(text: &str, owner: Option<&str>) -> Kept {
        let body = json!({"output": [{"type": "message", "id": format!("msg_{text}")}]});
        Kept { owner: owner.map(Into::into), body, conversation: vec![json!(text)] }
    }

    fn check_integrity(store: &ResponseStore) {
        let shelf = store.shelf.lock();
        assert_eq!(shelf.bytes, shelf.entries.values().map(|entry| entry.bytes).sum::<usize>());
        assert!(shelf.bytes <= store.bytes_max);
        let entries = shelf.entries.len();
        assert_eq!(
            (shelf.by_age.len(), shelf.by_use.len(), shelf.items.len()),
            (entries, entries, entries)
        );
        for (turn, id) in &shelf.by_use {
            assert_eq!(shelf.entries[id].last_use, *turn);
        }
    }

    #[test]
    fn a_response_is_forgotten_an_hour_after_it_was_made_however_often_it_is_used() {
        let clock = Clock::manual();
        let store = Arc::new(ResponseStore::new(clock.clone()));
        store.keep("resp_1", kept("one", None));
        let past = store.past_of(None);
        clock.advance(Duration::from_millis(limits::RESPONSES_TTL_MS - 1));
        store.keep("resp_2", kept("two", None));
        assert_eq!(past.conversation("resp_1").unwrap(), [json!("one")]);
        assert_eq!(past.item("msg_one").unwrap()["id"], "msg_one");
        clock.advance(Duration::from_millis(1));
        let error = past.conversation("resp_1").unwrap_err();
        assert_eq!(error.param(), Some("previous_response_id"));
        assert_eq!((past.item("msg_one"), store.body("resp_1", None)), (None, None));
        assert!(past.conversation("resp_2").is_ok());
        check_integrity(&store);
    }

    #[test]
    fn the_least_used_responses_make_room_for_new_ones() {
        let bytes = bytes_of(&kept("0", None));
        let store = Arc::new(ResponseStore::with_bytes_max(Clock::manual(), 3 * bytes + 1));
        for id in ["0", "1", "2"] {
            store.keep(id, kept(id, None));
        }
        assert!(store.body("0", None).is_some());
        store.keep("3", kept("3", None));
        check_integrity(&store);
        let live = |id: &&&str| store.shelf.lock().entries.contains_key(**id);
        assert_eq!(
            ["0", "1", "2", "3"].iter().filter(live).collect::<Vec<_>>(),
            [&"0", &"2", &"3"]
        );
        store.keep("huge", kept(&"x".repeat(4 * bytes), None));
        assert_eq!(store.shelf.lock().entries.len(), 3, "what cannot fit drives nothing out");
        check_integrity(&store);
    }

    #[test]
    fn a_response_is_its_owners_alone_and_can_be_forgotten_once() {
        let store = Arc::new(ResponseStore::new(Clock::manual()));
        store.keep("resp_1", kept("one", Some("laptop")));
        let (laptop, studio): (Arc<str>, Arc<str>) = ("laptop".into(), "studio".into());
        for stranger in [None, Some(studio)] {
            let past = store.past_of(stranger.clone());
            assert!(past.conversation("resp_1").is_err() && past.item("msg_one").is_none());
            assert!(!store.remove("resp_1", stranger.as_ref()));
        }
        assert!(store.past_of(Some(laptop.clone())).conversation("resp_1").is_ok());
        assert!(store.remove("resp_1", Some(&laptop)) && !store.remove("resp_1", Some(&laptop)));
        check_integrity(&store);
    }
}

//! The cache's promises, one by one.

use super::{Fed, Trims};
use crate::clock::Time;
use crate::error::Code;
use crate::limits::DIVERGENCE_TOKENS;
use crate::prompt_cache::disk::DiskId;
use crate::prompt_cache::{DiskCopy, EntryId, EntryView, Origin, PromptCache, PromptId, Reason};

const NOW: Time = Time::ZERO;

/// Entries of one byte, named by the letters of their tokens; upper case ones cannot be trimmed.
fn cache(cap_bytes: u64, entries: &[&str]) -> PromptCache<Fed> {
    let mut cache = PromptCache::new(cap_bytes);
    for entry in entries {
        put(&mut cache, entry, 1);
    }
    cache
}

fn unsaved(cache: &PromptCache<Fed>) -> Vec<EntryId> {
    cache.unsaved().map(|unsaved| unsaved.id).collect()
}

/// Stores an entry and says which ones left, by their letters.
fn put(cache: &mut PromptCache<Fed>, letters: &str, bytes: u64) -> Vec<String> {
    let fixed = letters.chars().all(char::is_uppercase);
    let trims = if fixed { Trims::Never } else { Trims::Always };
    let snapshot = Fed::new(&tokens(letters), bytes, trims);
    let evicted = cache.put(tokens(letters), snapshot, Origin::Finished, NOW);
    evicted.iter().map(|entry| spell(&entry.tokens)).collect()
}

fn tokens(letters: &str) -> Vec<u32> {
    letters.to_lowercase().chars().map(u32::from).collect()
}

fn spell(tokens: &[u32]) -> String {
    tokens.iter().filter_map(|token| char::from_u32(*token)).collect()
}

fn view(cache: &PromptCache<Fed>, letters: &str) -> EntryView {
    let id = cache.find(&tokens(letters)).expect("it is stored");
    cache.entries().find(|entry| entry.id == id).expect("it is listed")
}

/// What is stored, the most recently used first.
fn listed(cache: &PromptCache<Fed>) -> Vec<String> {
    cache.entries().map(|entry| spell(&entry.first_tokens)).collect()
}

#[track_caller]
fn check_served(entries: &[&str], prompt: &str, cached: usize) {
    let taken = cache(100, entries).take(&tokens(prompt), NOW).unwrap();
    assert_eq!(taken.cached_tokens, cached, "{prompt} of {entries:?}");
    let held = taken.snapshot.map(|snapshot| spell(&snapshot.tokens));
    assert_eq!(held.unwrap_or_default(), prompt[..cached]);
}

#[test]
fn the_last_token_of_a_prompt_is_never_served() {
    check_served(&["abc"], "abc", 2);
    check_served(&["abcd"], "abc", 2);
    check_served(&["ABC"], "abc", 0);
    check_served(&["a"], "a", 0);
    check_served(&["a"], "", 0);
    check_served(&["a"], "ab", 1);
}

#[test]
fn a_longer_entry_serves_only_if_it_can_be_trimmed() {
    check_served(&["abcdef"], "abcx", 3);
    check_served(&["ABCDEF"], "abcx", 0);
    check_served(&["AB", "ABCDEF"], "abcx", 2);
    check_served(&["AB", "ABCDEF"], "abcdefgh", 6);
}

#[test]
fn the_longest_usable_prefix_serves_however_it_is_stored() {
    check_served(&["AB", "abcx", "ABCDX"], "abcdz", 3);
    check_served(&["AB", "ax", "ABCD"], "abcdz", 4);
    check_served(&["b", "c"], "abc", 0);
}

#[test]
fn of_equal_prefixes_the_one_without_a_trim_serves_then_the_most_recently_used() {
    let mut cache = cache(100, &["abx", "aby", "abz"]);
    put(&mut cache, "AB", 1);
    cache.take(&tokens("aby."), NOW).unwrap();
    cache.take(&tokens("ab."), NOW).unwrap();
    assert_eq!(listed(&cache), ["ab", "aby", "abz", "abx"]);
    cache.remove(cache.find(&tokens("ab")).unwrap());
    cache.take(&tokens("ab."), NOW).unwrap();
    assert_eq!((view(&cache, "aby").hits, view(&cache, "abz").hits), (2, 0));
}

#[test]
fn what_is_lent_can_change_and_the_entry_serves_again_as_it_was() {
    let mut cache = cache(100, &["abcdef"]);
    for _ in 0..5 {
        let mut lent = cache.take(&tokens("abcx"), NOW).unwrap().snapshot.unwrap();
        assert_eq!(spell(&lent.tokens), "abc");
        lent.feed(u32::from('x'));
        let stored = cache.share(cache.find(&tokens("abcdef")).unwrap()).unwrap();
        assert_eq!(spell(&stored.tokens), "abcdef");
    }
    assert_eq!((cache.counts().hits, cache.counts().hit_tokens), (5, 15));
}

#[test]
fn two_equal_prompts_at_once_are_both_served() {
    let mut cache = cache(100, &["ABC"]);
    let first = cache.take(&tokens("abcd"), NOW).unwrap();
    let second = cache.take(&tokens("abcd"), NOW).unwrap();
    assert_eq!((first.cached_tokens, second.cached_tokens), (3, 3));
    assert_eq!(first.snapshot, second.snapshot);
}

#[test]
fn looking_an_entry_up_keeps_it_and_asking_what_would_serve_does_not() {
    let mut cache = cache(2, &["AB", "CD"]);
    cache.take(&tokens("abx"), NOW).unwrap();
    assert_eq!(cache.usable_tokens(&tokens("cdx")), 2);
    assert_eq!(put(&mut cache, "EF", 1), ["cd"]);
    assert_eq!(listed(&cache), ["ef", "ab"]);
}

#[test]
fn a_snapshot_that_fails_to_be_trimmed_leaves_the_cache_as_it_was() {
    let mut cache = cache(3, &["xy"]);
    let snapshot = Fed::new(&tokens("abc"), 1, Trims::Fails);
    cache.put(tokens("abc"), snapshot, Origin::Boundary, NOW);
    put(&mut cache, "z", 1);
    let before: Vec<EntryView> = cache.entries().collect();
    assert_eq!(cache.take(&tokens("abx"), NOW).unwrap_err().code(), Code::EngineFailed);
    assert_eq!(cache.entries().collect::<Vec<_>>(), before);
    assert_eq!((cache.counts().hits, cache.counts().misses), (0, 0));
    assert_eq!(cache.take(&tokens("abcd"), NOW).unwrap().cached_tokens, 3);
}

#[test]
fn the_cap_holds_and_the_longest_unused_leave_first() {
    let mut cache = cache(3, &["A", "B", "C"]);
    assert_eq!(put(&mut cache, "D", 2), ["a", "b"]);
    assert_eq!(cache.bytes(), 3);
    assert_eq!(put(&mut cache, "E", 4), ["e"], "it is larger than the cap");
    assert_eq!(listed(&cache), ["d", "c"]);
    assert_eq!(cache.trim_to(2).len(), 1);
    assert_eq!(listed(&cache), ["d"]);
    assert_eq!((cache.counts().evictions, cache.counts().refusals), (3, 1));
    assert_eq!(cache.set_cap_bytes(1).len(), 1);
    assert!(cache.is_empty());
}

#[test]
fn pinned_entries_leave_last_and_nothing_leaves_for_what_cannot_fit_beside_them() {
    let mut cache = cache(4, &["A", "B", "C"]);
    for letter in ["a", "b"] {
        assert!(cache.pin(cache.find(&tokens(letter)).unwrap(), true));
    }
    assert_eq!(put(&mut cache, "D", 3), ["d"]);
    assert_eq!(put(&mut cache, "D", 2), ["c"]);
    assert_eq!(listed(&cache), ["d", "b", "a"]);
    assert_eq!(put(&mut cache, "A", 4), ["a"], "the other pinned one needs its byte");
    assert_eq!((view(&cache, "a").bytes, view(&cache, "d").bytes), (1, 2));
    assert_eq!(put(&mut cache, "A", 3), ["d"], "it takes its own place");
    assert!(view(&cache, "a").pinned);
    assert_eq!(cache.trim_to(0).len(), 2, "memory comes before pins");
}

#[test]
fn an_unpinned_entry_is_evicted_by_its_last_use_again() {
    let mut cache = cache(3, &["A", "B", "C"]);
    let id = cache.find(&tokens("a")).unwrap();
    assert!(cache.pin(id, true) && cache.pin(id, false));
    assert_eq!(put(&mut cache, "D", 1), ["a"]);
    assert!(!cache.pin(id, true));
}

#[test]
fn the_same_tokens_keep_id_hits_pin_and_file() {
    let mut cache = cache(100, &["AB"]);
    cache.take(&tokens("abc"), NOW).unwrap();
    let id = cache.find(&tokens("ab")).unwrap();
    assert!(cache.pin(id, true) && cache.mark_saved(id, DiskCopy::File(DiskId::LEAST)));
    let later = Time::from_secs(5);
    let snapshot = Fed::new(&tokens("ab"), 7, Trims::Always);
    assert_eq!(cache.put(tokens("ab"), snapshot, Origin::Boundary, later), []);
    let expected = EntryView {
        id,
        prompt: PromptId::of(&tokens("ab")),
        tokens: 2,
        first_tokens: tokens("ab"),
        last_tokens: tokens("ab"),
        bytes: 7,
        kept_at: NOW,
        used_at: later,
        hits: 1,
        pinned: true,
        origin: Origin::Boundary,
        on_disk: DiskCopy::File(DiskId::LEAST),
    };
    assert_eq!(cache.entries().collect::<Vec<_>>(), [expected]);
    assert_eq!(cache.bytes(), 7);
}

#[test]
fn a_trimmable_entry_takes_the_place_of_its_prefixes_unless_they_are_pinned() {
    let mut cache = cache(100, &["A", "AB", "ABX", "B"]);
    cache.pin(cache.find(&tokens("ab")).unwrap(), true);
    assert_eq!(put(&mut cache, "abc", 1), [""; 0], "what is dropped is not spilled");
    assert_eq!(listed(&cache), ["abc", "b", "abx", "ab"]);
    put(&mut cache, "BCD", 1);
    assert_eq!(listed(&cache), ["bcd", "abc", "b", "abx", "ab"]);
    assert_eq!(cache.counts().evictions, 0);
}

#[test]
fn what_the_disk_has_not_is_listed_by_its_last_use() {
    let mut cache = cache(100, &["A", "B", "C"]);
    let ids = ["a", "b", "c"].map(|letter| cache.find(&tokens(letter)).unwrap());
    assert!(cache.mark_saved(ids[1], DiskCopy::File(DiskId::LEAST)));
    assert_eq!(unsaved(&cache), [ids[2], ids[0]]);
    assert!(cache.mark_saved(ids[1], DiskCopy::Unsaved));
    assert_eq!(unsaved(&cache), [ids[2], ids[1], ids[0]]);
    assert_eq!(cache.remove(ids[1]).map(|entry| spell(&entry.tokens)), Some("b".to_owned()));
    assert!(!cache.mark_saved(ids[1], DiskCopy::Unsaved) && cache.remove(ids[1]).is_none());
}

#[test]
fn ids_are_not_used_twice_even_after_clearing() {
    let mut cache = cache(100, &["A", "B"]);
    let old = cache.find(&tokens("b")).unwrap();
    assert_eq!(cache.retain(|_| false).len(), 2);
    assert_eq!((cache.len(), cache.bytes()), (0, 0));
    put(&mut cache, "A", 1);
    assert!(cache.find(&tokens("a")).unwrap() > old);
    assert_eq!(cache.take(&tokens("bc"), NOW).unwrap().cached_tokens, 0);
}

/// A divergence: the index, what comes before it, what the prompt and the entry say from there on, and why.
type Near<'a> = (usize, &'a str, &'a str, &'a str, Reason);

#[track_caller]
fn check_near(entries: &[&str], prompt: &str, expected: Option<Near<'_>>) {
    let near = cache(100, entries).take(&tokens(prompt), NOW).unwrap().near;
    let near = near.map(|near| {
        let [before, prompt, kept] = [near.before, near.prompt, near.kept].map(|it| spell(&it));
        (near.index, before, prompt, kept, near.reason)
    });
    let expected = expected.map(|(index, before, prompt, kept, reason)| {
        (index, before.to_owned(), prompt.to_owned(), kept.to_owned(), reason)
    });
    assert_eq!(near, expected, "{prompt} of {entries:?}");
}

#[test]
fn a_lookup_says_where_the_nearest_entry_parts_from_the_prompt() {
    use Reason::{CannotTrim, Differs};
    check_near(&["abcdef"], "abxyz", Some((2, "ab", "xyz", "cdef", Differs)));
    check_near(&["ABCDEF"], "abxyz", Some((2, "ab", "xyz", "cdef", CannotTrim)));
    check_near(&["AB", "ABCDEF"], "abcxyz", Some((3, "abc", "xyz", "def", CannotTrim)));
    check_near(&["ABCDEF"], "abcd", Some((4, "abcd", "", "ef", CannotTrim)));
    check_near(&["ABCD"], "abcd", Some((4, "abcd", "", "", CannotTrim)));
    check_near(&["abx", "aby", "ABZ", "ab"], "ab..", Some((2, "ab", "..", "z", Differs)));
    check_near(&["ABX", "AB"], "ab..", Some((2, "ab", "..", "x", Differs)));
}

#[test]
fn a_lookup_tells_no_divergence_where_nothing_parts() {
    check_near(&[], "abc", None);
    check_near(&["xbc"], "abc", None);
    check_near(&["ABC"], "abcdef", None);
    check_near(&["AB", "ABX", "abcd"], "abcde", None);
    check_near(&["abcdef"], "abc", None);
    check_near(&["abcx"], "abcd", None);
    check_near(&["ABC", "ABCD"], "abcd", None);
}

#[test]
fn of_long_texts_only_the_tokens_around_the_divergence_are_told() {
    let (few, index) = (DIVERGENCE_TOKENS, 1000);
    let stored: Vec<u32> = (0..2000).collect();
    let mut prompt = stored.clone();
    prompt[index] = 9999;
    let mut cache = PromptCache::new(100);
    let snapshot = Fed::new(&stored, 1, Trims::Always);
    cache.put(stored.clone(), snapshot, Origin::Finished, NOW);
    let near = cache.take(&prompt, NOW).unwrap().near.unwrap();
    assert_eq!(near.index, index);
    assert_eq!(near.before, stored[index - few..index]);
    assert_eq!(near.prompt, prompt[index..index + few]);
    assert_eq!(near.kept, stored[index..index + few]);
}

#[test]
fn a_cache_without_room_is_off() {
    let mut cache = cache(0, &[]);
    assert!(!cache.is_on());
    assert_eq!(put(&mut cache, "a", 1), ["a"]);
    assert_eq!(cache.take(&tokens("ab"), NOW).unwrap().cached_tokens, 0);
    assert_eq!((cache.counts().hits, cache.counts().misses), (0, 0));
}

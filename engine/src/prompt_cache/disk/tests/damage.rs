//! A file of which any byte is not what was written is dropped and never served.

use std::fs;

use super::*;
use crate::limits::DISK_ALIGNMENT_BYTES;

const TOKENS: [u32; 5] = [5, 4, 3, 2, 1];
const PROMPT: [u32; 6] = [5, 4, 3, 2, 1, 0];

/// A folder with one whole entry, and the bytes of its file.
struct Damaged {
    folder: tempfile::TempDir,
    path: PathBuf,
    whole: Vec<u8>,
}

impl Damaged {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut tier = open(&config(folder.path()), &Clock::monotonic());
        let id = store(&mut tier, &TOKENS);
        let path = tier.folder.entry_path(id);
        let whole = fs::read(&path).unwrap();
        Self { folder, path, whole }
    }

    fn open(&self) -> DiskTier {
        open(&config(self.folder.path()), &Clock::monotonic())
    }

    /// Has `bytes` in the place of the file, at a time when the tier is closed and at one when it has
    /// the entry in its index.
    #[track_caller]
    fn check(&self, bytes: &[u8]) {
        fs::write(&self.path, bytes).unwrap();
        self.check_dropped(&mut self.open());
        fs::write(&self.path, &self.whole).unwrap();
        let mut tier = self.open();
        assert!(tier.find(&PROMPT, 0).is_some());
        fs::write(&self.path, bytes).unwrap();
        self.check_dropped(&mut tier);
    }

    #[track_caller]
    fn check_dropped(&self, tier: &mut DiskTier) {
        if let Some(found) = tier.find(&PROMPT, 0) {
            let error = match tier.restore(found.id) {
                Err(error) => error,
                Ok(mut reader) => {
                    let (tensors, error) = read(&mut reader);
                    assert!(content(&TOKENS).1.starts_with(&tensors), "damage was served");
                    assert!(reader.next_tensor().is_err(), "a failed reader went on");
                    error.expect("the damage was noticed")
                }
            };
            assert_eq!(error.code(), Code::Io);
        }
        assert_eq!(tier.find(&PROMPT, 0), None);
        assert!(tier.flush(PATIENCE));
        assert!(!self.path.exists());
        let stats = tier.stats();
        assert_eq!((stats.dropped, stats.entries, stats.files), (1, 0, 0));
    }

    /// Where the parts of the file begin, and its end.
    fn edges(&self) -> Vec<usize> {
        let (manifest, tensors) = content(&TOKENS);
        let layout = format::Layout::of_manifest(&manifest, IDENTITY).unwrap();
        let json = u64::from_le_bytes(self.whole[16..24].try_into().unwrap()) as usize;
        let tokens = format::PRELUDE_BYTES + json;
        let mut edges = vec![0, 8, 12, 16, 24, 32, format::PRELUDE_BYTES, tokens, tokens + 20];
        let mut start = layout.header_bytes as usize;
        for tensor in &tensors {
            edges.extend([start, start + tensor.bytes.len()]);
            start += tensor.bytes.len().next_multiple_of(DISK_ALIGNMENT_BYTES as usize);
        }
        assert_eq!(start as u64, layout.trailer_start);
        let sums = start + tensors.len() * 16;
        edges.extend([start, start + 16, sums, sums + 8, sums + 24, self.whole.len()]);
        edges
    }
}

#[test]
fn one_flipped_byte_in_any_part_is_noticed() {
    let damaged = Damaged::new();
    for pair in damaged.edges().windows(2).filter(|pair| pair[0] < pair[1]) {
        for place in [pair[0], pair[0].midpoint(pair[1]), pair[1] - 1] {
            let mut bytes = damaged.whole.clone();
            bytes[place] ^= 1;
            damaged.check(&bytes);
        }
    }
}

#[test]
fn one_flipped_byte_anywhere_is_noticed() {
    let damaged = Damaged::new();
    for_seeds(0..150, "damage", |_, random| {
        let mut bytes = damaged.whole.clone();
        let place = random.random_range(0..bytes.len());
        bytes[place] ^= random.random_range(1..=255_u8);
        damaged.check(&bytes);
    });
}

#[test]
fn a_file_that_is_too_short_or_too_long_is_dropped() {
    let damaged = Damaged::new();
    let mut lengths: Vec<usize> = damaged.edges();
    lengths.extend(damaged.edges().iter().map(|edge| edge.saturating_sub(1)));
    lengths.extend(damaged.edges().iter().map(|edge| edge + 1));
    for length in lengths.into_iter().filter(|length| *length != damaged.whole.len()) {
        let mut bytes = damaged.whole.clone();
        bytes.resize(length, 0);
        damaged.check(&bytes);
    }
}

/// The file of an entry with the same tokens and sizes and none of the same bytes.
fn opposite() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(&config(folder.path()), &Clock::monotonic());
    let (manifest, tensors) = content(&TOKENS);
    let mut saving = tier.save(manifest).unwrap().unwrap();
    let path = tier.folder.entry_path(saving.id());
    for tensor in tensors {
        let bytes = tensor.bytes.iter().map(|byte| !byte).collect();
        saving.tensor(Tensor { bytes, ..tensor }).unwrap();
    }
    saving.finish().unwrap();
    assert!(tier.flush(PATIENCE));
    fs::read(path).unwrap()
}

#[test]
fn parts_of_another_entry_in_the_same_place_are_noticed() {
    let (damaged, other) = (Damaged::new(), opposite());
    assert_eq!(damaged.whole.len(), other.len());
    // Everything from some place on, and everything up to it; whole at its end is the other's file.
    for place in damaged.edges() {
        for (head, tail) in [(&damaged.whole, &other), (&other, &damaged.whole)] {
            let mixed = [&head[..place], &tail[place..]].concat();
            if mixed != damaged.whole {
                damaged.check(&mixed);
            }
        }
    }
}

#[test]
fn a_file_of_another_version_is_stale() {
    let damaged = Damaged::new();
    let mut bytes = damaged.whole.clone();
    bytes[8..12].copy_from_slice(&(format::VERSION + 1).to_le_bytes());
    damaged.check(&bytes);
}

#[test]
fn a_file_of_another_identity_or_name_is_foreign() {
    let damaged = Damaged::new();
    let other = "0123456789abcdef";
    let moved = damaged.folder.path().join(other);
    fs::create_dir(&moved).unwrap();
    fs::rename(&damaged.path, moved.join(damaged.path.file_name().unwrap())).unwrap();
    let config = config(damaged.folder.path());
    let mut tier = DiskTier::open(config, other, Clock::monotonic()).unwrap();
    damaged.check_dropped(&mut tier);

    let renamed = damaged.path.with_file_name(format!("{}.slipcache", DiskId::new()));
    fs::write(&renamed, &damaged.whole).unwrap();
    damaged.check_dropped(&mut damaged.open());
    assert!(!renamed.exists());
}

#[test]
fn what_is_not_the_tiers_own_is_neither_read_nor_removed_nor_counted() {
    let damaged = Damaged::new();
    let root = damaged.folder.path();
    let id = DiskId::new();
    let others = [
        root.join("notes.txt"),
        root.join(format!("{id}.slipcache")),
        root.join("photos").join(format!("{id}.slipcache")),
        root.join(IDENTITY).join("notes.tmp"),
        root.join(IDENTITY).join("x.slipcache"),
        root.join(IDENTITY).join(format!("{}.slipcache", id.to_string().to_uppercase())),
    ];
    for path in &others {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, [0; 1000]).unwrap();
    }
    let small = DiskConfig { max_bytes: 1, ..config(root) };
    let mut tier = open(&small, &Clock::monotonic());
    let stats = tier.stats();
    assert_eq!((stats.files, stats.bytes, stats.evicted, stats.dropped), (0, 0, 1, 0));
    assert!(others.iter().all(|path| path.exists()));
}

#[test]
fn a_damaged_account_is_begun_anew_and_stops_nothing() {
    let damaged = Damaged::new();
    fs::write(damaged.folder.path().join("usage.json"), b"{\"version\":").unwrap();
    let mut tier = damaged.open();
    assert_eq!(tier.stats().written_bytes, 0);
    store(&mut tier, &[8, 8]);
    assert_eq!(tier.stats().written_bytes, file_bytes(&[8, 8]));
    check_all(&mut tier);
}

#[test]
fn an_identity_that_is_no_fingerprint_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for identity in ["", "short", "../../../../etc", "00C0FFEE00C0FFEE", &"0".repeat(129)] {
        let error = DiskTier::open(config(folder.path()), identity, Clock::manual()).unwrap_err();
        assert_eq!(error.code(), Code::Internal, "{identity}");
    }
}

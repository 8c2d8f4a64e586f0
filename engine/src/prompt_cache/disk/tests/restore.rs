//! What is saved is restored, bit for bit.

use serde_json::{Value, json};

use super::*;

/// Sizes around the alignment, and any other.
fn tensor(random: &mut StdRng) -> Tensor {
    let sizes = [0, 1, 16_383, 16_384, 16_385, 32_768, random.random_range(0..100_000)];
    let size = sizes[random.random_range(0..sizes.len())];
    let shape = (0..random.random_range(0..5)).map(|_| random.random_range(0..9)).collect();
    let dtype = ["bfloat16", "", "u32 \u{1F980}\"\\\n"][random.random_range(0..3)].to_owned();
    Tensor { dtype, shape, bytes: (0..size).map(|_| random.random()).collect() }
}

fn state(random: &mut StdRng, depth: u32) -> Value {
    match random.random_range(0..if depth == 0 { 5 } else { 7 }) {
        0 => Value::Null,
        1 => json!(random.random::<bool>()),
        2 => json!(random.random::<u64>()),
        3 => json!(random.random::<i64>()),
        4 => json!(format!("\u{0}\n{}", random.random::<char>())),
        5 => (0..3).map(|_| state(random, depth - 1)).collect(),
        _ => (0..3).map(|index| (format!("key {index}"), state(random, depth - 1))).collect(),
    }
}

#[test]
fn what_is_saved_is_restored_bit_for_bit_before_and_after_a_restart() {
    for_seeds(0..60, "restore", |_, random| {
        let folder = tempfile::tempdir().unwrap();
        let (config, clock) = (config(folder.path()), Clock::monotonic());
        let tensors: Vec<Tensor> = (0..random.random_range(0..6)).map(|_| tensor(random)).collect();
        let manifest = Manifest {
            tokens: (0..random.random_range(1..9_000)).map(|_| random.random()).collect(),
            state: state(random, 3),
            can_trim: random.random(),
            origin: Origin::Finished,
            tensors: tensors.iter().map(Tensor::spec).collect(),
        };
        let mut tier = open(&config, &clock);
        let mut saving = tier.save(manifest.clone()).unwrap().unwrap();
        let id = saving.id();
        for tensor in &tensors {
            assert_eq!(saving.next_spec(), Some(&tensor.spec()));
            saving.tensor(tensor.clone()).unwrap();
        }
        saving.finish().unwrap();
        assert!(tier.flush(PATIENCE));
        let mut prompt = manifest.tokens.clone();
        prompt.push(0);
        for _ in 0..2 {
            let found = tier.find(&prompt, 0).unwrap();
            assert_eq!((found.id, found.usable_tokens), (id, manifest.tokens.len()));
            let mut reader = tier.restore(id).unwrap();
            assert_eq!((reader.id(), reader.manifest()), (id, &manifest));
            assert_eq!(read(&mut reader), (tensors.clone(), None));
            assert_eq!(reader.next_tensor(), Ok(None));
            drop(tier);
            tier = open(&config, &clock);
        }
        assert_eq!(tier.stats().written_bytes, tier.stats().bytes);
    });
}

#[test]
fn an_entry_is_found_only_once_it_is_whole_and_never_twice() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(&config(folder.path()), &Clock::monotonic());
    let (manifest, tensors) = content(&[1, 2, 3]);
    let mut saving = tier.save(manifest.clone()).unwrap().unwrap();
    let id = saving.id();
    for tensor in tensors {
        saving.tensor(tensor).unwrap();
        assert!(tier.flush(PATIENCE));
        assert_eq!(tier.find(&[1, 2, 3, 4], 0), None);
        assert!(tier.contains(id));
        assert!(tier.save(manifest.clone()).unwrap().is_none(), "it is on its way");
    }
    saving.finish().unwrap();
    assert!(tier.flush(PATIENCE));
    assert_eq!(tier.find(&[1, 2, 3, 4], 2).map(|found| found.id), Some(id));
    assert_eq!(tier.find(&[1, 2, 3, 4], 3), None);
    assert!(tier.save(manifest).unwrap().is_none(), "it is there");
    check_all(&mut tier);
}

#[test]
fn an_abandoned_entry_leaves_nothing_and_can_be_saved_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(&config(folder.path()), &Clock::monotonic());
    let (manifest, tensors) = content(&[1, 2, 3]);
    for handed_over in 0..=tensors.len() {
        let mut saving = tier.save(manifest.clone()).unwrap().unwrap();
        let id = saving.id();
        tensors[..handed_over].iter().for_each(|tensor| saving.tensor(tensor.clone()).unwrap());
        drop(saving);
        assert!(tier.flush(PATIENCE));
        assert!(!tier.contains(id));
        assert_eq!(files_in(folder.path()), Vec::<PathBuf>::new());
    }
    let stats = tier.stats();
    assert_eq!((stats.queued_bytes, stats.bytes, stats.failed), (0, 0, 0));
    store(&mut tier, &[1, 2, 3]);
    check_all(&mut tier);
}

#[test]
fn a_tensor_that_is_not_the_next_one_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(&config(folder.path()), &Clock::monotonic());
    let (manifest, tensors) = content(&[1, 2, 3]);
    let mut saving = tier.save(manifest.clone()).unwrap().unwrap();
    let error = saving.tensor(tensors[1].clone()).unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    let other = Tensor { dtype: "float32".to_owned(), ..tensors[0].clone() };
    assert!(saving.tensor(other).unwrap_err().message().contains("float32"));
    saving.tensor(tensors[0].clone()).unwrap();
    assert_eq!(saving.finish().unwrap_err().code(), Code::Internal);
    assert!(tier.flush(PATIENCE));
    assert_eq!(tier.stats().files, 0);
}

#[test]
fn an_entry_that_was_removed_is_gone_at_once_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (config, clock) = (config(folder.path()), Clock::monotonic());
    let mut tier = open(&config, &clock);
    let ids: Vec<DiskId> = (0..4).map(|token| store(&mut tier, &[token, 9])).collect();
    let mut reader = tier.restore(ids[0]).unwrap();
    assert!(tier.remove(ids[0]) && !tier.remove(ids[0]));
    assert_eq!(tier.find(&[0, 9, 1], 0), None);
    assert!(tier.restore(ids[0]).is_err());
    assert!(tier.flush(PATIENCE));
    // What is open can still be read to its end.
    assert_eq!(read(&mut reader), (content(&[0, 9]).1, None));
    drop(tier);
    let mut tier = open(&config, &clock);
    check_all(&mut tier);
    assert_eq!(tier.stats().entries, 3);
    tier.retain(|_| false);
    assert!(tier.flush(PATIENCE));
    assert_eq!((tier.stats().entries, tier.stats().files), (0, 0));
}

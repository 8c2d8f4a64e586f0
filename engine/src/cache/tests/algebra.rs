//! Random operations on caches of all kinds.

use proptest::prelude::*;

use super::{ALL_KINDS, Kind, Mask, TRIMMABLE_KINDS, Tokens, Twin, ops, token_numbers};

#[derive(Debug, Clone)]
enum Operation {
    /// A row that was fed so many tokens, in chunks, joins.
    Join(usize, usize),
    /// So many steps of one token.
    Step(usize),
    /// One forward of several tokens.
    Append(usize),
    Leave(u64),
    Rebuild,
    Part(usize),
    Trim(usize),
}

fn operation(longest: usize) -> impl Strategy<Value = Operation> {
    prop_oneof![
        3 => (0..=longest, 1usize..7).prop_map(|(tokens, chunk)| Operation::Join(tokens, chunk)),
        4 => (1usize..6).prop_map(Operation::Step),
        1 => (2usize..6).prop_map(Operation::Append),
        2 => any::<u64>().prop_map(Operation::Leave),
        1 => Just(Operation::Rebuild),
        1 => (0usize..8).prop_map(Operation::Part),
        1 => (0usize..5).prop_map(Operation::Trim),
    ]
}

/// Fed in forwards of so many tokens, a lone row shows what the next token would see beside itself, in
/// order, and is not changed by that.
fn check_before_next(chunks: &[usize]) {
    let (mut tokens, kinds) = (Tokens::default(), TRIMMABLE_KINDS);
    let mut twin = Twin::empty(&kinds);
    for chunk in chunks {
        for (index, kind) in kinds.into_iter().enumerate() {
            let row = &twin.rows[0];
            let start = match kind {
                Kind::Full => 0,
                Kind::Rotating(window) => row.len().saturating_sub(window as usize - 1),
                Kind::Recurrent | Kind::Latent | Kind::Choosing => {
                    assert!(twin.set.before_next(index).is_err());
                    continue;
                }
            };
            let seen = twin.set.before_next(index).unwrap();
            let seen = seen.map(|seen| token_numbers(seen.arrays().next().unwrap()).remove(0));
            assert_eq!(seen.unwrap_or_default(), row[start..], "{kind:?} after {chunks:?}");
        }
        twin.feed(&tokens.take_for(1, *chunk));
    }
}

#[test]
fn rows_do_not_look_back_together() {
    let mut tokens = Tokens::default();
    let mut twin = Twin::solo(&[Kind::Full], &tokens.take(3), 3);
    twin.join(Twin::solo(&[Kind::Full], &tokens.take(3), 3));
    assert!(twin.set.before_next(0).unwrap_err().message().contains("2 rows"));
}

fn survivors(rows: usize, choice: u64) -> Vec<usize> {
    (0..rows).filter(|row| choice >> (row % 64) & 1 == 1).collect()
}

fn apply(twin: &mut Twin, tokens: &mut Tokens, operation: &Operation) {
    let rows = twin.rows.len();
    match *operation {
        Operation::Join(count, chunk) => {
            twin.join(Twin::solo(&twin.kinds, &tokens.take(count), chunk));
        }
        Operation::Step(count) => {
            (0..count).for_each(|_| twin.feed(&tokens.take_for(rows, 1)));
        }
        Operation::Append(count) => twin.feed(&tokens.take_for(rows, count)),
        Operation::Leave(choice) => match survivors(rows, choice) {
            keep if keep.is_empty() => {}
            keep => twin.filter(&keep),
        },
        Operation::Rebuild => twin.rebuild(),
        Operation::Part(row) => twin.part(row % rows),
        Operation::Trim(count) if twin.set.can_trim() => twin.trim(count),
        Operation::Trim(count) => assert!(twin.set.trim(count).is_err()),
    }
}

fn play(kinds: &[Kind], first: (usize, usize), operations: &[Operation]) -> Twin {
    let mut tokens = Tokens::default();
    let mut twin = Twin::solo(kinds, &tokens.take(first.0), first.1);
    for operation in operations {
        apply(&mut twin, &mut tokens, operation);
        twin.check();
    }
    twin
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_lone_row_shows_what_the_next_token_would_see(
        chunks in prop::collection::vec(1usize..12, 1..9),
    ) {
        check_before_next(&chunks);
    }

    #[test]
    fn rows_of_every_kind_see_and_keep_their_own_columns_whatever_happens(
        first in (1usize..14, 1usize..7),
        operations in prop::collection::vec(operation(13), 1..16),
    ) {
        play(&ALL_KINDS, first, &operations);
    }

    #[test]
    fn rows_whose_tokens_can_be_taken_back_see_and_keep_the_others(
        first in (1usize..9, 1usize..7),
        operations in prop::collection::vec(operation(6), 1..16),
    ) {
        play(&TRIMMABLE_KINDS, first, &operations);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn rows_cross_granules_and_wide_windows(
        first in (1usize..600, 1usize..300),
        operations in prop::collection::vec(operation(600), 1..8),
    ) {
        play(&[Kind::Full, Kind::Rotating(300), Kind::Rotating(512)], first, &operations);
    }
}

#[test]
fn survivors_of_a_filter_keep_no_padding_in_common() {
    let mut tokens = Tokens::default();
    let mut twin = Twin::solo(&[Kind::Full], &tokens.take(5), 5);
    twin.join(Twin::solo(&[Kind::Full], &tokens.take(2), 2));
    twin.join(Twin::solo(&[Kind::Full], &tokens.take(3), 3));
    assert_eq!(twin.set.geometry().left_padding(), [0, 3, 2]);
    twin.feed(&tokens.take_for(3, 1));
    twin.filter(&[1, 2]);
    assert_eq!(twin.set.geometry().left_padding(), [1, 0]);
    assert_eq!(twin.set.geometry().width(), 4);
    twin.check();
}

#[test]
fn a_rebuilt_batch_has_as_little_padding_as_can_be() {
    let mut tokens = Tokens::default();
    let kinds = [Kind::Full, Kind::Rotating(9)];
    let mut twin = Twin::solo(&kinds, &tokens.take(7), 7);
    twin.join(Twin::solo(&kinds, &tokens.take(2), 2));
    twin.join(Twin::solo(&kinds, &tokens.take(4), 4));
    twin.filter(&[1, 2]);
    assert_eq!(twin.set.rings()[0].left_padding(), [5, 3], "a ring keeps its padding");
    twin.rebuild();
    assert_eq!(twin.set.rings()[0].left_padding(), [2, 0]);
    twin.feed(&tokens.take_for(2, 1));
    twin.check();
}

#[test]
fn a_padded_row_sees_its_own_columns_only() {
    let mut tokens = Tokens::default();
    let mut twin = Twin::solo(&[Kind::Full], &tokens.take(3), 3);
    assert!(matches!(twin.set.positions(1).unwrap().full_mask, Mask::None));
    assert!(matches!(twin.set.positions(4).unwrap().full_mask, Mask::Causal));
    twin.join(Twin::solo(&[Kind::Full], &tokens.take(1), 1));
    let Mask::Array(mask) = twin.set.positions(1).unwrap().full_mask else { panic!("no mask") };
    assert_eq!(mask.shape(), [2, 1, 1, 4]);
    assert_eq!(ops::read_f32(&mask).unwrap(), [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
    let Mask::Array(mask) = twin.set.positions(2).unwrap().full_mask else { panic!("no mask") };
    let row = &ops::read_f32(&mask).unwrap()[10..];
    assert_eq!(row, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
}

#[test]
fn a_window_needs_a_mask_only_until_its_padding_is_overwritten() {
    let mut tokens = Tokens::default();
    let kinds = [Kind::Rotating(5)];
    let mut twin = Twin::solo(&kinds, &tokens.take(4), 4);
    twin.join(Twin::solo(&kinds, &tokens.take(2), 2));
    let masked: Vec<bool> = (0..6)
        .map(|_| {
            let mask = twin.set.positions(1).unwrap().ring_masks.remove(0);
            twin.feed(&tokens.take_for(2, 1));
            matches!(mask, Mask::Array(_))
        })
        .collect();
    assert_eq!(masked, [true, true, false, false, false, false]);
}

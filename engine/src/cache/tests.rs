//! The cache algebra against a naive model: each row is the list of the columns it was fed.

use proptest::prelude::*;

use super::{CacheSet, FullCache, LayerCache};
use crate::mlx::ops::{self, Mask};
use crate::mlx::{Array, Device};

const HEADS: i32 = 2;
const DIMENSION: i32 = 3;

/// A batch and, per row, the values it was fed.
struct Twin {
    set: CacheSet,
    rows: Vec<Vec<f32>>,
}

impl Twin {
    fn solo(columns: &[f32]) -> Self {
        let set = CacheSet::solo(vec![LayerCache::Full(FullCache::new())]);
        let mut twin = Self { set, rows: vec![Vec::new()] };
        twin.feed(&[columns.to_vec()]);
        twin
    }

    fn feed(&mut self, columns: &[Vec<f32>]) {
        let tokens = columns[0].len();
        let keys = columns_as_array(columns);
        let values = keys.multiply(Array::from_f32(-1.0)).unwrap();
        self.set.layer(0).update(keys, values).unwrap();
        self.set.advance(tokens);
        for (row, columns) in self.rows.iter_mut().zip(columns) {
            row.extend(columns);
        }
    }

    fn join(&mut self, other: Self) {
        self.set.extend(other.set).unwrap();
        self.rows.extend(other.rows);
    }

    fn filter(&mut self, keep: &[usize]) {
        self.set.filter(keep).unwrap();
        self.rows = keep.iter().map(|row| self.rows[*row].clone()).collect();
    }

    fn check(&self) {
        assert_eq!(self.set.rows(), self.rows.len());
        let widest = self.rows.iter().map(Vec::len).max().unwrap();
        for (row, columns) in self.rows.iter().enumerate() {
            let lone = self.set.extract(row).unwrap();
            assert_eq!(lone.geometry().width() as usize, columns.len());
            let arrays: Vec<_> = lone.arrays().map(|array| ops::read_f32(array).unwrap()).collect();
            let keys = ops::read_f32(&columns_as_array(std::slice::from_ref(columns))).unwrap();
            let values: Vec<f32> = keys.iter().map(|key| -key).collect();
            assert_eq!(arrays, vec![keys, values], "row {row}");
        }
        assert!(self.set.geometry().width() as usize >= widest);
    }
}

/// `[rows, HEADS, columns, DIMENSION]`, every number distinct per head and dimension.
fn columns_as_array(rows: &[Vec<f32>]) -> Array {
    let columns = rows[0].len();
    let mut data = Vec::new();
    for row in rows {
        for head in 0..HEADS {
            for column in row {
                data.extend((0..DIMENSION).map(|d| column * 10.0 + (head * DIMENSION + d) as f32));
            }
        }
    }
    Array::from_slice(&data, &[rows.len() as i32, HEADS, columns as i32, DIMENSION])
}

#[derive(Debug, Clone)]
enum Operation {
    Join(usize),
    Step(usize),
    Leave(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        (1usize..700).prop_map(Operation::Join),
        (1usize..6).prop_map(Operation::Step),
        any::<u64>().prop_map(Operation::Leave),
    ]
}

fn survivors(rows: usize, choice: u64) -> Vec<usize> {
    (0..rows).filter(|row| choice >> (row % 64) & 1 == 1).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_row_extracts_as_its_solo_bytes_after_any_joins_steps_and_leaves(
        first in 1usize..600,
        operations in prop::collection::vec(operation(), 1..14),
    ) {
        Device::cpu();
        let mut next = 0.0;
        let mut fresh = |count: usize| -> Vec<f32> {
            (0..count).map(|_| { next += 1.0; next }).collect()
        };
        let mut twin = Twin::solo(&fresh(first));
        for operation in operations {
            match operation {
                Operation::Join(columns) => twin.join(Twin::solo(&fresh(columns))),
                Operation::Step(count) => for _ in 0..count {
                    let columns: Vec<_> = twin.rows.iter().map(|_| fresh(1)).collect();
                    twin.feed(&columns);
                },
                Operation::Leave(choice) => match survivors(twin.rows.len(), choice) {
                    keep if keep.is_empty() => continue,
                    keep => twin.filter(&keep),
                },
            }
            twin.check();
        }
    }
}

#[test]
fn survivors_of_a_filter_keep_no_padding_in_common() {
    Device::cpu();
    let mut twin = Twin::solo(&[1.0, 2.0, 3.0, 4.0, 5.0]);
    twin.join(Twin::solo(&[6.0, 7.0]));
    twin.join(Twin::solo(&[8.0, 9.0, 10.0]));
    assert_eq!(twin.set.geometry().left_padding(), [0, 3, 2]);
    twin.feed(&[vec![11.0], vec![12.0], vec![13.0]]);
    twin.filter(&[1, 2]);
    assert_eq!(twin.set.geometry().left_padding(), [1, 0]);
    assert_eq!(twin.set.geometry().width(), 4);
    twin.check();
}

#[test]
fn a_padded_row_sees_its_own_columns_only() {
    Device::cpu();
    let mut twin = Twin::solo(&[1.0, 2.0, 3.0]);
    assert!(matches!(twin.set.positions(1).unwrap().full_mask, Mask::None));
    assert!(matches!(twin.set.positions(4).unwrap().full_mask, Mask::Causal));
    twin.join(Twin::solo(&[4.0]));
    let Mask::Array(mask) = twin.set.positions(1).unwrap().full_mask else { panic!("no mask") };
    assert_eq!(mask.shape(), [2, 1, 1, 4]);
    assert_eq!(ops::read_f32(&mask).unwrap(), [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
    let Mask::Array(mask) = twin.set.positions(2).unwrap().full_mask else { panic!("no mask") };
    let row = &ops::read_f32(&mask).unwrap()[10..];
    assert_eq!(row, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
}

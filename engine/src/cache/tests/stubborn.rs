//! An owned cache of another type than the latent one, which does nothing that a batch needs.

use super::super::{LayerBytes, OwnedCache};
use crate::error::Result;
use crate::mlx::Array;
use crate::mlx::ops;

/// One that stays alone, and is not taken for another type.
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

    fn share(&self) -> Self {
        Self(self.0.clone())
    }

    fn tensors(&self) -> Result<Vec<Array>> {
        Ok(vec![self.0.clone()])
    }

    fn restore(self, _: i32, mut tensors: Vec<Array>) -> Result<Self> {
        Ok(Self(tensors.remove(0)))
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

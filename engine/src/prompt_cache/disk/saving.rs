//! An entry on its way to the disk, as who saves it holds it.

use std::sync::Arc;

use super::board::{Board, Message};
use super::format::DiskId;
use super::{Tensor, TensorSpec};
use crate::error::{Code, Error, Result};

/// An admitted entry. Its tensors are handed over in the manifest's order; then it is finished. Dropped
/// before, it is abandoned and leaves no file.
#[derive(Debug)]
pub struct Saving {
    id: DiskId,
    specs: std::vec::IntoIter<TensorSpec>,
    /// Bytes that may be in the queue at once; one tensor alone may be larger.
    reserved: u64,
    board: Arc<Board>,
    finished: bool,
}

impl Saving {
    pub(super) fn new(
        id: DiskId,
        specs: Vec<TensorSpec>,
        reserved: u64,
        board: Arc<Board>,
    ) -> Self {
        Self { id, specs: specs.into_iter(), reserved, board, finished: false }
    }

    /// The name that the entry has from now on.
    pub fn id(&self) -> DiskId {
        self.id
    }

    /// The tensor that comes next; none when all were handed over.
    pub fn next_spec(&self) -> Option<&TensorSpec> {
        self.specs.as_slice().first()
    }

    /// Whether the queue has room for the next tensor; if not, ask again at a later tick. An entry that
    /// fits the queue as a whole is always ready.
    pub fn ready(&self) -> bool {
        let in_flight = self.board.in_flight(self.id);
        let next = self.next_spec().map_or(0, |spec| spec.bytes);
        in_flight == 0 || in_flight.saturating_add(next) <= self.reserved
    }

    /// Hands the next tensor over; never waits.
    ///
    /// # Errors
    /// `QueueFull` if [`Saving::ready`] said no; `Internal` if it is not the tensor that the manifest has
    /// next. The tensor can be handed over again.
    pub fn tensor(&mut self, tensor: Tensor) -> Result<()> {
        let spec = tensor.spec();
        if self.next_spec() != Some(&spec) {
            let expected = self.next_spec();
            let message = format!("failed to save tensor {spec:?}: {expected:?} is next");
            return Err(Error::new(Code::Internal, message));
        }
        if !self.ready() {
            let message = format!("failed to save {} bytes: too many are waiting", spec.bytes);
            return Err(Error::new(Code::QueueFull, message));
        }
        self.specs.next();
        self.board.post(Message::Tensor { id: self.id, bytes: tensor.bytes });
        Ok(())
    }

    /// Ends the entry; it is found once it is on disk.
    ///
    /// # Errors
    /// `Internal` if tensors are missing; the entry is abandoned then.
    pub fn finish(mut self) -> Result<()> {
        if let Some(spec) = self.next_spec() {
            let message = format!("failed to save a prompt: tensor {spec:?} was not handed over");
            return Err(Error::new(Code::Internal, message));
        }
        self.finished = true;
        self.board.post(Message::Finish { id: self.id });
        Ok(())
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        if !self.finished {
            self.board.post(Message::Abandon { id: self.id });
        }
    }
}

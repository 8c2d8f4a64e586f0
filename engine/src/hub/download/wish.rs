//! What is wished of a download while it runs.

use tokio::sync::watch;

/// What somebody wants of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Run,
    Pause,
    Cancel,
}

/// Tells those who fetch that they are to stop, whatever for.
#[derive(Debug, Clone)]
pub(super) struct Stop(watch::Receiver<Wish>);

impl Stop {
    pub(super) fn new(wish: watch::Receiver<Wish>) -> Self {
        Self(wish)
    }

    /// Whether it is wished already.
    pub(super) fn is_wished(&self) -> bool {
        *self.0.borrow() != Wish::Run
    }

    /// Resolves when it is wished. Nobody is left to wish anything else when the other end is gone.
    pub(super) async fn wished(&mut self) {
        let _ = self.0.wait_for(|wish| *wish != Wish::Run).await;
    }
}

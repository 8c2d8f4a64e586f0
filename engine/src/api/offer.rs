//! What a server offers.

use crate::gateway::{Engine, Residency};
use crate::hub::Hub;

/// The models that a server serves, and the hub that they come from, if it has one.
#[derive(Debug, Clone)]
pub struct Offer {
    pub(super) models: Residency,
    pub(super) hub: Option<Hub>,
}

impl From<Engine> for Offer {
    /// One model that is always there, and no hub.
    fn from(engine: Engine) -> Self {
        Residency::from(engine).into()
    }
}

impl From<Residency> for Offer {
    /// These models, and no hub.
    fn from(models: Residency) -> Self {
        Self { models, hub: None }
    }
}

impl From<(Residency, Hub)> for Offer {
    /// These models and this hub, whose changes are those of the list of models.
    fn from((models, hub): (Residency, Hub)) -> Self {
        models.follow(hub.watch());
        Self { models, hub: Some(hub) }
    }
}

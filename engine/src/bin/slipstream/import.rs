//! `slipstream import`.

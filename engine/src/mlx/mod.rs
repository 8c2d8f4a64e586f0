//! The only place that touches mlx-rs and mlx-sys: device, memory, operations, weights; and the
//! engine thread that owns every array.

pub mod thread;

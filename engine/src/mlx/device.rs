//! Which device MLX runs on.

use std::fmt;

use super::failure;
use crate::error::{Code, Error, Result};

/// What executes MLX's kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BackEnd {
    /// Apple silicon's GPU.
    Metal,
    /// An NVIDIA GPU.
    Cuda,
    /// The processor, through BLAS.
    Cpu,
}

impl fmt::Display for BackEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Metal => "Metal",
            Self::Cuda => "CUDA",
            Self::Cpu => "CPU",
        })
    }
}

/// The device of the engine thread, selected by what the loaded `libmlx` offers.
#[derive(Debug, Clone, Copy)]
pub struct Device {
    back_end: BackEnd,
}

impl Device {
    /// Selects the GPU where there is one, and makes it the default of the calling thread, which
    /// must be the engine thread. `SLIPSTREAM_DEVICE=cpu` pins the processor.
    ///
    /// # Errors
    /// `Io` when `SLIPSTREAM_DEVICE` names no device, or names a GPU and there is none.
    pub fn select() -> Result<Self> {
        failure::install();
        let wanted = std::env::var("SLIPSTREAM_DEVICE").unwrap_or_default();
        let gpu = gpu_is_available()?;
        let on_gpu = match wanted.as_str() {
            "" => gpu,
            "cpu" => false,
            "gpu" if gpu => true,
            other => return Err(no_such_device(other)),
        };
        Ok(Self::use_on_this_thread(on_gpu))
    }

    /// Pins the processor, for tests whose expectations were made there.
    pub fn cpu() -> Self {
        failure::install();
        Self::use_on_this_thread(false)
    }

    /// What executes the kernels.
    pub fn back_end(self) -> BackEnd {
        self.back_end
    }

    fn use_on_this_thread(gpu: bool) -> Self {
        let device = if gpu { mlx_rs::Device::gpu() } else { mlx_rs::Device::cpu() };
        mlx_rs::Device::set_default(&device);
        let back_end = match (gpu, cfg!(target_os = "macos")) {
            (false, _) => BackEnd::Cpu,
            (true, true) => BackEnd::Metal,
            (true, false) => BackEnd::Cuda,
        };
        Self { back_end }
    }
}

fn no_such_device(wanted: &str) -> Error {
    Error::new(Code::Io, format!("cannot run on the device SLIPSTREAM_DEVICE=`{wanted}`"))
        .with_hint("use `cpu`, or `gpu` where MLX finds one, or leave it unset")
}

fn gpu_is_available() -> Result<bool> {
    let mut available = false;
    // SAFETY: the device handle is made here, used for one query and freed; `available` outlives it.
    let status = unsafe {
        let device = mlx_sys::mlx_device_new_type(mlx_sys::mlx_device_type__MLX_GPU, 0);
        let status = mlx_sys::mlx_device_is_available(&raw mut available, device);
        mlx_sys::mlx_device_free(device);
        status
    };
    failure::check(status, "asking for a GPU")?;
    Ok(available)
}

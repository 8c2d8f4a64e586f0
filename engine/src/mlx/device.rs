//! Which device MLX runs on.

use std::ffi::CStr;
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

    /// Bytes of the memory that arrays live in: a GPU's own, and where it says nothing, or on the
    /// processor, the machine's (or what its container may use of that).
    ///
    /// # Errors
    /// `Io` when the system does not tell.
    pub fn memory_bytes(self) -> Result<u64> {
        let own = (self.back_end != BackEnd::Cpu).then(gpu_memory_bytes).flatten();
        own.map_or_else(machine_memory_bytes, Ok)
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

fn machine_memory_bytes() -> Result<u64> {
    let memory = sysinfo::MemoryRefreshKind::nothing().with_ram();
    let figures = sysinfo::RefreshKind::nothing().with_memory(memory);
    let system = sysinfo::System::new_with_specifics(figures).map_err(|error| {
        Error::new(Code::Io, format!("failed to ask the system for its memory: {error}"))
    })?;
    let container = system.cgroup_limits().map(|limits| limits.total_memory);
    Ok(system.total_memory().min(container.unwrap_or(u64::MAX)))
}

/// What MLX's device information says of the GPU (`mlx/device.h` names both keys, one a back end).
fn gpu_memory_bytes() -> Option<u64> {
    [c"total_memory", c"memory_size"].into_iter().find_map(gpu_figure)
}

fn gpu_figure(key: &CStr) -> Option<u64> {
    let mut bytes = 0usize;
    // SAFETY: both handles are made here and freed below; the key ends in a zero byte, and it and
    // `bytes` outlive the calls. A key that is missing is a status, not a crash.
    let status = unsafe {
        let device = mlx_sys::mlx_device_new_type(mlx_sys::mlx_device_type__MLX_GPU, 0);
        let mut information = mlx_sys::mlx_device_info_new();
        let status = match mlx_sys::mlx_device_info_get(&raw mut information, device) {
            0 => mlx_sys::mlx_device_info_get_size(&raw mut bytes, information, key.as_ptr()),
            failed => failed,
        };
        mlx_sys::mlx_device_info_free(information);
        mlx_sys::mlx_device_free(device);
        status
    };
    if status != 0 {
        // What MLX said of it must not be taken for the text of a later failure.
        drop(failure::failure("asking for the memory of the GPU"));
    }
    (status == 0 && bytes > 0).then_some(bytes as u64)
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

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

impl BackEnd {
    /// What executes the kernels of this thread.
    pub(super) fn of_this_thread() -> Result<Self> {
        let device = mlx_rs::Device::try_default()?;
        Ok(Self::of(matches!(device.get_type()?, mlx_rs::DeviceType::Gpu)))
    }

    fn of(gpu: bool) -> Self {
        match (gpu, cfg!(target_os = "macos")) {
            (false, _) => Self::Cpu,
            (true, true) => Self::Metal,
            (true, false) => Self::Cuda,
        }
    }
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

    /// Bytes of the memory that arrays live in: the working set that Metal recommends, all of an
    /// NVIDIA GPU's, and where a GPU says nothing, or on the processor, the machine's (or what its
    /// container may use of that).
    ///
    /// # Errors
    /// `Io` when the system does not tell.
    pub fn memory_bytes(self) -> Result<u64> {
        self.gpu_memory_bytes().map_or_else(machine_memory_bytes, Ok)
    }

    /// The name of the GPU, as its maker gives it; `None` on a processor, and where MLX does not say.
    pub fn name(self) -> Option<String> {
        match self.back_end {
            BackEnd::Cpu => None,
            BackEnd::Metal | BackEnd::Cuda => DeviceInfo::of_gpu().text(c"device_name"),
        }
    }

    fn gpu_memory_bytes(self) -> Option<u64> {
        if self.back_end == BackEnd::Cpu {
            return None;
        }
        let info = DeviceInfo::of_gpu();
        let keys = [c"max_recommended_working_set_size", c"total_memory", c"memory_size"];
        keys.into_iter().find_map(|key| info.size(key)).map(|bytes| bytes as u64)
    }

    /// Keeps the working set resident on Metal, as mlx-lm 0.32.2's `wired_limit` does: else macOS
    /// pages weights out between requests.
    fn wire_working_set(self) {
        if let (BackEnd::Metal, Some(bytes)) = (self.back_end, self.gpu_memory_bytes()) {
            // Refused on macOS before 15; MLX then works as before, only slower after a pause.
            let _ = mlx_rs::memory::set_wired_limit(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
    }

    fn use_on_this_thread(gpu: bool) -> Self {
        let device = if gpu { mlx_rs::Device::gpu() } else { mlx_rs::Device::cpu() };
        mlx_rs::Device::set_default(&device);
        let device = Self { back_end: BackEnd::of(gpu) };
        device.wire_working_set();
        device
    }
}

/// What MLX knows of the GPU.
struct DeviceInfo(mlx_sys::mlx_device_info);

impl DeviceInfo {
    fn of_gpu() -> Self {
        // SAFETY: both handles are made here; the query fills the first, and the second is freed. A
        // failed query leaves an empty map, in which no key is found.
        unsafe {
            let mut info = mlx_sys::mlx_device_info_new();
            let device = mlx_sys::mlx_device_new_type(mlx_sys::mlx_device_type__MLX_GPU, 0);
            if mlx_sys::mlx_device_info_get(&raw mut info, device) != 0 {
                // What MLX said of it must not be taken for the text of a later failure.
                drop(failure::failure("asking what the GPU is"));
            }
            mlx_sys::mlx_device_free(device);
            Self(info)
        }
    }

    fn size(&self, key: &CStr) -> Option<usize> {
        let (mut exists, mut value) = (false, 0usize);
        // SAFETY: the handle lives as long as `self`; the key is NUL-terminated; both results
        // outlive the calls, and the second one is read only for a key that exists.
        unsafe {
            mlx_sys::mlx_device_info_has_key(&raw mut exists, self.0, key.as_ptr());
            let found = exists
                && mlx_sys::mlx_device_info_get_size(&raw mut value, self.0, key.as_ptr()) == 0;
            found.then_some(value)
        }
    }
}

impl DeviceInfo {
    fn text(&self, key: &CStr) -> Option<String> {
        let (mut exists, mut value) = (false, std::ptr::null());
        // SAFETY: as in `size`; the text lives as long as the handle, is NUL-terminated, and is copied here.
        unsafe {
            mlx_sys::mlx_device_info_has_key(&raw mut exists, self.0, key.as_ptr());
            let found = exists
                && mlx_sys::mlx_device_info_get_string(&raw mut value, self.0, key.as_ptr()) == 0
                && !value.is_null();
            found.then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
        }
    }
}

impl Drop for DeviceInfo {
    fn drop(&mut self) {
        // SAFETY: the handle is ours alone and is not used again.
        unsafe { mlx_sys::mlx_device_info_free(self.0) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_has_the_machines_memory() {
        let device = Device::cpu();
        assert_eq!(device.gpu_memory_bytes(), None);
        assert!(device.memory_bytes().unwrap() > 1 << 28);
    }

    #[test]
    fn a_key_that_no_device_has_gives_no_size() {
        Device::cpu();
        assert_eq!(DeviceInfo::of_gpu().size(c"no such key"), None);
    }
}

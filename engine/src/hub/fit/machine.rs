//! The machine that a model is to fit.

use super::bandwidth::{Bandwidth, probe_bandwidth};
use crate::clock::Clock;
use crate::model::outline::{FloatType, WeightTally};

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processing {
    /// The processor.
    Processor,
    /// A GPU.
    Gpu,
}

/// The machine that a model is to fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Its chip's name.
    pub name: String,
    /// What computes.
    pub processing: Processing,
    /// Memory that arrays live in: a GPU's, the working set that Metal recommends, or the machine's.
    pub memory_bytes: u64,
    /// What of it nobody uses now; `None` where the system does not say.
    pub available_bytes: Option<u64>,
    /// How fast it is read; `None` where that is not known.
    pub bandwidth: Option<Bandwidth>,
}

impl Machine {
    /// The same with `bytes` of memory, all of it free: another machine of the kind, or a bound.
    #[must_use]
    pub fn with_memory(self, bytes: u64) -> Self {
        Self { memory_bytes: bytes, available_bytes: None, ..self }
    }

    /// The same with the bandwidth of its memory measured where no table knows it: that of processors. It takes some
    /// tenths of a second.
    #[must_use]
    pub fn measured(self, clock: &Clock) -> Self {
        let bandwidth = match self.processing {
            Processing::Processor => Some(probe_bandwidth(clock)),
            Processing::Gpu => self.bandwidth,
        };
        Self { bandwidth, ..self }
    }

    /// The type that the loader computes in where nobody says which: f32 on processors, on GPUs the checkpoint's
    /// half type.
    pub(super) fn float_type(&self, weights: &WeightTally) -> FloatType {
        match (self.processing, weights.float_type) {
            (Processing::Processor, _) => FloatType::F32,
            (Processing::Gpu, Some(half @ (FloatType::Bf16 | FloatType::F16))) => half,
            (Processing::Gpu, Some(FloatType::F32) | None) => FloatType::Bf16,
        }
    }
}

#[cfg(feature = "mlx")]
mod detection {
    use super::{Machine, Processing};
    use crate::error::{Code, Error, Result};
    use crate::hub::fit::bandwidth::chip_bandwidth;
    use crate::mlx::{BackEnd, Device};

    /// The machine behind `device`. How fast a processor's memory is read is left to [`Machine::measured`].
    ///
    /// # Errors
    /// `Io` when the system does not tell its memory.
    pub fn of_device(device: Device) -> Result<Machine> {
        let system = system()?;
        let chip = chip_name(&system);
        let processing = match device.back_end() {
            BackEnd::Cpu => Processing::Processor,
            BackEnd::Metal | BackEnd::Cuda => Processing::Gpu,
        };
        let name = match device.back_end() {
            BackEnd::Cuda => device.name().unwrap_or(chip),
            BackEnd::Cpu | BackEnd::Metal => chip,
        };
        let memory_bytes = device.memory_bytes()?;
        // What a discrete GPU has free is not the system's to tell.
        let shared = device.back_end() != BackEnd::Cuda;
        let available_bytes = shared.then(|| available_bytes(&system).min(memory_bytes));
        let bandwidth = match processing {
            Processing::Gpu => chip_bandwidth(&name),
            Processing::Processor => None,
        };
        Ok(Machine { name, processing, memory_bytes, available_bytes, bandwidth })
    }

    fn system() -> Result<sysinfo::System> {
        let figures = sysinfo::RefreshKind::nothing()
            .with_memory(sysinfo::MemoryRefreshKind::nothing().with_ram())
            .with_cpu(sysinfo::CpuRefreshKind::nothing());
        sysinfo::System::new_with_specifics(figures).map_err(|error| {
            Error::new(Code::Io, format!("failed to ask the system what it is: {error}"))
        })
    }

    fn chip_name(system: &sysinfo::System) -> String {
        let brand = system.cpus().first().map(|cpu| cpu.brand().trim().to_owned());
        brand.filter(|brand| !brand.is_empty()).unwrap_or_else(|| "this processor".to_owned())
    }

    fn available_bytes(system: &sysinfo::System) -> u64 {
        let container = system.cgroup_limits().map(|limits| limits.free_memory);
        system.available_memory().min(container.unwrap_or(u64::MAX))
    }
}

#[cfg(feature = "mlx")]
pub use detection::of_device;

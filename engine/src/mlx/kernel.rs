//! Kernels of our own, written once for both kinds of GPU.
//!
//! A kernel's body is C++ that Metal's and CUDA's compilers both take, with what they name differently
//! defined before it: `lane` (0 to 31, of the 32 threads that run in step), `row` and `slab` (a thread's
//! place in the other two axes of the grid), and `sum_of_lanes(float)`. Inputs are pointers of their
//! arrays' types with `NAME_shape` beside them, in row-major order; whatever is a template argument is a
//! constant. MLX compiles it when it is first evaluated.

use std::ffi::{CStr, CString};

use mlx_rs::{Array, Dtype, Stream};

use super::device::BackEnd;
use super::failure;
use crate::error::{Code, Error, Result};

/// Threads that run in step.
pub(super) const LANES: i32 = 32;

const METAL_HEADER: &str = "
inline float sum_of_lanes(float x) { return metal::simd_sum(x); }
";
const METAL_PLACE: &str = "
const int lane = thread_index_in_simdgroup;
const int row = thread_position_in_grid.y;
const int slab = thread_position_in_grid.z;
";
const CUDA_HEADER: &str = "
__device__ inline float sum_of_lanes(float x) {
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, distance);
  }
  return x;
}
";
const CUDA_PLACE: &str = "
const int lane = threadIdx.x;
const int row = blockIdx.y * blockDim.y + threadIdx.y;
const int slab = blockIdx.z * blockDim.z + threadIdx.z;
";

/// What a kernel is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct KernelSource {
    pub(super) name: &'static CStr,
    pub(super) inputs: &'static [&'static CStr],
    pub(super) outputs: &'static [&'static CStr],
    pub(super) body: &'static str,
}

/// How many threads run, all of whose first axis are lanes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    pub(super) rows: i32,
    pub(super) slabs: i32,
    /// Rows that are started together.
    pub(super) rows_together: i32,
}

/// One output.
#[derive(Debug, Clone)]
pub(super) struct Output {
    pub(super) shape: Vec<i32>,
    pub(super) dtype: Dtype,
}

/// A constant of a kernel.
#[derive(Debug, Clone, Copy)]
pub(super) enum Constant {
    Number(i32),
    Type(Dtype),
}

/// Constants with their names.
pub(super) type Constants<'list> = &'list [(&'static CStr, Constant)];

/// A kernel for the GPU that this thread uses.
#[derive(Debug)]
pub(super) enum Kernel {
    Metal(MetalKernel),
    Cuda(CudaKernel),
}

impl Kernel {
    /// The kernel for `back_end`; `None` when that is no GPU.
    pub(super) fn new(back_end: BackEnd, source: KernelSource) -> Result<Option<Self>> {
        Ok(match back_end {
            BackEnd::Cpu => None,
            BackEnd::Cuda => Some(Self::Cuda(CudaKernel::new(source, CUDA_HEADER, CUDA_PLACE)?)),
            BackEnd::Metal => {
                Some(Self::Metal(MetalKernel::new(source, METAL_HEADER, METAL_PLACE)?))
            }
        })
    }

    /// The outputs, not yet computed.
    ///
    /// # Safety
    /// For these inputs, outputs, constants and this grid the kernel must stay within its inputs and
    /// outputs, must write every number of the outputs, and no two threads may write the same one.
    // SAFETY: the caller's to give, as said above.
    pub(super) unsafe fn apply(
        &self,
        inputs: &[&Array],
        outputs: &[Output],
        grid: Grid,
        constants: Constants<'_>,
    ) -> Result<Vec<Array>> {
        match self {
            // SAFETY: the caller's word.
            Self::Metal(kernel) => unsafe { kernel.apply(inputs, outputs, grid, constants) },
            // SAFETY: the caller's word.
            Self::Cuda(kernel) => unsafe { kernel.apply(inputs, outputs, grid, constants) },
        }
    }
}

/// mlx-c has the same functions twice, once for each kind of GPU.
macro_rules! kernel_of_one_gpu {
    (
        $kernel:ident { raw: $raw:ident, new: $new:ident, free: $free:ident, apply: $apply:ident },
        $config:ident {
            raw: $raw_config:ident, new: $new_config:ident, free: $free_config:ident,
            output: $output:ident, grid: $grid:ident, group: $group:ident,
            number: $number:ident, dtype: $dtype:ident
        },
        $last:expr
    ) => {
        /// A kernel for one kind of GPU.
        #[derive(Debug)]
        pub(super) struct $kernel(mlx_sys::$raw);

        impl $kernel {
            fn new(source: KernelSource, header: &str, place: &str) -> Result<Self> {
                let body = as_c_string(format!("{place}{}", source.body))?;
                let header = as_c_string(header.to_owned())?;
                let (inputs, outputs) = (Names::of(source.inputs), Names::of(source.outputs));
                let row_major = true;
                // SAFETY: all strings are NUL-terminated and, like both lists, outlive the call, which
                // copies them.
                let raw = unsafe {
                    mlx_sys::$new(
                        source.name.as_ptr(),
                        inputs.0,
                        outputs.0,
                        body.as_ptr(),
                        header.as_ptr(),
                        row_major,
                        $last,
                    )
                };
                match raw.ctx.is_null() {
                    true => Err(failure::failure("making a kernel")),
                    false => Ok(Self(raw)),
                }
            }

            /// # Safety
            /// As [`Kernel::apply`].
            // SAFETY: the caller's to give, as said there.
            unsafe fn apply(
                &self,
                inputs: &[&Array],
                outputs: &[Output],
                grid: Grid,
                constants: Constants<'_>,
            ) -> Result<Vec<Array>> {
                let config = $config::new(outputs, grid, constants)?;
                let handles: Vec<_> = inputs.iter().map(|input| input.as_ptr()).collect();
                let (inputs, mut results) = (Arrays::of(&handles), Arrays::of(&[]));
                let stream = Stream::thread_local_or_default();
                let (result, stream) = (&raw mut results.0, stream.as_ref());
                // SAFETY: every handle outlives the call; what the kernel does is the caller's word.
                let status =
                    unsafe { mlx_sys::$apply(result, self.0, inputs.0, config.0, stream.as_ptr()) };
                failure::check(status, "applying a kernel")?;
                (0..outputs.len()).map(|index| results.get(index)).collect()
            }
        }

        impl Drop for $kernel {
            fn drop(&mut self) {
                // SAFETY: the handle is ours alone and is not used again.
                unsafe { mlx_sys::$free(self.0) };
            }
        }

        /// How such a kernel is run.
        struct $config(mlx_sys::$raw_config);

        impl $config {
            fn new(outputs: &[Output], grid: Grid, constants: Constants<'_>) -> Result<Self> {
                // SAFETY: the handle is made here and freed with the wrapper.
                let config = Self(unsafe { mlx_sys::$new_config() });
                outputs.iter().try_for_each(|output| config.add_output(output))?;
                constants.iter().try_for_each(|(name, value)| config.add_constant(name, *value))?;
                config.set_grid(grid)?;
                Ok(config)
            }

            fn add_output(&self, Output { shape, dtype }: &Output) -> Result<()> {
                let (sizes, axes, dtype) = (shape.as_ptr(), shape.len(), (*dtype).into());
                // SAFETY: the shape outlives the call, which copies it.
                let status = unsafe { mlx_sys::$output(self.0, sizes, axes, dtype) };
                failure::check(status, "adding a kernel's output")
            }

            fn add_constant(&self, name: &CStr, constant: Constant) -> Result<()> {
                let name = name.as_ptr();
                // SAFETY: the name is NUL-terminated and outlives the call, which copies it.
                let status = unsafe {
                    match constant {
                        Constant::Number(number) => mlx_sys::$number(self.0, name, number),
                        Constant::Type(dtype) => mlx_sys::$dtype(self.0, name, dtype.into()),
                    }
                };
                failure::check(status, "adding a kernel's constant")
            }

            fn set_grid(&self, Grid { rows, slabs, rows_together }: Grid) -> Result<()> {
                // SAFETY: the handle lives as long as `self`.
                let status = unsafe { mlx_sys::$grid(self.0, LANES, rows, slabs) };
                failure::check(status, "setting a kernel's grid")?;
                // SAFETY: the handle lives as long as `self`.
                let status = unsafe { mlx_sys::$group(self.0, LANES, rows_together, 1) };
                failure::check(status, "setting a kernel's groups")
            }
        }

        impl Drop for $config {
            fn drop(&mut self) {
                // SAFETY: the handle is ours alone and is not used again.
                unsafe { mlx_sys::$free_config(self.0) };
            }
        }
    };
}

kernel_of_one_gpu!(
    MetalKernel {
        raw: mlx_fast_metal_kernel,
        new: mlx_fast_metal_kernel_new,
        free: mlx_fast_metal_kernel_free,
        apply: mlx_fast_metal_kernel_apply
    },
    MetalConfig {
        raw: mlx_fast_metal_kernel_config,
        new: mlx_fast_metal_kernel_config_new,
        free: mlx_fast_metal_kernel_config_free,
        output: mlx_fast_metal_kernel_config_add_output_arg,
        grid: mlx_fast_metal_kernel_config_set_grid,
        group: mlx_fast_metal_kernel_config_set_thread_group,
        number: mlx_fast_metal_kernel_config_add_template_arg_int,
        dtype: mlx_fast_metal_kernel_config_add_template_arg_dtype
    },
    // Outputs are not atomic.
    false
);

kernel_of_one_gpu!(
    CudaKernel {
        raw: mlx_fast_cuda_kernel,
        new: mlx_fast_cuda_kernel_new,
        free: mlx_fast_cuda_kernel_free,
        apply: mlx_fast_cuda_kernel_apply
    },
    CudaConfig {
        raw: mlx_fast_cuda_kernel_config,
        new: mlx_fast_cuda_kernel_config_new,
        free: mlx_fast_cuda_kernel_config_free,
        output: mlx_fast_cuda_kernel_config_add_output_arg,
        grid: mlx_fast_cuda_kernel_config_set_grid,
        group: mlx_fast_cuda_kernel_config_set_thread_group,
        number: mlx_fast_cuda_kernel_config_add_template_arg_int,
        dtype: mlx_fast_cuda_kernel_config_add_template_arg_dtype
    },
    // Bytes of shared memory.
    0
);

/// A list of names, as mlx-c has it.
struct Names(mlx_sys::mlx_vector_string);

impl Names {
    fn of(names: &[&'static CStr]) -> Self {
        let mut pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        // SAFETY: the pointers are NUL-terminated strings that outlive the call, which copies them.
        Self(unsafe { mlx_sys::mlx_vector_string_new_data(pointers.as_mut_ptr(), pointers.len()) })
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        // SAFETY: the handle is ours alone and is not used again.
        unsafe { mlx_sys::mlx_vector_string_free(self.0) };
    }
}

/// A list of arrays, as mlx-c has it: it shares them.
struct Arrays(mlx_sys::mlx_vector_array);

impl Arrays {
    fn of(arrays: &[mlx_sys::mlx_array]) -> Self {
        // SAFETY: the handles outlive the call.
        Self(unsafe { mlx_sys::mlx_vector_array_new_data(arrays.as_ptr(), arrays.len()) })
    }

    fn get(&self, index: usize) -> Result<Array> {
        super::ops::new_array("reading a kernel's output", |result| {
            // SAFETY: both handles outlive the call.
            unsafe { mlx_sys::mlx_vector_array_get(result, self.0, index) }
        })
    }
}

impl Drop for Arrays {
    fn drop(&mut self) {
        // SAFETY: the handle is ours alone and is not used again.
        unsafe { mlx_sys::mlx_vector_array_free(self.0) };
    }
}

fn as_c_string(text: String) -> Result<CString> {
    CString::new(text).map_err(|error| Error::new(Code::Internal, error.to_string()))
}

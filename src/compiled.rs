//! The generic functions that are compiled with this crate, for f32 and f64, some for bf16 and f16: programs that call them need not compile them again.
//!
//! The compiler shares an instance of a generic function between crates when the function is `#[inline(never)]` and the crate that
//! defines it has made the instance. The functions here are what operations, formats and files enter by; no kernel is among them.

use std::hint::black_box;

use sparsimd_kernels::{Scalar, Stored, bf16, f16};

use crate::formats::{Alto, Bcsf, Coo, CooRef, CooTensor, Csf, CsfSet, Csr, FiberCoo, HiCoo, MmCsf, SemiCoo, Tiled};
use crate::ops::{MttkrpTensor, Prepared};
use crate::plan::TensorStats;
use crate::{Cpu, generate, io, reference, semiring};

/// Mentions the functions, which makes the compiler generate them.
macro_rules! instances {
    ($name:ident<$t:ident: $bound:ident>: $($function:expr),+ $(,)?) => {
        fn $name<$t: $bound>() {
            $(black_box($function as *const ());)+
        }
    };
}

instances! { core<T: Scalar>:
    Cpu::spmm_operand::<T>,
    Cpu::spmm_t_operand::<T>,
    Cpu::reduce_operand::<T>,
    Cpu::positions_operand::<T>,
    Cpu::semiring_operand::<T, semiring::BuiltIn>,
    Cpu::pairs_elementwise::<T>,
    Cpu::pairs_reduced::<T, semiring::BuiltIn>,
    Cpu::sampled::<T>,
    Cpu::fusedmm_operand::<T>,
    Cpu::prepare_operand::<T>,
    Cpu::sums_of_heads::<T>,
    Cpu::dots_of_heads::<T>,
    Cpu::fusedmm_heads::<T>,
    Cpu::fusedmm_gradient::<T>,
    Prepared::<T>::set_values::<T>,
    Cpu::placement::<T>,
    Cpu::place::<T>,
    Cpu::ttm_fibers_into::<T>,
    Cpu::ttm::<T>,
    Cpu::ttm_hicoo::<T>,
    Cpu::ttm_semi::<T>,
    Cpu::ttv_fibers_into::<T>,
    Cpu::ttv::<T>,
    Cpu::ttv_hicoo::<T>,
    Cpu::elementwise::<T>,
    Cpu::tew::<T>,
    Cpu::ttm_chain::<T>,
    Cpu::prepare_tensor::<T>,
    Cpu::plan_tensor::<T>,
    Cpu::prepare_planned::<T>,
    Cpu::mttkrp::<T>,
    Cpu::mttkrp_all::<T>,
    Cpu::stream_tensor::<T>,
    Cpu::mttkrp_streamed::<T>,
    Cpu::ttm_streamed_by_reference::<T>,
    Cpu::spmm_streamed_by_reference::<T>,
    Cpu::sampled_streamed_by_reference::<T>,
    MttkrpTensor::<T>::index_bytes,
    TensorStats::of::<T>,
    CooTensor::<T>::new,
    CooTensor::<T>::sort,
    CooTensor::<T>::sorted_permutation,
    CooTensor::<T>::sum_duplicates,
    CooTensor::<T>::check_unique,
    CooTensor::<T>::hash_sum,
    Coo::<T>::to_csr,
    Csr::<T>::stored_as::<T>,
    CooRef::<T>::to_csr,
    Csf::<T>::from_coo,
    Csf::<T>::to_coo,
    CsfSet::<T>::from_coo,
    CsfSet::<T>::to_coo,
    Bcsf::<T>::from_coo,
    Bcsf::<T>::to_coo,
    FiberCoo::<T>::new,
    FiberCoo::<T>::from_csf,
    FiberCoo::<T>::to_coo,
    HiCoo::<T>::with_free_modes,
    HiCoo::<T>::to_coo,
    Alto::<T>::from_coo,
    Alto::<T>::to_coo,
    MmCsf::<T>::from_coo,
    MmCsf::<T>::to_coo,
    SemiCoo::<T>::from_coo,
    SemiCoo::<T>::to_coo,
    Tiled::<T>::from_coo,
    Tiled::<T>::to_coo,
    io::read_matrix::<T>,
    io::write_matrix::<T>,
    io::read_tensor::<T>,
    io::write_tensor::<T>,
    io::write_mtx::<T>,
    io::write_mtx_dense::<T>,
    io::write_tns::<T>,
    io::write_tnsb_as::<T, T>,
    io::write_npy::<T>,
    io::read_dense::<T>,
    io::write_dense::<T>,
    io::NpyStream::read_rows::<T>,
    generate::TensorSpec::generate::<T>,
    generate::random_matrix::<T>,
    generate::kronecker::<T>,
    generate::power_law::<T>,
    generate::skewed::<T>,
    generate::MatrixSpec::generate::<T>,
    generate::uniform_values::<T>,
    generate::uniform_dense::<T>,
    reference::spmm::<T>,
    reference::spmm_t::<T>,
    reference::reduce::<T>,
    reference::semiring::<T>,
    reference::sddmm::<T>,
    reference::fusedmm::<T>,
    reference::fusedmm_heads::<T>,
    reference::fusedmm_gradient::<T>,
    reference::mttkrp::<T>,
    reference::tew::<T>,
    reference::ttm::<T>,
    reference::ttv::<T>,
    reference::Expected::deviation::<T>,
}

// Of narrow elements.
instances! { narrow<D: Stored>:
    Cpu::spmm_operand::<D>,
    Cpu::spmm_t_operand::<D>,
    Cpu::sampled::<D>,
    Cpu::fusedmm_operand::<D>,
    Prepared::<D::Scalar>::set_values::<D>,
    Csr::<D>::stored_as::<D::Scalar>,
    Csr::<D::Scalar>::stored_as::<D>,
    Cpu::ttm_fibers_into::<D>,
    Cpu::mttkrp::<D>,
    generate::uniform_dense::<D>,
    io::write_npy::<D>,
    reference::spmm::<D>,
    reference::spmm_t::<D>,
    reference::sddmm::<D>,
    reference::fusedmm::<D>,
    reference::mttkrp::<D>,
    reference::ttm::<D>,
    reference::Expected::deviation::<D>,
    reference::Expected::stored_as::<D>,
}

#[cfg(feature = "decomp")]
instances! { decompositions<T: Scalar>:
    Cpu::cp_als_observed::<T>,
    Cpu::cp_als_streamed_observed::<T>,
    crate::decomp::cp::apr::decompose::<T>,
    crate::decomp::cp::opt::decompose::<T>,
    crate::decomp::power::decompose::<T>,
    crate::decomp::CpState::<T>::load_of,
    crate::decomp::CpState::<T>::load_rows_of,
    crate::decomp::CpState::<T>::section,
    crate::decomp::CpState::<T>::sections_head,
    crate::decomp::CpState::<T>::save_of,
    crate::decomp::tucker::decompose::<T>,
}

#[cfg(feature = "vulkan")]
use crate::gpu::{DeviceScalar, DeviceStored, Gpu, Portable};
#[cfg(feature = "vulkan")]
use crate::hetero::Hetero;

#[cfg(feature = "vulkan")]
instances! { device<T: DeviceScalar>:
    Gpu::ceilings::<T>,
    Gpu::csr::<T>,
    Gpu::values::<T>,
    Gpu::ttm_into::<T>,
    Gpu::ttv_into::<T>,
    Gpu::elementwise::<T>,
    Gpu::prepare_mttkrp::<T>,
    Gpu::mttkrp::<T>,
    Gpu::factors::<T>,
    Gpu::tensor::<T>,
    Gpu::tensor_atomic::<T>,
    Gpu::tensor_of_all::<T>,
    Gpu::tensor_of_parts::<T>,
    Gpu::tensor_of_blocks::<T>,
    Gpu::chain::<T>,
    Gpu::ttm_chain::<T>,
    Hetero::elementwise::<T>,
    Hetero::ttm_into::<T>,
    Hetero::ttv_into::<T>,
    Hetero::mttkrp::<T>,
    Hetero::ttm_chain::<T>,
}

#[cfg(feature = "vulkan")]
instances! { stored_on_device<D: DeviceStored>:
    Gpu::mat::<D>,
    Gpu::zeros::<D>,
    Gpu::spmm::<D>,
    Gpu::spmm_t::<D>,
    Gpu::sampled::<D>,
    Gpu::fusedmm_of::<D>,
    Gpu::spmm_streamed::<D>,
    Gpu::sampled_streamed::<D>,
    Gpu::fusedmm_streamed_of::<D>,
}

#[cfg(feature = "vulkan")]
instances! { shared<D: Portable>:
    Hetero::spmm::<D>,
    Hetero::sampled::<D>,
    Hetero::fusedmm_of::<D>,
}

/// Has the functions of this module compiled. Does nothing that anybody would need.
#[doc(hidden)]
#[inline(never)]
pub fn compiled() {
    core::<f32>();
    core::<f64>();
    narrow::<bf16>();
    narrow::<f16>();
    #[cfg(feature = "decomp")]
    {
        decompositions::<f32>();
        decompositions::<f64>();
    }
    #[cfg(feature = "vulkan")]
    {
        device::<f32>();
        device::<f64>();
        stored_on_device::<f32>();
        stored_on_device::<f64>();
        stored_on_device::<bf16>();
        stored_on_device::<f16>();
        shared::<f32>();
        shared::<f64>();
        shared::<bf16>();
        shared::<f16>();
    }
}

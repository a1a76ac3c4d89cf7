//! The compiled half of the Python package `sparsimd`: arrays of numpy as operands of the library's operations.
//!
//! ```text
//! Python object ──▶ array.rs: a view by its strides, or one copy ──▶ ops.rs, tensor.rs: shapes are checked
//!                                                                          │ the interpreter is released
//!                                                                          ▼
//!                                            threads.rs: the pool of this process ──▶ the library
//! ```

mod array;
mod decomposition;
mod dlpack;
mod edge;
mod error;
mod files;
mod fusedmm;
mod machine;
mod matrix;
mod mttkrp;
mod native;
mod observe;
mod ops;
mod plan;
mod reduce;
mod sparse;
mod tensor;
mod threads;
mod torch;
mod transposed;

/// What `import sparsimd._sparsimd` gives. It needs no lock of the interpreter's: what changes is behind atomics, locks of its own and
/// cells that are set once.
#[pyo3::pymodule(gil_used = false)]
mod _sparsimd {
    #[pymodule_export]
    use super::array::empty;
    #[pymodule_export]
    use super::decomposition::{_cp_als, _tucker};
    #[pymodule_export]
    use super::dlpack::_use_exchange;
    #[pymodule_export]
    use super::error::SparsimdError;
    #[pymodule_export]
    use super::files::{read, write};
    #[pymodule_export]
    use super::fusedmm::{fusedmm, fusedmm_gradient};
    #[pymodule_export]
    use super::machine::{info, topology};
    #[pymodule_export]
    use super::matrix::Csr;
    #[pymodule_export]
    use super::mttkrp::{PreparedTensor, mttkrp};
    #[pymodule_export]
    use super::native::spmm_seconds;
    #[pymodule_export]
    use super::ops::{sddmm, spmm};
    #[pymodule_export]
    use super::plan::Plan;
    #[pymodule_export]
    use super::tensor::{Tensor, ttm, ttv};
    #[pymodule_export]
    use super::threads::{get_num_threads, set_num_threads};
    #[pymodule_export]
    use super::torch::{_has_indices, _sddmm_at, _sddmm_kept, _spmm_at, _spmm_kept};
    #[pymodule_export]
    use super::transposed::Transposed;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::threads::watch_forks();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

"""Explicit-SIMD kernels for sparse matrices and tensors.

Matrices: `csr`, `block_diagonal`, `spmm`, `sddmm`, `fusedmm`, `fusedmm_gradient`, `attention`. Tensors: `Tensor`, `mttkrp`, `ttm`, `ttv`, `cp_als`, `tucker`.
Files: `read`, `write`. Threads: `set_num_threads`, `get_num_threads`, `threads`. The machine: `info`, `topology`.
"""

from ._attention import attention
from ._decomposition import CP, Tucker, cp_als, tucker
from ._matrix import block_diagonal, csr
from ._sparsimd import (
    CSR,
    Plan,
    PreparedTensor,
    SparsimdError,
    Tensor,
    Transposed,
    __version__,
    empty,
    fusedmm,
    fusedmm_gradient,
    get_num_threads,
    info,
    mttkrp,
    read,
    sddmm,
    set_num_threads,
    spmm,
    topology,
    ttm,
    ttv,
    write,
)
from ._threads import threads

__all__ = [
    "CP",
    "CSR",
    "Plan",
    "PreparedTensor",
    "SparsimdError",
    "Tensor",
    "Transposed",
    "Tucker",
    "__version__",
    "attention",
    "block_diagonal",
    "cp_als",
    "csr",
    "empty",
    "fusedmm",
    "fusedmm_gradient",
    "get_num_threads",
    "info",
    "mttkrp",
    "read",
    "sddmm",
    "set_num_threads",
    "spmm",
    "threads",
    "topology",
    "ttm",
    "ttv",
    "tucker",
    "write",
]

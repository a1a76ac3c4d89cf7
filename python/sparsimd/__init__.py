"""Explicit-SIMD kernels for sparse matrices and tensors.

Matrices: `csr`, `spmm`, `sddmm`, `fusedmm`, `attention`. Tensors: `Tensor`, `mttkrp`, `ttm`, `ttv`, `cp_als`, `tucker`.
Files: `read`, `write`. Threads: `set_num_threads`, `get_num_threads`, `threads`. The machine: `info`, `topology`.
"""

from ._matrix import csr
from ._sparsimd import (
    CSR,
    Plan,
    SparsimdError,
    Transposed,
    __version__,
    empty,
    fusedmm,
    get_num_threads,
    info,
    read,
    sddmm,
    set_num_threads,
    spmm,
    topology,
    write,
)
from ._threads import threads

__all__ = [
    "CSR",
    "Plan",
    "SparsimdError",
    "Transposed",
    "__version__",
    "csr",
    "empty",
    "fusedmm",
    "get_num_threads",
    "info",
    "read",
    "sddmm",
    "set_num_threads",
    "spmm",
    "threads",
    "topology",
    "write",
]

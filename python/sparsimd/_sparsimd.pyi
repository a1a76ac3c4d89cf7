"""Types of the compiled module."""

import os
from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex, final, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ._types import Edge, Effort, Format, Op, Reduce, Scores, Semiring, Strategy

__version__: str
__all__ = [
    "CSR",
    "Plan",
    "PreparedTensor",
    "SparsimdError",
    "Tensor",
    "Transposed",
    "__version__",
    "_cp_als",
    "_has_indices",
    "_sddmm_at",
    "_sddmm_kept",
    "_spmm_at",
    "_spmm_kept",
    "_spmm_seconds",
    "_tucker",
    "_use_exchange",
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
    "topology",
    "ttm",
    "ttv",
    "write",
]

class SparsimdError(Exception): ...

@final
class CSR:
    __array_ufunc__: None
    @staticmethod
    def _from_arrays(
        data: NDArray[Any], indices: ArrayLike, indptr: ArrayLike, shape: tuple[int, int]
    ) -> CSR: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def nnz(self) -> int: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def data(self) -> NDArray[Any]: ...
    @property
    def indices(self) -> NDArray[Any]: ...
    @property
    def indptr(self) -> NDArray[np.int64]: ...
    @property
    def T(self) -> Transposed: ...
    def with_values(self, values: ArrayLike) -> CSR: ...
    def astype(self, dtype: DTypeLike) -> CSR: ...
    def prepare(
        self, op: Op, n: int, *, reuse: int = 1000, effort: Effort = "estimate", strategy: Strategy = "auto"
    ) -> Plan: ...
    def matvec(self, x: ArrayLike) -> NDArray[Any]: ...
    def rmatvec(self, x: ArrayLike) -> NDArray[Any]: ...
    def matmat(self, x: ArrayLike) -> NDArray[Any]: ...
    def rmatmat(self, x: ArrayLike) -> NDArray[Any]: ...
    def to_scipy(self) -> Any: ...
    def toarray(self) -> NDArray[Any]: ...
    def __matmul__(self, value: ArrayLike, /) -> NDArray[Any]: ...
    def __rmatmul__(self, value: ArrayLike, /) -> NDArray[Any]: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Transposed:
    __array_ufunc__: None
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def nnz(self) -> int: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def T(self) -> CSR: ...
    def prepare(
        self,
        op: Literal["spmm"],
        n: int,
        *,
        reuse: int = 1000,
        effort: Effort = "estimate",
        strategy: Strategy = "auto",
    ) -> Plan: ...
    def matvec(self, x: ArrayLike) -> NDArray[Any]: ...
    def rmatvec(self, x: ArrayLike) -> NDArray[Any]: ...
    def matmat(self, x: ArrayLike) -> NDArray[Any]: ...
    def rmatmat(self, x: ArrayLike) -> NDArray[Any]: ...
    def __matmul__(self, value: ArrayLike, /) -> NDArray[Any]: ...
    def __rmatmul__(self, value: ArrayLike, /) -> NDArray[Any]: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Plan:
    __array_ufunc__: None
    @property
    def op(self) -> Op: ...
    @property
    def n(self) -> int: ...
    @property
    def strategy(self) -> Literal["direct", "panel", "slices"]: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def nnz(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def matrix(self) -> CSR: ...
    def explain(self) -> str: ...
    def set_values(self, values: ArrayLike) -> None: ...
    def __matmul__(self, value: ArrayLike, /) -> NDArray[Any]: ...
    def __rmatmul__(self, value: Any, /) -> Any: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Tensor:
    __array_ufunc__: None
    def __new__(cls, coords: ArrayLike, values: ArrayLike, shape: Sequence[int]) -> Tensor: ...
    @staticmethod
    def from_pyttb(x: Any) -> Tensor: ...
    @staticmethod
    def from_sparse(x: Any) -> Tensor: ...
    @staticmethod
    def from_tensorly(x: Any) -> Tensor: ...
    def to_pyttb(self) -> Any: ...
    def to_sparse(self) -> Any: ...
    def toarray(self) -> NDArray[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def nnz(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def coords(self) -> NDArray[np.int64]: ...
    @property
    def values(self) -> NDArray[Any]: ...
    def prepare(
        self, rank: int, format: Format = "auto", *, factors: DTypeLike | None = None
    ) -> PreparedTensor: ...
    def __add__(self, value: Tensor, /) -> Tensor: ...
    def __radd__(self, value: Any, /) -> Any: ...
    def __sub__(self, value: Tensor, /) -> Tensor: ...
    def __rsub__(self, value: Any, /) -> Any: ...
    def __mul__(self, value: Tensor | float, /) -> Tensor: ...
    def __rmul__(self, value: float, /) -> Tensor: ...
    def __truediv__(self, value: Tensor | float, /) -> Tensor: ...
    def __rtruediv__(self, value: Any, /) -> Any: ...
    def __neg__(self) -> Tensor: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class PreparedTensor:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nnz(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def format(self) -> Format: ...
    def explain(self) -> str: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

def mttkrp(
    T: Tensor | PreparedTensor,
    factors: Sequence[ArrayLike | None],
    mode: int,
    out: Any = None,
    *,
    copy: bool = True,
) -> NDArray[Any]: ...
def ttm(T: Tensor, U: ArrayLike, mode: int, *, copy: bool = True) -> Tensor: ...
def ttv(T: Tensor, v: ArrayLike, mode: int) -> Any: ...
def _cp_als(
    T: Tensor | PreparedTensor,
    rank: int,
    maxiters: int,
    stoptol: float,
    init: Any,
    seed: int,
    ridge: float,
    nonnegative: bool,
    callback: Any,
    checkpoint: str | os.PathLike[str] | None,
) -> tuple[NDArray[np.float64], list[NDArray[Any]], NDArray[np.float64], bool]: ...
def _tucker(
    T: Tensor,
    ranks: Sequence[int],
    maxiters: int,
    stoptol: float,
    init: Any,
    seed: int,
    callback: Any,
    checkpoint: str | os.PathLike[str] | None,
) -> tuple[NDArray[np.float64], list[NDArray[np.float64]], NDArray[np.float64], bool]: ...
@overload
def spmm(
    A: Any,
    X: ArrayLike,
    *,
    reduce: Reduce = "sum",
    semiring: Semiring | None = None,
    return_positions: Literal[False] = False,
    out: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    copy: bool = True,
) -> NDArray[Any]: ...
@overload
def spmm(
    A: Any,
    X: ArrayLike,
    *,
    reduce: Reduce = "sum",
    semiring: Semiring | None = None,
    return_positions: Literal[True],
    out: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    copy: bool = True,
) -> tuple[NDArray[Any], NDArray[np.int32]]: ...
def _use_exchange(capsule: Any) -> bool: ...
def _has_indices(
    a: CSR, crow: int, rows: int, crow_bytes: int, col: int, nnz: int, col_bytes: int
) -> bool: ...
def _spmm_at(
    a: CSR,
    transposed: bool,
    kind: int,
    values: tuple[int, int],
    x: tuple[int, int, int, int],
    out: tuple[int, int, int, int],
) -> None: ...
def _sddmm_at(
    a: CSR, kind: int, x1: tuple[int, int, int, int], x2: tuple[int, int, int, int], out: int
) -> None: ...
def _spmm_kept(
    kept: dict[tuple[int, int, int], CSR], crow: Any, col: Any, values: Any, x: Any, out: Any
) -> bool: ...
def _spmm_seconds(a: CSR | Plan, x: ArrayLike, out: Any, runs: int) -> float: ...
def _sddmm_kept(
    kept: dict[tuple[int, int, int], CSR], crow: Any, col: Any, x1: Any, x2: Any, out: Any
) -> bool: ...
def sddmm(
    A: Any,
    X1: ArrayLike,
    X2: ArrayLike,
    *,
    scaled: bool = False,
    out: Any = None,
    copy: bool = True,
) -> NDArray[Any]: ...
@overload
def fusedmm(
    A: Any,
    X: ArrayLike,
    Y: ArrayLike,
    Z: ArrayLike,
    *,
    edge: Edge = "softmax",
    scale: float = 1.0,
    negative_slope: float = 0.2,
    heads: int = 1,
    scores: Scores = "dots",
    bias: ArrayLike | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    return_lse: Literal[False] = False,
    out: Any = None,
    copy: bool = True,
) -> NDArray[Any]: ...
@overload
def fusedmm(
    A: Any,
    X: ArrayLike,
    Y: ArrayLike,
    Z: ArrayLike,
    *,
    edge: Edge = "softmax",
    scale: float = 1.0,
    negative_slope: float = 0.2,
    heads: int = 1,
    scores: Scores = "dots",
    bias: ArrayLike | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    return_lse: Literal[True],
    out: Any = None,
    copy: bool = True,
) -> tuple[NDArray[Any], NDArray[Any]]: ...
def fusedmm_gradient(
    A: Any,
    X: ArrayLike,
    Y: ArrayLike,
    Z: ArrayLike,
    dE: ArrayLike,
    *,
    lse: ArrayLike | None = None,
    edge: Edge = "softmax",
    scale: float = 1.0,
    negative_slope: float = 0.2,
    heads: int = 1,
    scores: Scores = "dots",
    bias: ArrayLike | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    copy: bool = True,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]: ...
def empty(shape: SupportsIndex | tuple[int, ...], dtype: DTypeLike | None = None) -> NDArray[Any]: ...
def read(
    path: str | os.PathLike[str],
    *,
    dtype: DTypeLike | None = None,
    zero_based: bool = False,
    sum_duplicates: bool = False,
) -> Any: ...
def write(path: str | os.PathLike[str], x: Any) -> None: ...
def set_num_threads(n: int) -> None: ...
def get_num_threads() -> int: ...
def info() -> dict[str, Any]: ...
def topology() -> dict[str, Any]: ...

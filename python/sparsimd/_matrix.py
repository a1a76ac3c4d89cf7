"""Matrices of other packages as `CSR`, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ._arrays import dense, half, integers
from ._sparsimd import CSR, Plan, Transposed
from ._types import Effort, Op, Strategy


def csr(A: Any, *, shape: tuple[int, int] | None = None, dtype: DTypeLike | None = None) -> CSR:
    """Make a sparse matrix by rows.

    Parameters
    ----------
    A : scipy sparse matrix or array, torch sparse tensor, tuple, CSR
        Of any format of scipy, or CSR or COO of torch. Or the tuple ``(data, indices, indptr)``.
        Entries at the same place are added up, on a copy; columns need not ascend.
    shape : tuple of int, optional
        Rows and columns, for a tuple; by default the least ones.
    dtype : dtype, optional
        ``float32``, ``float64``, ``int32`` or ``int64``. By default that of `A`: float32 for numbers of 16 bits, float64 for integers.
        Only `spmm` and ``@`` compute with integers, which wrap around.

    Returns
    -------
    CSR
        Its indices are a copy. Its values are those of `A` where they have the dtype and are contiguous.

    Raises
    ------
    ValueError
        When the arrays are not a matrix, naming the place.
    TypeError
        When `A` is of no known type, or its values are no real numbers.

    Examples
    --------
    >>> import sparsimd as ss
    >>> ss.csr(([2.0, 3.0, 4.0], [0, 2, 1], [0, 2, 3]), shape=(2, 3))
    <sparsimd.CSR 2 x 3, 3 nonzeros, float64>
    """
    if isinstance(A, CSR):
        return A if dtype is None or checked(dtype) == A.dtype else A.astype(dtype)
    if isinstance(A, Transposed):
        return _by_columns(A.T.data, A.T.indices, A.T.indptr, A.shape, dtype or A.dtype)
    if isinstance(A, tuple):
        if len(A) != 3:
            raise ValueError(f"A: a tuple of {len(A)}; (data, indices, indptr) is expected")
        data, indices, indptr = A
        indices, indptr = integers(indices, "indices"), integers(indptr, "indptr")
        if shape is None:
            if len(indptr) == 0:
                raise ValueError("indptr: is empty; it has one entry more than there are rows")
            shape = (len(indptr) - 1, int(indices.max()) + 1 if len(indices) else 0)
        elif np.shape(shape) != (2,):
            raise ValueError(f"shape: {shape!r} is not (rows, columns)")
        return _from_arrays(data, indices, indptr, shape, dtype)
    if shape is not None:
        raise ValueError("shape: is for the tuple (data, indices, indptr); a matrix has its own")
    module = type(A).__module__
    if module.startswith("scipy.sparse"):
        return _from_scipy(A, dtype)
    if module.startswith("torch"):
        return _from_torch(A, dtype)
    if hasattr(A, "tocsr"):
        return _from_scipy(A.tocsr(), dtype)
    raise TypeError(
        f"A: {type(A).__name__} is not a sparse matrix; a CSR, Plan, scipy matrix, torch CSR tensor "
        "or (data, indices, indptr) is expected"
    )


def block_diagonal(matrices: Iterable[Any]) -> CSR:
    """Make the batch of several sparse matrices: one matrix, with them along its diagonal.

    Every function on it is that function on each of them, with one plan; threads share the rows of all. A dense operand (b, k, n)
    becomes that of the batch by ``X.reshape(b * k, n)``, without a copy.

    Parameters
    ----------
    matrices : iterable of CSR and whatever `csr` takes
        At least one. Shapes may differ.

    Returns
    -------
    CSR
        Its dtype is the one that holds those of all.

    Raises
    ------
    ValueError, TypeError
        As `csr`.

    Examples
    --------
    >>> import numpy as np
    >>> import sparsimd as ss
    >>> A = ss.csr(([2.0, 3.0], [0, 2], [0, 1, 2]), shape=(2, 3))
    >>> ss.block_diagonal([A, A]) @ np.arange(6.0)
    array([ 0.,  6.,  6., 15.])
    """
    blocks = [csr(A) for A in matrices]
    if not blocks:
        raise ValueError("matrices: there is none, and so no dtype")
    dtype = np.result_type(*(A.dtype for A in blocks))
    columns = np.cumsum([0, *(A.shape[1] for A in blocks)])
    nonzeros = np.cumsum([0, *(A.nnz for A in blocks)])
    data = np.concatenate([A.data for A in blocks], dtype=dtype)
    indices = np.concatenate([A.indices.astype(np.int64) + start for A, start in zip(blocks, columns, strict=False)])
    pointers = [A.indptr[1:] + start for A, start in zip(blocks, nonzeros, strict=False)]
    indptr = np.concatenate([np.zeros(1, np.int64), *pointers])
    return _from_arrays(data, indices, indptr, (len(indptr) - 1, int(columns[-1])), None)


def checked(dtype: DTypeLike) -> np.dtype[Any]:
    """`dtype`, if matrices have it."""
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"dtype: {error}") from None
    if found not in (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int32), np.dtype(np.int64)):
        raise TypeError(f"dtype: {found} is none of float32, float64, int32 and int64")
    return found


def _dtype_of(data: NDArray[Any], dtype: DTypeLike | None) -> np.dtype[Any]:
    """The dtype that a matrix of `data` has."""
    if dtype is not None:
        return checked(dtype)
    if data.dtype.kind not in "biuf" and half(data) is None:
        raise TypeError(f"A: {data.dtype} are not real numbers")
    return np.dtype(np.float32 if data.dtype == np.float32 or half(data) else np.float64)


def _from_arrays(data: Any, indices: Any, indptr: Any, shape: tuple[int, int], dtype: DTypeLike | None) -> CSR:
    data = np.asarray(data)
    if data.ndim != 1:
        raise ValueError(f"data: has {data.ndim} dimensions; 1 is expected")
    want = _dtype_of(data, dtype)
    if data.dtype.kind not in "biuf" and half(data) is None:
        raise TypeError(f"data: {data.dtype} are not real numbers")
    data = data.astype(want, copy=False)
    rows, cols = (int(n) for n in shape)
    if rows < 0 or cols < 0:
        raise ValueError(f"shape: {shape} has a negative length")
    return CSR._from_arrays(data, indices, indptr, (rows, cols))


def _by_columns(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: tuple[int, int], dtype: DTypeLike | None
) -> CSR:
    """The matrix whose columns are given: the transpose of one by rows."""
    order = np.argsort(indices, kind="stable")
    columns = np.repeat(np.arange(shape[1], dtype=np.int64), np.diff(indptr))[order]
    counts = np.bincount(indices, minlength=shape[0]) if len(indices) else np.zeros(shape[0], np.int64)
    pointers = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    return _from_arrays(data[order], columns, pointers, shape, dtype)


def _from_scipy(A: Any, dtype: DTypeLike | None) -> CSR:
    if A.ndim != 2:
        raise ValueError(f"A: has {A.ndim} dimensions; 2 are expected")
    if A.format != "csr":
        # Of columns scipy makes rows by a counting sort.
        A = A.tocsr()
    return _from_arrays(A.data, A.indices, A.indptr, A.shape, dtype)


def _from_torch(A: Any, dtype: DTypeLike | None) -> CSR:
    if "sparse" not in str(A.layout):
        raise TypeError("A: a dense tensor; a sparse one is expected")
    if A.requires_grad:
        raise TypeError("A: a tensor that requires gradients; detach() it, or use sparsimd.torch")
    if A.device.type != "cpu":
        raise TypeError(f"A: a tensor on {A.device}; move it to the processor first")
    if A.dim() != 2:
        raise ValueError(f"A: has {A.dim()} dimensions; 2 are expected")
    if str(A.layout) != "torch.sparse_csr":
        A = A.to_sparse_csr()
    indices, indptr = (t.detach().numpy() for t in (A.col_indices(), A.crow_indices()))
    return _from_arrays(dense(A.values(), "A"), indices, indptr, tuple(A.shape), dtype)


def to_scipy(A: CSR) -> Any:
    """`A` as scipy has it."""
    try:
        import scipy.sparse
    except ImportError as error:
        raise ImportError("to_scipy() needs the package scipy: pip install scipy") from error
    width = np.int32 if max(*A.shape, A.nnz) <= np.iinfo(np.int32).max else np.int64
    indices, indptr = A.indices.astype(width), A.indptr.astype(width)
    return scipy.sparse.csr_array((A.data, indices, indptr), shape=A.shape)


def to_dense(A: CSR) -> NDArray[Any]:
    """`A` with its zeros."""
    array = np.zeros(A.shape, A.dtype)
    rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    array[rows, A.indices] = A.data
    return array


def restore_matrix(data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: tuple[int, int]) -> CSR:
    """A matrix from its pickle; it is checked again."""
    return _from_arrays(data, indices, indptr, shape, data.dtype)


def restore_transposed(A: CSR) -> Transposed:
    """A transpose from its pickle."""
    return A.T


def restore_plan(A: CSR, options: tuple[Op, int, int, Effort, Strategy]) -> Plan:
    """A plan from its pickle; the matrix is prepared again."""
    op, n, reuse, effort, strategy = options
    return A.prepare(op, n, reuse=reuse, effort=effort, strategy=strategy)

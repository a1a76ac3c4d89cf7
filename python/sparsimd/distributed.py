"""Products of a sparse matrix whose rows are cut between the ranks of an MPI communicator (mpi4py), and CP decompositions of a tensor
whose entries are.

Rank k has some rows of A, one after the other, and the same of C; and some rows of B, cut as the columns of A. All ranks of the communicator
call the same functions in the same order.

The C library that this uses is built for the MPI of the machine, and found by the environment variable ``SPARSIMD_MPI_LIBRARY`` or the
loader's path::

    cargo rustc --release -p sparsimd-distributed --lib --features capi --crate-type cdylib
    export SPARSIMD_MPI_LIBRARY=target/release/libsparsimd_distributed.so
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._sparsimd import SparsimdError

__all__ = ["Cp", "Matrix", "cp_als", "spmm"]

_ALGORITHMS = {"auto": 0, "aware": 1, "dense": 2}
_OPERATIONS = {"spmm": 0, "sddmm": 1, "fusedmm": 2, "fusedmm_softmax": 3, "fusedmm_gradient": 4}
_EDGES = {"identity": 0, "scale": 1, "sigmoid": 2, "softmax": 3, "leaky_relu": 4, "softmax_leaky_relu": 5}


class _Given(ctypes.Structure):
    _fields_ = [
        ("rows", ctypes.c_size_t),
        ("cols", ctypes.c_size_t),
        ("b_rows", ctypes.c_size_t),
        ("row_ptr", ctypes.c_void_p),
        ("col_idx", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("double_precision", ctypes.c_int),
        ("operation", ctypes.c_int),
        ("n", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("algorithm", ctypes.c_int),
        ("replication", ctypes.c_size_t),
        ("threads", ctypes.c_size_t),
        ("in_common", ctypes.c_int),
    ]


class _Entries(ctypes.Structure):
    _fields_ = [
        ("order", ctypes.c_size_t),
        ("dims", ctypes.c_void_p),
        ("nnz", ctypes.c_size_t),
        ("coords", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("double_precision", ctypes.c_int),
        ("threads", ctypes.c_size_t),
    ]


class _Factor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("rows", ctypes.c_size_t),
        ("cols", ctypes.c_size_t),
        ("ld", ctypes.c_size_t),
    ]


class _CpOptions(ctypes.Structure):
    _fields_ = [
        ("rank", ctypes.c_size_t),
        ("iterations", ctypes.c_size_t),
        ("tolerance", ctypes.c_double),
        ("ridge", ctypes.c_double),
        ("nonnegative", ctypes.c_int),
        ("seed", ctypes.c_uint64),
        ("init", ctypes.POINTER(_Factor)),
        ("factors", ctypes.c_size_t),
        ("checkpoint", ctypes.c_char_p),
        ("every", ctypes.c_size_t),
        ("resume", ctypes.c_int),
    ]


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    name = os.environ.get("SPARSIMD_MPI_LIBRARY", "libsparsimd_distributed.so")
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        detail = "SPARSIMD_MPI_LIBRARY names the library that is built for this machine's MPI"
        raise ImportError(f"{error}: {detail}") from error
    size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    library.sparsimd_mpi_last_error.restype = ctypes.c_char_p
    library.sparsimd_mpi_create.argtypes = [number, ctypes.POINTER(_Given), ctypes.POINTER(pointer)]
    library.sparsimd_mpi_spmm.argtypes = [pointer, size, pointer, size, pointer, size]
    library.sparsimd_mpi_spmm_transposed.argtypes = library.sparsimd_mpi_spmm.argtypes
    library.sparsimd_mpi_sddmm.argtypes = [pointer, number, size, pointer, size, pointer, size, pointer]
    rows: list[type[Any]] = [pointer, size]
    real = ctypes.c_double
    library.sparsimd_mpi_sddmm_gradient.argtypes = [pointer, size, *rows, *rows, pointer, *rows, *rows]
    fused: list[type[Any]] = [pointer, number, real, size, *rows, *rows, size, *rows]
    library.sparsimd_mpi_fusedmm.argtypes = [*fused, *rows]
    library.sparsimd_mpi_fusedmm_gradient.argtypes = [*fused, *rows, *rows, *rows, *rows, pointer]
    library.sparsimd_mpi_destroy.argtypes = [pointer]
    to_size, to_pointer = ctypes.POINTER(size), ctypes.POINTER(pointer)
    to_room: list[type[Any]] = [to_pointer, to_pointer, to_size, ctypes.POINTER(number)]
    library.sparsimd_mpi_common_create.argtypes = [pointer, size, *to_room]
    library.sparsimd_mpi_common_destroy.argtypes = [pointer]
    library.sparsimd_mpi_common_destroy.restype = None
    library.sparsimd_mpi_cp_create.argtypes = [number, ctypes.POINTER(_Entries), ctypes.POINTER(pointer)]
    library.sparsimd_mpi_cp_als.argtypes = [pointer, ctypes.POINTER(_CpOptions)]
    library.sparsimd_mpi_cp_rows.argtypes = [pointer, size, to_size, to_size]
    library.sparsimd_mpi_cp_factor.argtypes = [pointer, size, pointer, size]
    library.sparsimd_mpi_cp_weights.argtypes = [pointer, pointer]
    library.sparsimd_mpi_cp_fit.argtypes = [pointer, ctypes.POINTER(real), to_size]
    library.sparsimd_mpi_cp_destroy.argtypes = [pointer]
    library.sparsimd_mpi_destroy.restype = None
    library.sparsimd_mpi_cp_destroy.restype = None
    return library


def _expect(status: int) -> None:
    if status != 0:
        raise SparsimdError(_library().sparsimd_mpi_last_error().decode())


def _rows(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """A matrix of contiguous rows as two arguments."""
    # Of less than two rows, the step is any number.
    return array.ctypes.data, max(array.strides[0] // array.itemsize, array.shape[1])


def _by_rows(array: npt.ArrayLike, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """As it is, if its rows are contiguous and follow each other, else a copy."""
    matrix = np.asarray(array, dtype=dtype)
    if matrix.ndim == 2 and matrix.flags.aligned:
        apart, beside = matrix.strides
        if beside == matrix.itemsize and apart % beside == 0 and apart >= matrix.shape[1] * beside:
            return matrix
    return np.ascontiguousarray(matrix)


def _edge(edge: str, scale: float, negative_slope: float) -> tuple[int, float]:
    if edge not in _EDGES:
        raise ValueError(f"edge: {edge!r}; one of {', '.join(_EDGES)}")
    return _EDGES[edge], scale if edge == "softmax" else negative_slope


class Matrix:
    """A matrix on the ranks of a communicator, laid out for its products.

    Parameters
    ----------
    a : sparse matrix by rows
        This rank's rows with all columns: `scipy.sparse.csr_array`, `sparsimd.CSR`, or what has ``shape``, ``indptr``, ``indices`` and
        ``data`` of float32 or float64. Columns ascend in each row.
    comm : mpi4py.MPI.Comm
        It is duplicated.
    b_rows : int, optional
        Rows of B on this rank. As many as of A, if it is not given.
    operation : {"spmm", "sddmm", "fusedmm", "fusedmm_softmax", "fusedmm_gradient"}
        What the matrix is laid out, and its algorithm chosen, for; others run too.
    n : int
        Columns of B that are expected; other numbers run too.
    width : int
        Likewise, of D (FusedMM); 0 for as many.
    algorithm : {"auto", "aware", "dense"}
        Which rows of B a rank receives: those that its nonzeros name, or all, block by block.
    replication : int
        Ranks that share rows (dense); 0 leaves it to the plan.
    threads : int
        Of this rank; 0 for its share of the processors.
    in_common : bool
        Whether the algorithm is chosen for B and D from `common`; the same on all ranks.

    Use it as a context manager, or call `close` on all ranks before MPI ends.
    """

    def __init__(
        self,
        a: Any,
        comm: Any,
        *,
        b_rows: int | None = None,
        operation: str = "spmm",
        n: int = 32,
        width: int = 0,
        algorithm: str = "auto",
        replication: int = 0,
        threads: int = 0,
        in_common: bool = False,
    ) -> None:
        self._handle = ctypes.c_void_p()
        if algorithm not in _ALGORITHMS:
            raise ValueError(f"algorithm: {algorithm!r}; one of {', '.join(_ALGORITHMS)}")
        if operation not in _OPERATIONS:
            raise ValueError(f"operation: {operation!r}; one of {', '.join(_OPERATIONS)}")
        values = np.ascontiguousarray(a.data)
        if values.dtype not in (np.float32, np.float64):
            raise TypeError(f"data: {values.dtype}; float32 or float64")
        starts = np.ascontiguousarray(a.indptr, dtype=np.uint64)
        columns = np.ascontiguousarray(a.indices, dtype=np.uint32)
        rows, cols = a.shape
        if starts.shape != (rows + 1,) or columns.shape != values.shape or int(starts[-1]) != len(values):
            raise ValueError("indptr, indices and data do not fit each other")
        self.rows, self.b_rows = rows, rows if b_rows is None else b_rows
        self.nnz, self.dtype = len(values), values.dtype
        given = _Given(
            rows,
            cols,
            self.b_rows,
            starts.ctypes.data,
            columns.ctypes.data,
            values.ctypes.data,
            int(values.dtype == np.float64),
            _OPERATIONS[operation],
            n,
            width,
            _ALGORITHMS[algorithm],
            replication,
            threads,
            int(in_common),
        )
        _expect(_library().sparsimd_mpi_create(comm.py2f(), ctypes.byref(given), ctypes.byref(self._handle)))

    def _operand(self, name: str, array: npt.ArrayLike, rows: int) -> np.ndarray[Any, Any]:
        matrix = _by_rows(array, self.dtype)
        if matrix.ndim != 2 or matrix.shape[0] != rows:
            raise ValueError(f"{name}: shape {matrix.shape}, expected {rows} rows")
        return matrix

    def _pair(self, c: npt.ArrayLike, b: npt.ArrayLike) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        c, b = self._operand("C", c, self.rows), self._operand("B", b, self.b_rows)
        if b.shape[1] != c.shape[1]:
            raise ValueError(f"B: {b.shape[1]} columns, C has {c.shape[1]}")
        return c, b

    def _open(self) -> ctypes.c_void_p:
        if not self._handle:
            raise ValueError("the matrix has been closed")
        return self._handle

    def common(self, n: int) -> np.ndarray[Any, Any]:
        """Zeros for this rank's rows of a B or D of `n` columns, to be written between calls, in memory that all ranks map where they are on
        one machine. All ranks call this.

        `spmm`, `sddmm` and `fusedmm` of this matrix, given such arrays on all ranks, read others' rows in place where the algorithm is
        "aware". The memory is freed with the array, which may outlive the matrix.
        """
        library, handle, data = _library(), ctypes.c_void_p(), ctypes.c_void_p()
        apart, in_common = ctypes.c_size_t(), ctypes.c_int()
        got = (ctypes.byref(x) for x in (handle, data, apart, in_common))
        _expect(library.sparsimd_mpi_common_create(self._open(), n, *got))
        step = apart.value * self.dtype.itemsize
        # An array's base lives as long as it, and its views.
        memory = (ctypes.c_char * (self.b_rows * step)).from_address(data.value or 0)
        # Not at the program's end: others may use it then.
        weakref.finalize(memory, library.sparsimd_mpi_common_destroy, handle).atexit = False
        return np.ndarray((self.b_rows, n), self.dtype, memoryview(memory), strides=(step, self.dtype.itemsize))

    def spmm(self, b: npt.ArrayLike) -> np.ndarray[Any, Any]:
        """This rank's rows of C = A B, from its rows of B."""
        b = self._operand("B", b, self.b_rows)
        n = b.shape[1]
        c = np.empty((self.rows, n), self.dtype)
        _expect(_library().sparsimd_mpi_spmm(self._open(), n, *_rows(b), *_rows(c)))
        return c

    def spmm_transposed(self, c: npt.ArrayLike) -> np.ndarray[Any, Any]:
        """This rank's rows of B = A^T C, from its rows of C."""
        c = self._operand("C", c, self.rows)
        n = c.shape[1]
        b = np.empty((self.b_rows, n), self.dtype)
        _expect(_library().sparsimd_mpi_spmm_transposed(self._open(), n, *_rows(c), *_rows(b)))
        return b

    def sddmm(self, c: npt.ArrayLike, b: npt.ArrayLike, *, scaled: bool = False) -> np.ndarray[Any, Any]:
        """C_i . B_j for each of this rank's nonzeros (i, j), times its value if `scaled`."""
        c, b = self._pair(c, b)
        n = c.shape[1]
        out = np.empty(self.nnz, self.dtype)
        status = _library().sparsimd_mpi_sddmm(self._open(), int(scaled), n, *_rows(c), *_rows(b), out.ctypes.data)
        _expect(status)
        return out

    def sddmm_gradient(
        self, c: npt.ArrayLike, b: npt.ArrayLike, ds: npt.ArrayLike
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The gradients of `sddmm` by this rank's rows of C and B, from `ds`, one number for each of its nonzeros."""
        c, b = self._pair(c, b)
        numbers = np.ascontiguousarray(ds, dtype=self.dtype)
        if numbers.shape != (self.nnz,):
            raise ValueError(f"ds: shape {numbers.shape}, expected ({self.nnz},)")
        dc, db = np.empty(c.shape, self.dtype), np.empty(b.shape, self.dtype)
        n = c.shape[1]
        status = _library().sparsimd_mpi_sddmm_gradient(
            self._open(), n, *_rows(c), *_rows(b), numbers.ctypes.data, *_rows(dc), *_rows(db)
        )
        _expect(status)
        return dc, db

    def fusedmm(
        self,
        c: npt.ArrayLike,
        b: npt.ArrayLike,
        d: npt.ArrayLike,
        *,
        edge: str = "softmax",
        scale: float = 1.0,
        negative_slope: float = 0.2,
    ) -> np.ndarray[Any, Any]:
        """This rank's rows of E, E_i being the sum over the nonzeros (i, j) of f(C_i . B_j, a_ij) D_j, from its rows of C, B and D.

        `edge` is identity, scale, sigmoid, softmax, leaky_relu or softmax_leaky_relu, as in `sparsimd.fusedmm`. Where `d` is `b`, the rows
        travel once.
        """
        number, parameter = _edge(edge, scale, negative_slope)
        same = d is b
        c, b = self._pair(c, b)
        d = b if same else self._operand("D", d, self.b_rows)
        e = np.empty((self.rows, d.shape[1]), self.dtype)
        status = _library().sparsimd_mpi_fusedmm(
            self._open(), number, parameter, c.shape[1], *_rows(c), *_rows(b), d.shape[1], *_rows(d), *_rows(e)
        )
        _expect(status)
        return e

    def fusedmm_gradient(
        self,
        c: npt.ArrayLike,
        b: npt.ArrayLike,
        d: npt.ArrayLike,
        de: npt.ArrayLike,
        *,
        edge: str = "softmax",
        scale: float = 1.0,
        negative_slope: float = 0.2,
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
        """The gradients of `fusedmm` by this rank's rows of C, B and D, and by its values where the edge function uses them (scale), from
        its rows of that of E."""
        number, parameter = _edge(edge, scale, negative_slope)
        same = d is b
        c, b = self._pair(c, b)
        d = b if same else self._operand("D", d, self.b_rows)
        de = self._operand("dE", de, self.rows)
        if de.shape[1] != d.shape[1]:
            raise ValueError(f"dE: {de.shape[1]} columns, D has {d.shape[1]}")
        dc, db, dd = (np.empty(x.shape, self.dtype) for x in (c, b, d))
        dvalues = np.empty(self.nnz, self.dtype) if edge == "scale" else None
        status = _library().sparsimd_mpi_fusedmm_gradient(
            *(self._open(), number, parameter),
            *(c.shape[1], *_rows(c), *_rows(b), d.shape[1], *_rows(d), *_rows(de)),
            *(*_rows(dc), *_rows(db), *_rows(dd), None if dvalues is None else dvalues.ctypes.data),
        )
        _expect(status)
        return dc, db, dd, dvalues

    def close(self) -> None:
        """Frees the matrix and its copy of the communicator."""
        if self._handle:
            _library().sparsimd_mpi_destroy(self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self) -> Matrix:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def spmm(a_local: Any, b_local: npt.ArrayLike, comm: Any, **options: Any) -> np.ndarray[Any, Any]:
    """This rank's rows of C = A B on the ranks of the communicator `comm`.

    `a_local` has this rank's rows of A with all columns, `b_local` its rows of B, cut as A's columns; `options` are those of `Matrix`, which
    is worth making where A has more than one product.
    """
    b = np.asarray(b_local)
    if b.ndim != 2:
        raise ValueError(f"B: shape {b.shape}, expected two dimensions")
    with Matrix(a_local, comm, b_rows=b.shape[0], n=b.shape[1], **options) as a:
        return a.spmm(b)


class Cp(NamedTuple):
    """A CP model on ranks."""

    factors: list[np.ndarray[Any, Any]]
    """This rank's rows of every mode's factor, whose columns have length 1."""
    rows: list[range]
    """Which rows these are."""
    weights: np.ndarray[Any, Any]
    """The weight of each component."""
    fit: float
    """1 - |X - model| / |X|."""
    iterations: int
    """How many there were."""


def cp_als(
    coords: npt.ArrayLike,
    values: npt.ArrayLike,
    shape: tuple[int, ...],
    comm: Any,
    rank: int,
    *,
    iterations: int = 50,
    tolerance: float = 1e-5,
    ridge: float = 0.0,
    nonnegative: bool = False,
    seed: int = 0,
    init: Sequence[npt.ArrayLike] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 10,
    resume: bool = False,
    threads: int = 0,
) -> Cp:
    """The CP decomposition, by alternating least squares, of a tensor whose entries are on the ranks of the communicator `comm`.

    Parameters
    ----------
    coords, values : array_like
        This rank's entries, any of the tensor's: (modes, entries) coordinates from 0 on, and float32 or float64 values.
    shape : tuple of int
        Lengths of the modes, of the whole tensor.
    comm : mpi4py.MPI.Comm
        It is duplicated.
    rank : int
        Number of components.
    iterations, tolerance, ridge, nonnegative, seed
        As `maxiters`, `stoptol`, ... of `sparsimd.cp_als`: the same on all ranks.
    init : sequence of array_like, optional
        The factors to start from, whole, of (length, rank) for each mode. Random ones of `seed`, if they are not given.
    checkpoint : path, optional
        What the next iteration needs is written to this file, whole or not at all, after each `every` iterations. The ranks share the
        file system.
    resume : bool, optional
        Whether to go on from the checkpoint, if the file is there; any number of ranks may have written it.
    threads : int
        Of this rank; 0 for its share of the processors.
    """
    numbers = np.ascontiguousarray(values)
    if numbers.dtype not in (np.float32, np.float64):
        raise TypeError(f"values: {numbers.dtype}; float32 or float64")
    places = np.asarray(coords)
    if places.shape != (len(shape), numbers.size) or numbers.ndim != 1:
        raise ValueError(f"coords: shape {places.shape}, values: {numbers.shape}; expected ({len(shape)}, n) and (n,)")
    if places.size and (places.min() < 0 or places.max() > np.iinfo(np.uint32).max):
        raise ValueError("coords: a number does not fit 32 bits")
    places = np.ascontiguousarray(places, dtype=np.uint32)
    dims = np.asarray(shape, dtype=np.uint64)
    library, handle = _library(), ctypes.c_void_p()
    given = _Entries(
        len(shape),
        dims.ctypes.data,
        numbers.size,
        places.ctypes.data,
        numbers.ctypes.data,
        int(numbers.dtype == np.float64),
        threads,
    )
    start = [np.ascontiguousarray(factor, dtype=numbers.dtype) for factor in ([] if init is None else init)]
    for mode, factor in enumerate(start):
        if factor.ndim != 2:
            raise ValueError(f"init: the factor of mode {mode} has {factor.ndim} dimensions, not two")
    factors_of = (_Factor * len(start))(*(_Factor(f.ctypes.data, *f.shape, f.shape[1]) for f in start))
    options = _CpOptions(
        *(rank, iterations, tolerance, ridge, int(nonnegative), seed, factors_of, len(start)),
        *(None if checkpoint is None else os.fspath(checkpoint).encode(), every, int(resume)),
    )
    _expect(library.sparsimd_mpi_cp_create(comm.py2f(), ctypes.byref(given), ctypes.byref(handle)))
    try:
        _expect(library.sparsimd_mpi_cp_als(handle, ctypes.byref(options)))
        factors, rows = [], []
        for mode in range(len(shape)):
            first, count = ctypes.c_size_t(), ctypes.c_size_t()
            _expect(library.sparsimd_mpi_cp_rows(handle, mode, ctypes.byref(first), ctypes.byref(count)))
            factor = np.empty((count.value, rank), numbers.dtype)
            _expect(library.sparsimd_mpi_cp_factor(handle, mode, *_rows(factor)))
            factors.append(factor)
            rows.append(range(first.value, first.value + count.value))
        weights, fit, done = np.empty(rank), ctypes.c_double(), ctypes.c_size_t()
        _expect(library.sparsimd_mpi_cp_weights(handle, weights.ctypes.data))
        _expect(library.sparsimd_mpi_cp_fit(handle, ctypes.byref(fit), ctypes.byref(done)))
    finally:
        library.sparsimd_mpi_cp_destroy(handle)
    return Cp(factors, rows, weights, fit.value, done.value)

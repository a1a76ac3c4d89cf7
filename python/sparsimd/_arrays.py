"""Arrays that the compiled half cannot read where they are, converted by one copy."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

_log = logging.getLogger("sparsimd")


def log_plan(text: str) -> None:
    """Tell the log what was planned."""
    _log.debug("plan: %s", text)


def is_sparse(x: object) -> bool:
    """Whether `x` is a sparse matrix of scipy or PyData, or a sparse tensor of torch."""
    module = type(x).__module__
    if module.startswith(("scipy.sparse", "sparse.", "sparsimd")):
        return True
    return module.startswith("torch") and getattr(x, "layout", None) is not None and "sparse" in str(x.layout)  # type: ignore[attr-defined]


def half(x: Any) -> str | None:
    """The name of the dtype of `x`, if that is a floating-point number of 16 bits."""
    name = str(getattr(x, "dtype", "")).removeprefix("torch.")
    return name if name in ("float16", "bfloat16") else None


def dtype_name(dtype: Any) -> str:
    """What numpy or torch calls a dtype; bfloat16 need not be known to numpy."""
    name = str(dtype).removeprefix("torch.")
    return name if name == "bfloat16" else np.dtype(name if name != str(dtype) else dtype).name


def halves(bits: NDArray[np.uint16], name: str) -> NDArray[Any]:
    """`bits` as an array of the dtype of 16 bits with this name."""
    if name == "float16":
        return bits.view(np.float16)
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError("an array of bfloat16 needs the package ml_dtypes: pip install ml_dtypes") from error
    return bits.view(ml_dtypes.bfloat16)


def _bits(x: Any, name: str) -> NDArray[np.uint16]:
    """The memory of an array or tensor of 16-bit numbers."""
    if type(x).__module__.startswith("torch"):
        import torch

        return np.asarray(_tensor(x, name).view(torch.int16)).view(np.uint16)
    return np.asarray(x).view(np.uint16)


def _tensor(x: Any, name: str) -> Any:
    """The tensor of torch, if numpy can share its memory."""
    if x.requires_grad:
        raise TypeError(f"{name}: a tensor that requires gradients; detach() it, or use sparsimd.torch")
    if x.device.type != "cpu":
        raise TypeError(f"{name}: a tensor on {x.device}; move it to the processor first")
    return x.detach()


def dense(x: Any, name: str) -> NDArray[Any]:
    """`x` as an array, shared where that is possible."""
    if isinstance(x, np.ndarray):
        return x
    if is_sparse(x):
        raise TypeError(f"{name}: a dense array is expected, not {type(x).__name__}")
    if type(x).__module__.startswith("torch"):
        return halves(_bits(x, name), "bfloat16") if half(x) == "bfloat16" else np.asarray(_tensor(x, name))
    if not hasattr(x, "__array__") and hasattr(x, "__dlpack__"):
        return np.asarray(np.from_dlpack(x))
    try:
        return np.asarray(x)
    except (ValueError, RuntimeError) as error:
        raise TypeError(f"{name}: cannot be read as an array: {error}") from None


def operand(x: Any, name: str, dtype: str, transposed: bool, copy: bool) -> NDArray[Any]:
    """`x` as rows of `dtype` that the library reads, by columns if `transposed`; copied where it must be."""
    if dtype in ("float16", "bfloat16"):
        if half(x) != dtype:
            raise TypeError(f"{name}: {getattr(x, 'dtype', type(x).__name__)}; {dtype} is expected, as of X")
        a, want = _bits(x, name), np.dtype(np.uint16)
    else:
        a, want = dense(x, name), np.dtype(dtype)
        if a.dtype.kind not in "biuf" and half(a) is None:
            raise TypeError(f"{name}: {a.dtype} are not real numbers")
    if a.ndim not in (1, 2):
        raise ValueError(f"{name}: has {a.ndim} dimensions; 1 or 2 are expected")
    if a.dtype != want and not np.can_cast(a.dtype, want, "safe"):
        raise TypeError(f"{name}: {a.dtype} does not fit {want} without loss; convert it, or the matrix by astype()")
    readable = a.dtype == want and a.dtype.isnative and _rows(a.T if transposed else a) and a.flags.aligned
    if readable and isinstance(a, np.ndarray):
        return a
    if not copy:
        raise ValueError(f"{name}: would have to be copied (dtype {a.dtype}, strides {a.strides}), and copy=False")
    return np.array(a, dtype=want, order="F" if transposed else "C", copy=True, subok=False)


def _rows(a: NDArray[Any]) -> bool:
    """Whether rows of `a` are contiguous and do not overlap."""
    if a.size == 0:
        return True
    if a.ndim == 1:
        return a.shape[0] == 1 or (a.strides[0] > 0 and a.strides[0] % a.itemsize == 0)
    contiguous = a.shape[1] == 1 or a.strides[1] == a.itemsize
    apart = a.shape[0] == 1 or (a.strides[0] >= a.shape[1] * a.itemsize and a.strides[0] % a.itemsize == 0)
    return contiguous and apart


def output(x: Any, dtype: str) -> NDArray[Any]:
    """`x` as an array of `dtype` that shares its memory."""
    if dtype in ("float16", "bfloat16") and half(x) == dtype:
        return _bits(x, "out")
    a = x
    if type(x).__module__.startswith("torch"):
        a = dense(x, "out")
    if not isinstance(a, np.ndarray):
        raise TypeError(f"out: an array of numpy is expected, not {type(x).__name__}")
    if a.dtype != np.dtype(dtype):
        raise TypeError(f"out: {a.dtype}; {dtype}, the result's dtype, is expected")
    return a


def values(x: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """`x` as values of a matrix of `dtype`: float32, float64, and integers for integers as they are, other numbers as `dtype`."""
    a = dense(x, "values")
    if a.dtype.kind not in "biuf" and half(a) is None:
        raise TypeError(f"values: {a.dtype} are not real numbers")
    if a.ndim != 1:
        raise ValueError(f"values: has {a.ndim} dimensions; 1 is expected")
    integers = (np.int32, np.int64) if dtype.kind == "i" else ()
    return a if a.dtype in (np.float32, np.float64, *integers) else a.astype(dtype)


def integers(x: Any, name: str) -> NDArray[np.int64]:
    """`x` as 64-bit integers."""
    a = np.asarray(x)
    if a.size == 0 and a.dtype.kind == "f":
        return np.zeros(a.shape, np.int64)
    if a.dtype.kind not in "iu":
        raise TypeError(f"{name}: {a.dtype} are not integers")
    if a.ndim != 1:
        raise ValueError(f"{name}: has {a.ndim} dimensions; 1 is expected")
    if a.dtype == np.uint64 and a.size and int(a.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{name}: an index is too large")
    return np.ascontiguousarray(a, np.int64)


def matrix(a: Any) -> Any:
    """`a` as a `CSR`."""
    from ._matrix import csr

    return csr(a)

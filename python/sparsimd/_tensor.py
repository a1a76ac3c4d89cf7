"""Tensors of other packages as `Tensor`, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._sparsimd import PreparedTensor, Tensor
from ._types import Format


def from_pyttb(x: Any) -> Tensor:
    """A ``sptensor`` or a ``tensor``."""
    if hasattr(x, "subs"):
        order = len(x.shape)
        coords = np.asarray(x.subs, np.int64).reshape(-1, order).T
        return Tensor(np.ascontiguousarray(coords), np.asarray(x.vals).reshape(-1), tuple(x.shape))
    if hasattr(x, "data") and hasattr(x, "shape"):
        return _from_dense(np.asarray(x.data))
    raise TypeError(f"x: {type(x).__name__} is neither a sptensor nor a tensor of pyttb")


def from_sparse(x: Any) -> Tensor:
    """A ``sparse.COO``, or what can be made one."""
    if hasattr(x, "tocoo"):
        x = x.tocoo()
    elif not hasattr(x, "coords") and hasattr(x, "asformat"):
        x = x.asformat("coo")
    if not hasattr(x, "coords"):
        raise TypeError(f"x: {type(x).__name__} is not an array of PyData sparse")
    if np.any(getattr(x, "fill_value", 0) != 0):
        raise ValueError(f"x: what is not stored is {x.fill_value}, not 0")
    coords = np.stack(x.coords) if isinstance(x.coords, tuple) else x.coords
    return Tensor(np.asarray(coords, np.int64), np.asarray(x.data), tuple(x.shape))


def from_tensorly(x: Any) -> Tensor:
    """An array of tensorly's numpy backend."""
    if hasattr(x, "coords") or hasattr(x, "tocoo"):
        return from_sparse(x)
    if not isinstance(x, np.ndarray):
        raise TypeError(f"x: {type(x).__name__} is not an array of numpy; tensorly.to_numpy(x) makes one")
    return _from_dense(x)


def _from_dense(x: NDArray[Any]) -> Tensor:
    places = np.nonzero(x)
    return Tensor(np.stack(places) if x.ndim else np.zeros((0, 1), np.int64), x[places], x.shape)


def to_pyttb(T: Tensor) -> Any:
    """`T` as a ``sptensor``."""
    try:
        import pyttb
    except ImportError as error:
        raise ImportError("to_pyttb() needs the package pyttb: pip install pyttb") from error
    package: Any = pyttb
    return package.sptensor(np.ascontiguousarray(T.coords.T), T.values.reshape(-1, 1), T.shape)


def to_sparse(T: Tensor) -> Any:
    """`T` as a ``sparse.COO``."""
    try:
        import sparse
    except ImportError as error:
        raise ImportError("to_sparse() needs the package sparse: pip install sparse") from error
    return sparse.COO(T.coords, T.values, shape=T.shape)


def to_dense(T: Tensor) -> NDArray[Any]:
    """`T` with its zeros."""
    array = np.zeros(T.shape, T.dtype)
    array[tuple(T.coords)] = T.values
    return array


def restore_prepared(T: Tensor, rank: int, format: Format, factors: str | None = None) -> PreparedTensor:
    """A prepared tensor from its pickle; it is prepared again."""
    return T.prepare(rank, format, factors=factors)

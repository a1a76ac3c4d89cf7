"""Sparse attention by heads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arrays import dense, half
from ._matrix import csr
from ._sparsimd import CSR, Plan, fusedmm


def attention(
    mask: Any,
    Q: ArrayLike,
    K: ArrayLike,
    V: ArrayLike,
    *,
    scale: float | None = None,
    return_lse: bool = False,
    head_axis: int | None = None,
    out: NDArray[Any] | None = None,
) -> Any:
    """Softmax attention over the nonzeros of a mask, in one pass: ``softmax(scale * Q @ K.T on the mask) @ V``.

    With one head the scores are not stored. Several heads are computed together, from operands whose heads are the middle axis; others
    are copied to that. Several heads and `return_lse` store one number for each nonzero and head meanwhile, and 16-bit operands are
    widened for them.

    Parameters
    ----------
    mask : CSR, Plan for "fusedmm", scipy sparse matrix or array, torch CSR tensor
        (m, k): row i attends to the columns that are stored in it. Values do not matter. The dtype of a plan is that of the result.
    Q, K, V : array_like
        (m, d), (k, d) and (k, p), or with an axis of heads: (h, m, d) or (m, h, d), and so on for `K` and `V`. Or a batch of b with
        heads, (b, h, m, d) or (b, m, h, d), for a mask of (m, k), which is then that of all, or of (b m, b k), which is
        `block_diagonal` of b masks.
    scale : float, optional
        By default ``1 / sqrt(d)``.
    return_lse : bool, optional
        Whether to return the logarithm of each row's sum of ``exp(score)``, too.
    head_axis : {0, 1}, optional
        Where the axis of heads is, not counting that of a batch. Needed only where the lengths leave both.
    out : numpy.ndarray, optional
        As the result.

    Returns
    -------
    O : numpy.ndarray
        (m, p), with the axes of heads and batch where `Q` has them. Rows that attend to nothing are zeros.
    lse : numpy.ndarray
        If `return_lse`: (m,), (h, m) or (b, h, m); -inf for rows that attend to nothing.

    Examples
    --------
    >>> import numpy as np
    >>> import sparsimd as ss
    >>> mask = ss.csr(([1.0, 1.0, 1.0], [0, 1, 1], [0, 2, 3]), shape=(2, 2))
    >>> Q = K = np.zeros((2, 4))
    >>> ss.attention(mask, Q, K, np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[2., 3.],
           [3., 4.]])
    """
    A = mask if isinstance(mask, (CSR, Plan)) else csr(mask)
    q, k, v = dense(Q, "Q"), dense(K, "K"), dense(V, "V")
    if not q.ndim == k.ndim == v.ndim or q.ndim not in (2, 3, 4):
        raise ValueError(f"Q: {q.ndim}, {k.ndim} and {v.ndim} dimensions of Q, K and V; 2, 3 or 4 of all are expected")
    width = np.dtype(np.float32) if half(q) else q.dtype
    if isinstance(A, CSR) and A.dtype != width and width in (np.float32, np.float64):
        A = A.astype(width)
    factor = 1 / np.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
    if q.ndim == 4:
        shared, at = _batch(A.shape, q.shape, k.shape, v.shape, head_axis)
        flat = [_one(x, at, shared) for x in (q, k, v)]
        o, lse = attention(A, *flat, scale=factor, return_lse=True, head_axis=1)
        o, lse = _each(o, lse, len(q), at, shared)
        if out is not None:
            if (getattr(out, "shape", None), getattr(out, "dtype", None)) != (o.shape, o.dtype):
                raise ValueError(f"out: is not an array of shape {o.shape} and {o.dtype}, as the result is")
            out[...] = o
            o = out
        return (o, lse) if return_lse else o
    if q.ndim == 2 and not return_lse:
        return fusedmm(A, q, k, v, edge="softmax", scale=factor, out=out)
    # Heads as the middle axis, one where there is none.
    axis = _head_axis(A.shape, q.shape, k.shape, v.shape, head_axis) if q.ndim == 3 else None
    q3, k3, v3 = (_heads(x, axis) for x in (q, k, v))
    heads, shape = q3.shape[1], (q3.shape[0], *v3.shape[1:])
    out3 = None if out is None else _heads(out, axis)
    if out3 is not None and out3.shape != shape:
        raise ValueError(f"out: has shape {getattr(out, 'shape', None)}, which is not that of the result")
    if out3 is not None and out3.dtype != (q.dtype if half(q) else width):
        raise TypeError(f"out: {out3.dtype}, where the result is {q.dtype if half(q) else width}")
    flat = [_side_by_side(x if half(x) is None else x.astype(np.float32)) for x in (q3, k3, v3)]
    place = None if out3 is None or half(out3) else _side_by_side(out3)
    if place is not None and not np.may_share_memory(place, out3):
        place = None
    made, lse = fusedmm(A, *flat, edge="softmax", scale=factor, heads=heads, return_lse=True, out=place)
    result = made.reshape(shape)
    if out3 is None:
        result = result.astype(q.dtype, copy=False) if half(q) else result
        out = result[:, 0] if axis is None else np.moveaxis(result, 1, axis)
    elif place is None:
        out3[...] = result
    if not return_lse:
        return out
    return out, lse[:, 0] if axis is None else lse.T


def _heads(x: NDArray[Any], axis: int | None) -> NDArray[Any]:
    """`x` with its axis of heads in the middle."""
    return x[:, None] if axis is None else np.moveaxis(x, axis, 1)


def _side_by_side(x: NDArray[Any]) -> NDArray[Any]:
    """The heads of `x` in the columns of a matrix: a view where the memory has them so."""
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2])


def _head_axes(
    mask: tuple[int, int], q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], wanted: int | None
) -> list[int]:
    """The axes that may be that of heads of operands of these shapes."""

    def fits(axis: int) -> bool:
        rows = 1 - axis
        same = q[axis] == k[axis] == v[axis]
        return same and q[rows] == mask[0] and k[rows] == v[rows] == mask[1]

    return [axis for axis in (0, 1) if fits(axis) and wanted in (None, axis)]


def _only(found: list[Any], mask: tuple[int, int], q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> Any:
    """The one that there is."""
    if not found:
        raise ValueError(f"Q: shapes {q}, {k} and {v} of Q, K and V do not fit a mask of {mask}")
    if len(found) > 1:
        raise ValueError(f"head_axis: shapes {q}, {k} and {v} leave both axes; say which")
    return found[0]


def _head_axis(
    mask: tuple[int, int], q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], wanted: int | None
) -> int:
    """The axis of heads of operands of these shapes."""
    axis: int = _only(_head_axes(mask, q, k, v, wanted), mask, q, k, v)
    return axis


def _batch(
    mask: tuple[int, int], q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], wanted: int | None
) -> tuple[bool, int]:
    """Whether a mask is that of all of a batch, and the axis of heads, not counting that of the batch."""
    b = q[0]
    of_each = [(True, mask)]
    if b > 1 and mask[0] % b == mask[1] % b == 0:
        of_each.append((False, (mask[0] // b, mask[1] // b)))
    shapes = (q[1:], k[1:], v[1:])
    fits = [(shared, axis) for shared, each in of_each for axis in _head_axes(each, *shapes, wanted)]
    found: tuple[bool, int] = _only(fits if b == k[0] == v[0] else [], mask, q, k, v)
    return found


def _one(x: NDArray[Any], axis: int, shared: bool) -> NDArray[Any]:
    """A batch as rows, heads, columns: of one mask all of its heads side by side, of several all rows one after another."""
    x = x.swapaxes(1, 2) if axis == 0 else x
    b, n, h, d = x.shape
    return x.swapaxes(0, 1).reshape(n, b * h, d) if shared else x.reshape(b * n, h, d)


def _each(o: NDArray[Any], lse: NDArray[Any], b: int, axis: int, shared: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """The result and the log-sum-exp, heads first, as a batch."""
    rows, heads, width = o.shape
    if shared:
        o, lse = o.reshape(rows, b, heads // b, width).swapaxes(0, 1), lse.reshape(b, heads // b, rows)
    else:
        o, lse = o.reshape(b, rows // b, heads, width), lse.reshape(heads, b, rows // b).swapaxes(0, 1)
    return (o.swapaxes(1, 2) if axis == 0 else o), lse

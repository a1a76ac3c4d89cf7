"""Sparse attention by heads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arrays import dense
from ._matrix import csr
from ._sparsimd import CSR, Plan, empty, fusedmm, sddmm


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

    The scores are not stored. Heads are read where they are, one after the other, each by all threads.

    Parameters
    ----------
    mask : CSR, Plan for "fusedmm", scipy sparse matrix or array, torch CSR tensor
        (m, k): row i attends to the columns that are stored in it. Values do not matter. The dtype of a plan is that of the result.
    Q, K, V : array_like
        (m, d), (k, d) and (k, p), or with an axis of heads: (h, m, d) or (m, h, d), and so on for `K` and `V`.
    scale : float, optional
        By default ``1 / sqrt(d)``.
    return_lse : bool, optional
        Whether to return the logarithm of each row's sum of ``exp(score)``, too. Scores are then computed and stored again, head
        by head.
    head_axis : {0, 1}, optional
        Where the axis of heads is. Needed only where the lengths leave both.
    out : numpy.ndarray, optional
        As the result.

    Returns
    -------
    O : numpy.ndarray
        (m, p), with the axis of heads where `Q` has it. Rows that attend to nothing are zeros.
    lse : numpy.ndarray
        If `return_lse`: (m,) or (h, m); -inf for rows that attend to nothing.

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
    if not q.ndim == k.ndim == v.ndim or q.ndim not in (2, 3):
        raise ValueError(f"Q: {q.ndim}, {k.ndim} and {v.ndim} dimensions of Q, K and V; 2 or 3 of all are expected")
    if isinstance(A, CSR) and A.dtype != q.dtype and q.dtype in (np.float32, np.float64):
        A = A.astype(q.dtype)
    factor = 1 / np.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
    if q.ndim == 2:
        result = fusedmm(A, q, k, v, edge="softmax", scale=factor, out=out)
        return (result, _lse(A, q, k, factor)) if return_lse else result
    axis = _head_axis(A.shape, q.shape, k.shape, v.shape, head_axis)
    heads = [np.moveaxis(x, axis, 0) for x in (q, k, v)]
    count, shape = q.shape[axis], list(q.shape[:2]) + [v.shape[2]]
    if out is None:
        out = empty((shape[0], shape[1] * shape[2]), A.dtype).reshape(shape)
    elif list(out.shape) != shape:
        raise ValueError(f"out: has shape {out.shape}; {tuple(shape)} is expected")
    for head in range(count):
        parts = (x[head] for x in heads)
        fusedmm(A, *parts, edge="softmax", scale=factor, out=np.moveaxis(out, axis, 0)[head])
    if not return_lse:
        return out
    return out, np.stack([_lse(A, heads[0][head], heads[1][head], factor) for head in range(count)])


def _head_axis(
    mask: tuple[int, int], q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], wanted: int | None
) -> int:
    """The axis of heads of operands of these shapes."""

    def fits(axis: int) -> bool:
        rows = 1 - axis
        same = q[axis] == k[axis] == v[axis]
        return same and q[rows] == mask[0] and k[rows] == v[rows] == mask[1]

    axes = [axis for axis in (0, 1) if fits(axis) and wanted in (None, axis)]
    if not axes:
        raise ValueError(f"Q: shapes {q}, {k} and {v} of Q, K and V do not fit a mask of {mask}")
    if len(axes) > 1:
        raise ValueError(f"head_axis: shapes {q}, {k} and {v} leave both axes; say which")
    return axes[0]


def _lse(A: CSR | Plan, q: NDArray[Any], k: NDArray[Any], scale: float) -> NDArray[Any]:
    """The logarithm of each row's sum of exp(score)."""
    if isinstance(A, Plan):
        A = A.matrix
    scores = sddmm(A, q, k.T) * scale
    starts, lengths = A.indptr[:-1], np.diff(A.indptr)
    some = lengths > 0
    lse = np.full(A.shape[0], -np.inf, scores.dtype)
    if some.any():
        top = np.maximum.reduceat(scores, starts[some])
        sums = np.add.reduceat(np.exp(scores - np.repeat(top, lengths[some])), starts[some])
        lse[some] = top + np.log(sums)
    return lse

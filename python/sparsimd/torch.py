"""Operators of PyTorch on plain tensors: `spmm`, `sddmm`, `attention`, with gradients, under ``torch.compile`` too.

A matrix is three tensors: ``crow`` (rows + 1) and ``col`` (nnz), of integers, and ``values`` (nnz). Indices are checked and copied when
they are first seen, and the last `PATTERNS` copies are kept. Every call compares the tensors with the copy, so that results are always
those of what is in them. That takes about 2 % of a product of 128 columns and 10 % of one of 16; who wants to save it has `sparsimd.csr`.
"""

from __future__ import annotations

from typing import Any

from . import _operators as _ops  # first: it says where torch is missing
from ._operators import PATTERNS, Tensor

import torch  # isort: skip

__all__ = ["PATTERNS", "attention", "sddmm", "spmm"]


def _check(name: str, x: Tensor, dims: int, dtype: torch.dtype | None = None) -> None:
    if x.layout != torch.strided:
        raise TypeError(f"{name}: a tensor of {x.layout}; a dense one is expected")
    if x.dim() != dims:
        raise ValueError(f"{name}: has {x.dim()} dimensions; {dims} are expected")
    if not x.is_cpu and x.device.type != "meta":
        raise TypeError(f"{name}: is on {x.device}; the processor's memory is expected")
    if dtype is not None and x.dtype != dtype:
        raise TypeError(f"{name}: {x.dtype}; {dtype} is expected, as of the other operands")
    if dtype is None and x.dtype not in _ops.KINDS:
        raise TypeError(f"{name}: {x.dtype} is none of float32, float64, bfloat16 and float16")


def _check_indices(crow: Tensor, col: Tensor) -> None:
    for name, x in (("crow", crow), ("col", col)):
        if x.dtype not in _ops.INDEX_BYTES:
            raise TypeError(f"{name}: {x.dtype} is neither int32 nor int64")
        _check(name, x, 1, x.dtype)
    if crow.shape[0] == 0:
        raise ValueError("crow: is empty; it has one entry more than there are rows")


def _check_out(out: Tensor, X: Tensor, rows: int, inputs: tuple[Tensor, ...]) -> None:
    _check("out", out, 2, X.dtype)
    if tuple(out.shape) != (rows, X.shape[1]):
        raise ValueError(f"out: has shape {tuple(out.shape)}; ({rows}, {X.shape[1]}) is expected")
    if not _ops.in_rows(out):
        raise ValueError("out: its rows are not contiguous or overlap, and it is never copied")
    if torch.is_grad_enabled() and any([x.requires_grad for x in (*inputs, out)]):
        raise ValueError("out: is not for operands that gradients are recorded of; torch.no_grad() switches that off")


def spmm(
    crow: Tensor, col: Tensor, values: Tensor, X: Tensor, reduce: str = "sum", *, out: Tensor | None = None
) -> Tensor:
    """Sparse matrix times dense matrix, with gradients for `values` and `X`.

    Parameters
    ----------
    crow, col, values : torch.Tensor
        The matrix, (m, k): (m + 1,), (nnz,), (nnz,).
    X : torch.Tensor
        (k, n), of the dtype of `values`; or of bfloat16 or float16 beside values of float32.
    reduce : {"sum", "mean", "max", "min"}, optional
        What becomes of the terms ``A[i, j] * X[j]`` of a row, by column. Rows without nonzeros are 0.
    out : torch.Tensor, optional
        (m, n), of the dtype of `X`. Receives the result, where it is; not where gradients are recorded.

    Returns
    -------
    torch.Tensor
        (m, n), of the dtype of `X`: `out`, or a new one.

    Raises
    ------
    ValueError
        When shapes do not fit, the indices are not those of a matrix, or `out` overlaps an operand.
    TypeError
        When a tensor has another dtype, layout or device than it should.
    """
    if reduce == "sum" and _ops.unwatched():
        # The usual case, for which the checks below take longer than a small product.
        result = _ops.kept_product(crow, col, values, X, out)
        if result is not None:
            return result
    _check_indices(crow, col)
    _check("values", values, 1)
    _check("X", X, 2, None if X.dtype in _ops.HALVES else values.dtype)
    if values.dtype != _ops.VALUES[X.dtype]:
        raise TypeError(f"values: {values.dtype}; {_ops.VALUES[X.dtype]} is expected beside X of {X.dtype}")
    if out is not None:
        _check_out(out, X, crow.shape[0] - 1, (values, X))
        if reduce == "sum" and _ops.unwatched():
            _ops.pattern(crow, col, X.shape[0])
            result = _ops.kept_product(crow, col, values, X, out)
            if result is not None:
                return result
    if reduce == "mean":
        degrees = crow.diff()
        shares = (1 / degrees.clamp(min=1)).to(values.dtype)
        values = values * shares.repeat_interleave(degrees.long(), output_size=col.shape[0])
    elif reduce not in ("sum", "max", "min"):
        raise ValueError(f"reduce: {reduce!r} is none of sum, mean, max and min")
    if reduce in ("max", "min"):
        result = _narrow(_ops.call("extremum", crow, col, values, X.to(values.dtype), reduce == "max")[0], X)
    else:
        result = _ops.call("spmm", crow, col, values, X)
    return result if out is None else out.copy_(result)


def _narrow(result: Tensor, x: Tensor) -> Tensor:
    return result if result.dtype == x.dtype else result.to(x.dtype)


def sddmm(crow: Tensor, col: Tensor, X1: Tensor, X2: Tensor, values: Tensor | None = None) -> Tensor:
    """``(X1 @ X2)[i, j]`` for each nonzero (i, j), with gradients.

    Parameters
    ----------
    crow, col : torch.Tensor
        The places of the nonzeros, (m + 1,) and (nnz,).
    X1, X2 : torch.Tensor
        (m, n) and (n, k); ``K.T`` of a row-major `K` is read where it is. Of bfloat16 or float16, too.
    values : torch.Tensor, optional
        (nnz,): multiplied by the results.

    Returns
    -------
    torch.Tensor
        (nnz,); of float32 for operands of 16 bits.
    """
    if values is None and _ops.unwatched():
        found = _ops.kept_dots(crow, col, X1, X2)
        if found is not None:
            return found
    _check_indices(crow, col)
    _check("X1", X1, 2)
    _check("X2", X2, 2, X1.dtype)
    if X1.shape[1] != X2.shape[0]:
        raise ValueError(f"X2: has shape {tuple(X2.shape)}; ({X1.shape[1]}, k) is expected")
    result: Tensor = _ops.call("sddmm", crow, col, X1, X2.t())
    return result if values is None else values * result


def attention(
    crow: Tensor, col: Tensor, Q: Tensor, K: Tensor, V: Tensor, *, scale: float | None = None, return_lse: bool = False
) -> Any:
    """Softmax attention over the nonzeros of a mask, with gradients for `Q`, `K` and `V`.

    The scores are not kept for the backward pass: it computes them again from the log-sum-exp.

    Parameters
    ----------
    crow, col : torch.Tensor
        The mask, (m + 1,) and (nnz,): row i attends to the columns that are stored in it.
    Q, K, V : torch.Tensor
        (m, d), (k, d) and (k, p), or (h, m, d), (h, k, d) and (h, k, p); ``x.transpose(0, 1)`` of (m, h, d) is read where it is,
        others are copied to that. Or a batch of b with heads, (b, h, m, d) and so on, for a mask of m rows, which is then that of all,
        or of b m rows, which is `sparsimd.block_diagonal` of b masks. bfloat16 and float16 are widened.
    scale : float, optional
        By default ``1 / sqrt(d)``.
    return_lse : bool, optional
        Whether to return the logarithm of each row's sum of ``exp(score)``, too; it has no gradient.

    Returns
    -------
    torch.Tensor or two of them
        (m, p), (h, m, p) or (b, h, m, p), and (m,), (h, m) or (b, h, m).
    """
    _check_indices(crow, col)
    dims = Q.dim()
    if dims not in (2, 3, 4):
        raise ValueError(f"Q: has {dims} dimensions; 2, 3 or 4 are expected")
    _check("Q", Q, dims)
    _check("K", K, dims, Q.dtype)
    _check("V", V, dims, Q.dtype)
    shapes = [(*(1,) * (3 - dims), *x.shape) for x in (Q, K, V)]
    (*heads, rows, width), (*k_heads, cols, k_width), (*v_heads, v_cols, _) = shapes
    if not heads == k_heads == v_heads or width != k_width or cols != v_cols:
        raise ValueError(f"K: shapes {tuple(Q.shape)}, {tuple(K.shape)} and {tuple(V.shape)} of Q, K and V do not fit")
    all_rows = crow.shape[0] - 1
    if dims == 4 and rows != all_rows and rows * heads[0] == all_rows:
        # A mask for each: all rows one after another, as those of one matrix.
        both = attention(crow, col, *(_rows(x) for x in (Q, K, V)), scale=scale, return_lse=True)
        o, lse = (x.unflatten(1, (heads[0], rows)).transpose(0, 1) for x in both)
        return (o, lse) if return_lse else o
    if rows != all_rows:
        raise ValueError(f"Q: {rows} rows for a mask of {all_rows}")
    if dims == 4:
        # A mask for all: their heads are heads of one.
        both = attention(crow, col, *(x.flatten(0, 1) for x in (Q, K, V)), scale=scale, return_lse=True)
        o, lse = (x.unflatten(0, heads) for x in both)
        return (o, lse) if return_lse else o
    factor = width**-0.5 if scale is None else float(scale)
    operands = [x.to(_ops.VALUES[Q.dtype]) for x in (Q, K, V)]
    if dims == 3:
        # Heads side by side.
        operands = [x.transpose(0, 1).reshape(n, h * d) for x, (h, n, d) in zip(operands, shapes, strict=True)]
    o, lse = _ops.call("attention", crow, col, *operands, heads[0], factor)
    o = _narrow(o, Q)
    if dims == 3:
        o = o.view(rows, heads[0], V.shape[2]).transpose(0, 1)
    lse = lse.t() if dims == 3 else lse.squeeze(1)
    return (o, lse) if return_lse else o


def _rows(x: Tensor) -> Tensor:
    """The heads of a batch, their rows one after another."""
    return x.transpose(0, 1).flatten(1, 2)

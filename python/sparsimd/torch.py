"""Operators of PyTorch on plain tensors: `spmm`, `sddmm`, `attention`, with gradients, under ``torch.compile`` too.

A matrix is three tensors: ``crow`` (rows + 1) and ``col`` (nnz), of integers, and ``values`` (nnz). Indices are checked and copied when
they are first seen; the last `PATTERNS` of them are kept, with the tensors they came from. Writing to these tensors by torch is
noticed; by another way, such as a shared array of numpy, it is not.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

try:
    import torch
    import torch.autograd.forward_ad
except ImportError as error:
    raise ImportError("sparsimd.torch needs the package torch: pip install torch") from error

from . import _sparsimd as _core
from ._matrix import csr

__all__ = ["PATTERNS", "attention", "sddmm", "spmm"]

PATTERNS = 64
"""How many index structures are kept."""

Tensor = torch.Tensor
_FLOATS = (torch.float32, torch.float64)

_kept: OrderedDict[tuple[Any, ...], tuple[dict[Any, _core.CSR], Tensor, Tensor]] = OrderedDict()


def _pattern(crow: Tensor, col: Tensor, cols: int, dtype: torch.dtype) -> _core.CSR:
    """The matrix with these indices; its values do not matter."""
    key = (crow.data_ptr(), crow._version, crow.numel(), col.data_ptr(), col._version, col.numel(), cols)
    found = _kept.get(key)
    if found is None:
        while len(_kept) >= PATTERNS:
            _kept.pop(next(iter(_kept)), None)
        found = _kept[key] = ({}, crow, col)
    else:
        try:
            _kept.move_to_end(key)
        except KeyError:
            pass  # another thread has dropped it
    matrices = found[0]
    if dtype not in matrices:
        width = np.dtype(np.float32 if dtype == torch.float32 else np.float64)
        arrays = (np.zeros(col.numel(), width), col.detach().numpy(), crow.detach().numpy())
        made = csr(arrays, shape=(crow.numel() - 1, cols))
        if made.nnz != col.numel():
            raise ValueError("col: a column occurs twice in a row; coalesce the matrix first")
        matrices[dtype] = made
    return matrices[dtype]


def _numpy(x: Tensor) -> Any:
    return x.detach().numpy() if x.requires_grad else x.numpy()


# Without types: those of torch's modules differ between its versions.
_torch_library: Any = torch.library
_forward: Any = torch.autograd.forward_ad
_library: Any = _torch_library.Library("sparsimd", "DEF")


def _spmm(crow: Tensor, col: Tensor, values: Tensor, x: Tensor) -> Tensor:
    A = _pattern(crow, col, x.shape[0], values.dtype).with_values(_numpy(values))
    return torch.from_numpy(_core.spmm(A, _numpy(x)))


def _spmm_t(crow: Tensor, col: Tensor, values: Tensor, x: Tensor, cols: int) -> Tensor:
    pattern = _pattern(crow, col, cols, values.dtype)
    # The transpose is kept with the pattern: its values are put in place and gathered.
    A = pattern.with_values(_numpy(values))
    return torch.from_numpy(A.T @ _numpy(x))


def _sddmm(crow: Tensor, col: Tensor, x1: Tensor, x2: Tensor) -> Tensor:
    A = _pattern(crow, col, x2.shape[0], x1.dtype)
    return torch.from_numpy(_core.sddmm(A, _numpy(x1), _numpy(x2).T))


def _rows(crow: Tensor, nnz: int) -> Tensor:
    """The row of each nonzero."""
    numbers = torch.arange(crow.numel() - 1)
    return torch.repeat_interleave(numbers, crow.diff().long(), output_size=nnz)


def _attention(crow: Tensor, col: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    from ._attention import _lse

    A = _pattern(crow, col, k.shape[1], q.dtype)
    heads, rows = q.shape[:2]
    o, lse = torch.empty((heads, rows, v.shape[2]), dtype=q.dtype), torch.empty((heads, rows), dtype=q.dtype)
    for head in range(heads):
        q1, k1 = _numpy(q[head]), _numpy(k[head])
        _core.fusedmm(A, q1, k1, _numpy(v[head]), edge="softmax", scale=scale, out=o[head].numpy())
        lse[head] = torch.from_numpy(_lse(A, q1, k1, scale))
    return o, lse


def _attention_backward(
    crow: Tensor, col: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, grad: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """P again from the log-sum-exp; dV = P^T dO, dS = P (dO V^T - rowsum(dO O)), dQ = dS K, dK = dS^T Q."""
    gradients = (
        torch.empty(q.shape, dtype=q.dtype),
        torch.empty(k.shape, dtype=k.dtype),
        torch.empty(v.shape, dtype=v.dtype),
    )
    rows = _rows(crow, col.numel())
    for head in range(q.shape[0]):
        scores = _sddmm(crow, col, q[head], k[head]).mul_(scale)
        p = scores.sub_(lse[head][rows]).exp_()
        ds = _sddmm(crow, col, grad[head], v[head])
        ds = ds.sub_((grad[head] * o[head]).sum(1)[rows]).mul_(p).mul_(scale)
        gradients[0][head] = _spmm(crow, col, ds, k[head])
        gradients[1][head] = _spmm_t(crow, col, ds, q[head], k.shape[1])
        gradients[2][head] = _spmm_t(crow, col, p, grad[head], k.shape[1])
    return gradients


def _spmm_fake(crow: Tensor, col: Tensor, values: Tensor, x: Tensor) -> Tensor:
    return x.new_empty((crow.shape[0] - 1, x.shape[1]))


def _spmm_t_fake(crow: Tensor, col: Tensor, values: Tensor, x: Tensor, cols: int) -> Tensor:
    return x.new_empty((cols, x.shape[1]))


def _sddmm_fake(crow: Tensor, col: Tensor, x1: Tensor, x2: Tensor) -> Tensor:
    return x1.new_empty((col.shape[0],))


def _attention_fake(crow: Tensor, col: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return q.new_empty((q.shape[0], q.shape[1], v.shape[2])), q.new_empty((q.shape[0], q.shape[1]))


def _attention_backward_fake(
    crow: Tensor, col: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, grad: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _define(name: str, signature: str, function: Any, fake: Any) -> Any:
    """An operator without gradients."""
    _library.define(name + signature)
    _library.impl(name, function, "CPU")
    _torch_library.register_fake(f"sparsimd::{name}", fake)
    return getattr(torch.ops.sparsimd, name).default


_plain: dict[str, Any] = {}
_differentiable: dict[str, Any] = {}
for _name, _signature, _function, _fake in [
    ("spmm", "(Tensor crow, Tensor col, Tensor values, Tensor x) -> Tensor", _spmm, _spmm_fake),
    ("spmm_t", "(Tensor crow, Tensor col, Tensor values, Tensor x, int cols) -> Tensor", _spmm_t, _spmm_t_fake),
    ("sddmm", "(Tensor crow, Tensor col, Tensor x1, Tensor x2) -> Tensor", _sddmm, _sddmm_fake),
    (
        "attention",
        "(Tensor crow, Tensor col, Tensor q, Tensor k, Tensor v, float scale) -> (Tensor, Tensor)",
        _attention,
        _attention_fake,
    ),
    (
        "attention_backward",
        "(Tensor crow, Tensor col, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor grad, float scale)"
        " -> (Tensor, Tensor, Tensor)",
        _attention_backward,
        _attention_backward_fake,
    ),
]:
    _plain[_name] = _define(f"{_name}_plain", _signature, _function, _fake)
    _differentiable[_name] = _define(_name, _signature, _function, _fake)


def call(name: str, *arguments: Any) -> Any:
    """The operator, as one that has gradients only where they are asked for: looking for them takes as long as the rest of a call."""
    # torch itself would take tangents for zeros.
    if getattr(_forward, "_current_level", -1) >= 0 and any([_has_tangent(x) for x in arguments]):
        raise NotImplementedError(f"sparsimd.torch.{name} has no forward-mode derivative")
    if torch.is_grad_enabled() and any([isinstance(x, Tensor) and x.requires_grad for x in arguments]):
        return _differentiable[name](*arguments)
    return _plain[name](*arguments)


def _has_tangent(x: Any) -> bool:
    return isinstance(x, Tensor) and _forward.unpack_dual(x).tangent is not None


def _save_spmm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])


def _spmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    crow, col, values, x = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    dvalues = call("sddmm", crow, col, grad, x) if wanted[2] else None
    dx = call("spmm_t", crow, col, values, grad, x.shape[0]) if wanted[3] else None
    return None, None, dvalues, dx


def _spmm_t_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    crow, col, values, x = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    dvalues = call("sddmm", crow, col, x, grad) if wanted[2] else None
    dx = call("spmm", crow, col, values, grad) if wanted[3] else None
    return None, None, dvalues, dx, None


def _sddmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    crow, col, x1, x2 = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    dx1 = call("spmm", crow, col, grad, x2) if wanted[2] else None
    dx2 = call("spmm_t", crow, col, grad, x1, x2.shape[0]) if wanted[3] else None
    return None, None, dx1, dx2


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.scale = inputs[5]
    ctx.mark_non_differentiable(output[1])


def _attention_gradients(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    crow, col, q, k, v, o, lse = ctx.saved_tensors
    dq, dk, dv = call("attention_backward", crow, col, q, k, v, o, lse, grad, ctx.scale)
    return None, None, dq, dk, dv, None


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _no_second_gradient(ctx: Any, *grads: Tensor) -> Any:
    raise NotImplementedError("attention has no second derivative")


_torch_library.register_autograd("sparsimd::spmm", _spmm_backward, setup_context=_save_spmm)
_torch_library.register_autograd("sparsimd::spmm_t", _spmm_t_backward, setup_context=_save_spmm)
_torch_library.register_autograd("sparsimd::sddmm", _sddmm_backward, setup_context=_save_spmm)
_torch_library.register_autograd("sparsimd::attention", _attention_gradients, setup_context=_save_attention)
_torch_library.register_autograd("sparsimd::attention_backward", _no_second_gradient, setup_context=_save_nothing)


def _check(name: str, x: Tensor, dims: int, dtype: torch.dtype | None = None) -> None:
    if x.dim() == dims and x.device.type == "cpu" and (x.dtype == dtype or dtype is None and x.dtype in _FLOATS):
        return
    if x.dim() != dims:
        raise ValueError(f"{name}: has {x.dim()} dimensions; {dims} are expected")
    if x.device.type not in ("cpu", "meta"):
        raise TypeError(f"{name}: is on {x.device}; the processor's memory is expected")
    if dtype is not None and x.dtype != dtype:
        raise TypeError(f"{name}: {x.dtype}; {dtype} is expected, as of the other operands")
    if dtype is None and x.dtype not in _FLOATS:
        raise TypeError(f"{name}: {x.dtype} is neither float32 nor float64")


def _check_indices(crow: Tensor, col: Tensor) -> None:
    for name, x in (("crow", crow), ("col", col)):
        if x.dim() != 1:
            raise ValueError(f"{name}: has {x.dim()} dimensions; 1 is expected")
        if x.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name}: {x.dtype} is neither int32 nor int64")
    if crow.shape[0] == 0:
        raise ValueError("crow: is empty; it has one entry more than there are rows")


def spmm(crow: Tensor, col: Tensor, values: Tensor, X: Tensor) -> Tensor:
    """Sparse matrix times dense matrix, with gradients for `values` and `X`.

    Parameters
    ----------
    crow, col, values : torch.Tensor
        The matrix, (m, k): (m + 1,), (nnz,), (nnz,).
    X : torch.Tensor
        (k, n), of the dtype of `values`.

    Returns
    -------
    torch.Tensor
        (m, n).
    """
    _check_indices(crow, col)
    _check("values", values, 1)
    _check("X", X, 2, values.dtype)
    result: Tensor = call("spmm", crow, col, values, X)
    return result


def sddmm(crow: Tensor, col: Tensor, X1: Tensor, X2: Tensor, values: Tensor | None = None) -> Tensor:
    """``(X1 @ X2)[i, j]`` for each nonzero (i, j), with gradients.

    Parameters
    ----------
    crow, col : torch.Tensor
        The places of the nonzeros, (m + 1,) and (nnz,).
    X1, X2 : torch.Tensor
        (m, n) and (n, k); ``K.T`` of a row-major `K` is read where it is.
    values : torch.Tensor, optional
        (nnz,): multiplied by the results.

    Returns
    -------
    torch.Tensor
        (nnz,).
    """
    _check_indices(crow, col)
    _check("X1", X1, 2)
    _check("X2", X2, 2, X1.dtype)
    if X1.shape[1] != X2.shape[0]:
        raise ValueError(f"X2: has shape {tuple(X2.shape)}; ({X1.shape[1]}, k) is expected")
    result: Tensor = call("sddmm", crow, col, X1, X2.T)
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
        (m, d), (k, d) and (k, p), or (h, m, d), (h, k, d) and (h, k, p); ``x.transpose(0, 1)`` of (m, h, d) is read where it is.
    scale : float, optional
        By default ``1 / sqrt(d)``.
    return_lse : bool, optional
        Whether to return the logarithm of each row's sum of ``exp(score)``, too; it has no gradient.

    Returns
    -------
    torch.Tensor or two of them
        (m, p) or (h, m, p), and (m,) or (h, m).
    """
    _check_indices(crow, col)
    dims = Q.dim()
    if dims not in (2, 3):
        raise ValueError(f"Q: has {dims} dimensions; 2 or 3 are expected")
    _check("Q", Q, dims)
    _check("K", K, dims, Q.dtype)
    _check("V", V, dims, Q.dtype)
    q, k, v = (x if dims == 3 else x.unsqueeze(0) for x in (Q, K, V))
    if not q.shape[0] == k.shape[0] == v.shape[0] or q.shape[2] != k.shape[2] or k.shape[1] != v.shape[1]:
        raise ValueError(f"K: shapes {tuple(Q.shape)}, {tuple(K.shape)} and {tuple(V.shape)} of Q, K and V do not fit")
    if q.shape[1] != crow.shape[0] - 1:
        raise ValueError(f"Q: {q.shape[1]} rows for a mask of {crow.shape[0] - 1}")
    factor = Q.shape[-1] ** -0.5 if scale is None else float(scale)
    o, lse = call("attention", crow, col, q, k, v, factor)
    if dims == 2:
        o, lse = o.squeeze(0), lse.squeeze(0)
    return (o, lse) if return_lse else o

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
# How the compiled half numbers the dtypes of dense operands; values are float32 beside those of 16 bits.
_KINDS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
_VALUES = {kind: torch.float64 if kind == torch.float64 else torch.float32 for kind in _KINDS}
_HALVES = (torch.bfloat16, torch.float16)
_PLAIN = (torch.Tensor, torch.nn.Parameter)

_kept: OrderedDict[tuple[Any, ...], tuple[_core.CSR, Tensor, Tensor]] = OrderedDict()
# Those that were asked for last, by the tensors' own identities, which are found faster: they live as long as they are here.
_recent: dict[tuple[int, int, int], tuple[tuple[int, ...], _core.CSR, Tensor, Tensor]] = {}


def _state(crow: Tensor, col: Tensor) -> tuple[int, ...]:
    """What changes when torch writes to an index tensor, or gives it other memory."""
    return crow._version, col._version, crow.data_ptr(), col.data_ptr(), crow.numel(), col.numel()


def _seen(crow: Tensor, col: Tensor, cols: int) -> _core.CSR | None:
    """The matrix with these very index tensors, if it was asked for lately."""
    found = _recent.get((id(crow), id(col), cols))
    return found[1] if found is not None and found[0] == _state(crow, col) else None


def _pattern(crow: Tensor, col: Tensor, cols: int) -> _core.CSR:
    """The matrix with these indices; its values do not matter."""
    seen = _seen(crow, col, cols)
    if seen is not None:
        return seen
    key = (*_state(crow, col), crow.stride(), col.stride(), crow.dtype, col.dtype, cols)
    found = _kept.get(key)
    if found is None:
        while len(_kept) >= PATTERNS:
            _kept.pop(next(iter(_kept)), None)
        arrays = (np.zeros(col.numel(), np.float32), col.detach().numpy(), crow.detach().numpy())
        made = csr(arrays, shape=(crow.numel() - 1, cols))
        if made.nnz != col.numel():
            raise ValueError("col: a column occurs twice in a row; coalesce the matrix first")
        found = _kept[key] = (made, crow, col)
    else:
        try:
            _kept.move_to_end(key)
        except KeyError:
            pass  # another thread has dropped it
    if len(_recent) >= PATTERNS:
        _recent.clear()
    _recent[id(crow), id(col), cols] = (_state(crow, col), found[0], crow, col)
    return found[0]


# Without types: those of torch's modules differ between its versions.
_torch_library: Any = torch.library
_forward: Any = torch.autograd.forward_ad
_c: Any = torch._C
_library: Any = _torch_library.Library("sparsimd", "DEF")


def _place(x: Tensor) -> tuple[Tensor, tuple[int, int, int, int]]:
    """A matrix with address, shape and row stride; a copy unless its rows are contiguous and do not overlap."""
    rows, cols = x.shape
    row, column = x.stride()
    if column != 1 or row < cols or cols == 0:
        x, row = x.contiguous(), cols
    return x, (x.data_ptr(), rows, cols, row)


def _product(A: _core.CSR, transposed: bool, values: Tensor, x: Tensor) -> Tensor:
    if values.dtype != _VALUES[x.dtype]:
        raise TypeError(f"values: {values.dtype}; {_VALUES[x.dtype]} is expected beside X of {x.dtype}")
    if not values.is_contiguous():
        values = values.contiguous()
    x, place = _place(x)
    out = x.new_empty((A.shape[transposed], place[2]))
    _core._spmm_at(A, transposed, _KINDS[x.dtype], (values.data_ptr(), values.numel()), place, out.data_ptr())
    return out


def _spmm(crow: Tensor, col: Tensor, values: Tensor, x: Tensor) -> Tensor:
    return _product(_pattern(crow, col, x.shape[0]), False, values, x)


def _spmm_t(crow: Tensor, col: Tensor, values: Tensor, x: Tensor, cols: int) -> Tensor:
    return _product(_pattern(crow, col, cols), True, values, x)


def _sddmm(crow: Tensor, col: Tensor, x1: Tensor, x2: Tensor) -> Tensor:
    return _dots(_pattern(crow, col, x2.shape[0]), x1, x2)


def _dots(A: _core.CSR, x1: Tensor, x2: Tensor) -> Tensor:
    (x1, first), (x2, second) = _place(x1), _place(x2)
    out = x1.new_empty((A.nnz,), dtype=_VALUES[x1.dtype])
    _core._sddmm_at(A, _KINDS[x1.dtype], first, second, out.data_ptr())
    return out


def _extremum(crow: Tensor, col: Tensor, values: Tensor, x: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    A = _pattern(crow, col, x.shape[0]).with_values(values.detach().numpy())
    made = _core.spmm(A, x.detach().numpy(), reduce="max" if largest else "min", return_positions=True)
    return torch.from_numpy(made[0]), torch.from_numpy(made[1])


def _attention(
    crow: Tensor, col: Tensor, q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float
) -> tuple[Tensor, Tensor]:
    q, k, v = q.detach(), k.detach(), v.detach()
    A = _of_dtype(_pattern(crow, col, k.shape[0]), q)
    options: Any = {"edge": "softmax", "scale": scale, "heads": heads, "return_lse": True}
    o, lse = _core.fusedmm(A, q.numpy(), k.numpy(), v.numpy(), **options)
    return torch.from_numpy(o), torch.from_numpy(lse)


def _attention_backward(
    crow: Tensor, col: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, grad: Tensor, heads: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    arrays = [x.detach().numpy() for x in (q, k, v, grad)]
    A = _of_dtype(_pattern(crow, col, k.shape[0]), q)
    options: Any = {"edge": "softmax", "scale": scale, "heads": heads, "lse": lse.detach().numpy()}
    dq, dk, dv, _, _ = _core.fusedmm_gradient(A, *arrays, **options)
    return torch.from_numpy(dq), torch.from_numpy(dk), torch.from_numpy(dv)


def _of_dtype(A: _core.CSR, x: Tensor) -> _core.CSR:
    """`A`, whose values do not matter, for operands like `x`."""
    return A if x.dtype == torch.float32 else A.astype(np.float64)


def _spmm_fake(crow: Tensor, col: Tensor, values: Tensor, x: Tensor) -> Tensor:
    return x.new_empty((crow.shape[0] - 1, x.shape[1]))


def _spmm_t_fake(crow: Tensor, col: Tensor, values: Tensor, x: Tensor, cols: int) -> Tensor:
    return x.new_empty((cols, x.shape[1]))


def _sddmm_fake(crow: Tensor, col: Tensor, x1: Tensor, x2: Tensor) -> Tensor:
    return x1.new_empty((col.shape[0],), dtype=_VALUES[x1.dtype])


def _extremum_fake(crow: Tensor, col: Tensor, values: Tensor, x: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    shape = (crow.shape[0] - 1, x.shape[1])
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int32)


def _attention_fake(
    crow: Tensor, col: Tensor, q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float
) -> tuple[Tensor, Tensor]:
    return q.new_empty((q.shape[0], v.shape[1])), q.new_empty((q.shape[0], heads))


def _attention_backward_fake(
    crow: Tensor, col: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, grad: Tensor, heads: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _define(name: str, signature: str, function: Any, fake: Any) -> Any:
    """An operator without gradients."""
    _library.define(name + signature)
    _library.impl(name, function, "CPU")
    _torch_library.register_fake(f"sparsimd::{name}", fake)
    return getattr(torch.ops.sparsimd, name).default


_direct: dict[str, Any] = {}
_plain: dict[str, Any] = {}
_differentiable: dict[str, Any] = {}
for _name, _signature, _function, _fake in [
    ("spmm", "(Tensor crow, Tensor col, Tensor values, Tensor x) -> Tensor", _spmm, _spmm_fake),
    ("spmm_t", "(Tensor crow, Tensor col, Tensor values, Tensor x, int cols) -> Tensor", _spmm_t, _spmm_t_fake),
    ("sddmm", "(Tensor crow, Tensor col, Tensor x1, Tensor x2) -> Tensor", _sddmm, _sddmm_fake),
    (
        "extremum",
        "(Tensor crow, Tensor col, Tensor values, Tensor x, bool largest) -> (Tensor, Tensor)",
        _extremum,
        _extremum_fake,
    ),
    (
        "attention",
        "(Tensor crow, Tensor col, Tensor q, Tensor k, Tensor v, int heads, float scale) -> (Tensor, Tensor)",
        _attention,
        _attention_fake,
    ),
    (
        "attention_backward",
        "(Tensor crow, Tensor col, Tensor q, Tensor k, Tensor v, Tensor lse, Tensor grad, int heads, float scale)"
        " -> (Tensor, Tensor, Tensor)",
        _attention_backward,
        _attention_backward_fake,
    ),
]:
    _direct[_name] = _function
    _plain[_name] = _define(f"{_name}_plain", _signature, _function, _fake)
    _differentiable[_name] = _define(_name, _signature, _function, _fake)


def _watched() -> bool:
    """Whether torch has to know which operators are called: a mode, a transform, a trace or a profile looks on."""
    return (
        _c._len_torch_dispatch_stack() > 0
        or _c._len_torch_function_stack() > 0
        or _c._functorch.peek_interpreter_stack() is not None
        or _c._get_tracing_state() is not None
        or _c._autograd._profiler_enabled()
    )


def _usual(*tensors: Tensor) -> bool:
    """Whether nothing that torch does with operators could be missed on these."""
    if _forward._current_level >= 0 or _watched():
        return False
    gradients = torch.is_grad_enabled()
    for x in tensors:
        if type(x) not in _PLAIN or gradients and x.requires_grad or not x.is_cpu or x.is_neg():
            return False
    return True


def call(name: str, *arguments: Any) -> Any:
    """The operator, by the shortest way that does what torch asks of it: what an operator of torch's library takes for its dispatch is
    several times what a small product takes, and looking for gradients takes that again."""
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    if not torch.compiler.is_compiling() and _usual(*tensors):
        return _direct[name](*arguments)
    # torch itself would take tangents for zeros.
    forward = _forward._current_level >= 0
    if forward and any([_forward.unpack_dual(x).tangent is not None for x in tensors]):
        raise NotImplementedError(f"sparsimd.torch.{name} has no forward-mode derivative")
    gradients = torch.is_grad_enabled() and any([x.requires_grad for x in tensors])
    return (_differentiable if gradients else _plain)[name](*arguments)


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


def _save_extremum(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[1:4], output[1])
    ctx.mark_non_differentiable(output[1])


def _extremum_gradients(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    """Each element's gradient goes to the nonzero and the row of X that it comes from; in rows without nonzeros nowhere."""
    col, values, x, positions = ctx.saved_tensors
    places = positions.clamp(min=0).long()
    grad = grad.masked_fill(positions < 0, 0)
    if values.numel() == 0:
        return None, None, torch.zeros_like(values), torch.zeros_like(x), None
    rows = col.long()[places]
    dvalues = dx = None
    if ctx.needs_input_grad[2]:
        terms = grad * x.gather(0, rows)
        dvalues = torch.zeros_like(values).index_add(0, places.flatten(), terms.flatten())
    if ctx.needs_input_grad[3]:
        dx = torch.zeros_like(x).scatter_add(0, rows, grad * values[places])
    return None, None, dvalues, dx, None


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], output[1])
    ctx.options = inputs[5:]
    ctx.mark_non_differentiable(output[1])


def _attention_gradients(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    """From the log-sum-exp, by the library: scores and weights are computed again."""
    return None, None, *call("attention_backward", *ctx.saved_tensors, grad, *ctx.options), None, None


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _no_second_gradient(ctx: Any, *grads: Tensor) -> Any:
    raise NotImplementedError("attention has no second derivative")


_torch_library.register_autograd("sparsimd::spmm", _spmm_backward, setup_context=_save_spmm)
_torch_library.register_autograd("sparsimd::spmm_t", _spmm_t_backward, setup_context=_save_spmm)
_torch_library.register_autograd("sparsimd::sddmm", _sddmm_backward, setup_context=_save_spmm)
_torch_library.register_autograd("sparsimd::extremum", _extremum_gradients, setup_context=_save_extremum)
_torch_library.register_autograd("sparsimd::attention", _attention_gradients, setup_context=_save_attention)
_torch_library.register_autograd("sparsimd::attention_backward", _no_second_gradient, setup_context=_save_nothing)


def _check(name: str, x: Tensor, dims: int, dtype: torch.dtype | None = None) -> None:
    if x.dim() != dims:
        raise ValueError(f"{name}: has {x.dim()} dimensions; {dims} are expected")
    if not x.is_cpu and x.device.type != "meta":
        raise TypeError(f"{name}: is on {x.device}; the processor's memory is expected")
    if dtype is not None and x.dtype != dtype:
        raise TypeError(f"{name}: {x.dtype}; {dtype} is expected, as of the other operands")
    if dtype is None and x.dtype not in _KINDS:
        raise TypeError(f"{name}: {x.dtype} is none of float32, float64, bfloat16 and float16")


def _check_indices(crow: Tensor, col: Tensor) -> None:
    for name, x in (("crow", crow), ("col", col)):
        if x.dim() != 1:
            raise ValueError(f"{name}: has {x.dim()} dimensions; 1 is expected")
        if x.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name}: {x.dtype} is neither int32 nor int64")
    if crow.shape[0] == 0:
        raise ValueError("crow: is empty; it has one entry more than there are rows")


def spmm(crow: Tensor, col: Tensor, values: Tensor, X: Tensor, reduce: str = "sum") -> Tensor:
    """Sparse matrix times dense matrix, with gradients for `values` and `X`.

    Parameters
    ----------
    crow, col, values : torch.Tensor
        The matrix, (m, k): (m + 1,), (nnz,), (nnz,).
    X : torch.Tensor
        (k, n), of the dtype of `values`; or of bfloat16 or float16 beside values of float32.
    reduce : {"sum", "mean", "max", "min"}, optional
        What becomes of the terms ``A[i, j] * X[j]`` of a row, by column. Rows without nonzeros are 0.

    Returns
    -------
    torch.Tensor
        (m, n), of the dtype of `X`.
    """
    if reduce == "sum" and not torch.compiler.is_compiling() and values.dim() == 1 and X.dim() == 2:
        # Neither checks of what has been seen, nor a detour.
        A = _seen(crow, col, X.shape[0])
        if A is not None and _VALUES.get(X.dtype) == values.dtype and _usual(values, X):
            return _product(A, False, values, X)
    _check_indices(crow, col)
    _check("values", values, 1)
    _check("X", X, 2, None if X.dtype in _HALVES else values.dtype)
    if values.dtype != _VALUES[X.dtype]:
        raise TypeError(f"values: {values.dtype}; {_VALUES[X.dtype]} is expected beside X of {X.dtype}")
    if reduce == "mean":
        degrees = crow.diff()
        shares = (1 / degrees.clamp(min=1)).to(values.dtype)
        values = values * shares.repeat_interleave(degrees.long(), output_size=col.shape[0])
    elif reduce in ("max", "min"):
        return _narrow(call("extremum", crow, col, values, X.to(values.dtype), reduce == "max")[0], X)
    elif reduce != "sum":
        raise ValueError(f"reduce: {reduce!r} is none of sum, mean, max and min")
    result: Tensor = call("spmm", crow, col, values, X)
    return result


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
    if values is None and not torch.compiler.is_compiling() and X1.dim() == X2.dim() == 2 and X1.dtype == X2.dtype:
        A = _seen(crow, col, X2.shape[1])
        if A is not None and X1.dtype in _KINDS and X1.shape[1] == X2.shape[0] and _usual(X1, X2):
            return _dots(A, X1, X2.t())
    _check_indices(crow, col)
    _check("X1", X1, 2)
    _check("X2", X2, 2, X1.dtype)
    if X1.shape[1] != X2.shape[0]:
        raise ValueError(f"X2: has shape {tuple(X2.shape)}; ({X1.shape[1]}, k) is expected")
    result: Tensor = call("sddmm", crow, col, X1, X2.t())
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
        others are copied to that. bfloat16 and float16 are widened.
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
    shapes = [(1, *x.shape) if dims == 2 else tuple(x.shape) for x in (Q, K, V)]
    (heads, rows, width), k_shape, v_shape = shapes
    if not heads == k_shape[0] == v_shape[0] or width != k_shape[2] or k_shape[1] != v_shape[1]:
        raise ValueError(f"K: shapes {tuple(Q.shape)}, {tuple(K.shape)} and {tuple(V.shape)} of Q, K and V do not fit")
    if rows != crow.shape[0] - 1:
        raise ValueError(f"Q: {rows} rows for a mask of {crow.shape[0] - 1}")
    factor = width**-0.5 if scale is None else float(scale)
    operands = [x.to(_VALUES[Q.dtype]) for x in (Q, K, V)]
    if dims == 3:
        # Heads side by side.
        operands = [x.transpose(0, 1).reshape(n, h * d) for x, (h, n, d) in zip(operands, shapes, strict=True)]
    o, lse = call("attention", crow, col, *operands, heads, factor)
    o = _narrow(o, Q)
    if dims == 3:
        o = o.view(rows, heads, v_shape[2]).transpose(0, 1)
    lse = lse.t() if dims == 3 else lse.squeeze(1)
    return (o, lse) if return_lse else o

"""What `sparsimd.torch` is made of: operators on plain tensors, their shapes and gradients, and the ways to call them."""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import torch
    import torch.autograd.forward_ad
except ImportError as error:
    raise ImportError("sparsimd.torch needs the package torch: pip install torch") from error

from . import _sparsimd as _core
from ._matrix import csr

PATTERNS = 64
"""How many index structures are kept."""

Tensor = torch.Tensor
# How the compiled half numbers the dtypes of dense operands; values are float32 beside those of 16 bits.
KINDS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
VALUES = {kind: torch.float64 if kind == torch.float64 else torch.float32 for kind in KINDS}
HALVES = (torch.bfloat16, torch.float16)
INDEX_BYTES = {torch.int32: 4, torch.int64: 8}
_PLAIN = (torch.Tensor, torch.nn.Parameter)

# Matrices by where their index tensors are, and their columns. Each has a checked copy of the indices, which kernels trust: whoever
# writes to the tensors, by torch, by an array of numpy that shares their memory or otherwise, cannot lead a kernel astray. Nor can he get
# the result of other indices: where tensors are found again, their contents are compared with the copy (`_has_indices`). A tensor's
# `_version` would not do: it does not count what others write. So tensors need not be kept, and their memory may be used anew.
_kept: dict[tuple[int, int, int], _core.CSR] = {}


def seen(crow: Tensor, col: Tensor, cols: int) -> _core.CSR | None:
    """The matrix with the indices of two tensors in the processor's memory, if it is kept."""
    first, second = crow.data_ptr(), col.data_ptr()
    found = _kept.get((first, second, cols))
    if found is None or crow.ndim != 1 or col.ndim != 1 or not crow.is_contiguous() or not col.is_contiguous():
        return None
    wide, width = INDEX_BYTES.get(crow.dtype), INDEX_BYTES.get(col.dtype)
    if wide is None or width is None:
        return None
    same = _core._has_indices(found, first, crow.numel(), wide, second, col.numel(), width)
    return found if same else None


def pattern(crow: Tensor, col: Tensor, cols: int) -> _core.CSR:
    """The matrix with these indices; its values do not matter."""
    crow, col = crow.detach().contiguous(), col.detach().contiguous()
    found = seen(crow, col, cols)
    if found is None:
        arrays = (np.zeros(col.numel(), np.float32), col.numpy(), crow.numpy())
        found = csr(arrays, shape=(crow.numel() - 1, cols))
        if found.nnz != col.numel():
            raise ValueError("col: a column occurs twice in a row; coalesce the matrix first")
        while len(_kept) >= PATTERNS:
            try:
                _kept.pop(next(iter(_kept)), None)
            except (RuntimeError, StopIteration):
                pass  # another thread has dropped one meanwhile
        _kept[crow.data_ptr(), col.data_ptr(), cols] = found
    return found


# Without types: those of torch's modules differ between its versions.
_torch_library: Any = torch.library
_forward: Any = torch.autograd.forward_ad
_c: Any = torch._C
_library: Any = _torch_library.Library("sparsimd", "DEF")


def place(x: Tensor) -> tuple[Tensor, tuple[int, int, int, int]]:
    """A matrix with address, shape and row stride; a copy unless its rows are contiguous and do not overlap."""
    rows, cols = x.shape
    row, column = x.stride()
    if row < cols or column != 1 or cols == 0:
        x, row = x.contiguous(), cols
    return x, (x.data_ptr(), rows, cols, row)


def in_rows(x: Tensor) -> bool:
    """Whether the rows of a matrix are contiguous and do not overlap."""
    return x.is_contiguous() or x.stride(1) == 1 and x.stride(0) >= x.shape[1]


def product(A: _core.CSR, transposed: bool, values: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    """``A @ x`` or ``A.T @ x`` with these values; `out`, if given, has contiguous rows that do not overlap."""
    dtype = x.dtype
    if values.dtype != VALUES[dtype]:
        raise TypeError(f"values: {values.dtype}; {VALUES[dtype]} is expected beside X of {dtype}")
    if not values.is_contiguous():
        values = values.contiguous()
    x, where = place(x)
    if out is None:
        # Two numbers: torch takes longer to read a tuple.
        rows, cols = A.shape[transposed], where[2]
        out = x.new_empty(rows, cols)
        there = (out.data_ptr(), rows, cols, cols)
    else:
        rows, cols = out.shape
        there = (out.data_ptr(), rows, cols, out.stride(0))
    _core._spmm_at(A, transposed, KINDS[dtype], (values.data_ptr(), values.numel()), where, there)
    return out


def _spmm(crow: Tensor, col: Tensor, values: Tensor, x: Tensor) -> Tensor:
    return product(pattern(crow, col, x.shape[0]), False, values, x)


def _spmm_t(crow: Tensor, col: Tensor, values: Tensor, x: Tensor, cols: int) -> Tensor:
    return product(pattern(crow, col, cols), True, values, x)


def _sddmm(crow: Tensor, col: Tensor, x1: Tensor, x2: Tensor) -> Tensor:
    return dots(pattern(crow, col, x2.shape[0]), x1, x2)


def dots(A: _core.CSR, x1: Tensor, x2: Tensor) -> Tensor:
    """The dot products of rows of `x1` and `x2` at the nonzeros."""
    (x1, first), (x2, second) = place(x1), place(x2)
    out = x1.new_empty((A.nnz,), dtype=VALUES[x1.dtype])
    _core._sddmm_at(A, KINDS[x1.dtype], first, second, out.data_ptr())
    return out


def _extremum(crow: Tensor, col: Tensor, values: Tensor, x: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    A = pattern(crow, col, x.shape[0]).with_values(values.detach().numpy())
    made = _core.spmm(A, x.detach().numpy(), reduce="max" if largest else "min", return_positions=True)
    return torch.from_numpy(made[0]), torch.from_numpy(made[1])


def _attention(
    crow: Tensor, col: Tensor, q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float
) -> tuple[Tensor, Tensor]:
    q, k, v = q.detach(), k.detach(), v.detach()
    A = _of_dtype(pattern(crow, col, k.shape[0]), q)
    options: Any = {"edge": "softmax", "scale": scale, "heads": heads, "return_lse": True}
    o, lse = _core.fusedmm(A, q.numpy(), k.numpy(), v.numpy(), **options)
    return torch.from_numpy(o), torch.from_numpy(lse)


def _attention_backward(
    crow: Tensor, col: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, grad: Tensor, heads: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    arrays = [x.detach().numpy() for x in (q, k, v, grad)]
    A = _of_dtype(pattern(crow, col, k.shape[0]), q)
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
    return x1.new_empty((col.shape[0],), dtype=VALUES[x1.dtype])


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


_compiling = torch.compiler.is_compiling
_modes, _functions = _c._len_torch_dispatch_stack, _c._len_torch_function_stack
_transform, _trace, _profiled = (
    _c._functorch.peek_interpreter_stack,
    _c._get_tracing_state,
    _c._autograd._profiler_enabled,
)


def unwatched() -> bool:
    """Whether torch need not know which operators are called: no compiler, mode, transform, trace or profile looks on."""
    return (
        not _compiling()
        and _forward._current_level < 0
        and _modes() == 0
        and _functions() == 0
        and _transform() is None
        and _trace() is None
        and not _profiled()
    )


def usual(*tensors: Tensor) -> bool:
    """Whether these are in the processor's memory as what they are: no subclass, nor a view with the other sign."""
    for x in tensors:
        if type(x) not in _PLAIN or not x.is_cpu or x.is_neg():
            return False
    return True


_written: Any = torch.autograd.graph.increment_version
_exchange: Any = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # of newer versions
_EXCHANGES = type(_exchange).__name__ == "PyCapsule" and _core._use_exchange(_exchange)


def kept_product(crow: Tensor, col: Tensor, values: Tensor, x: Tensor, out: Tensor | None) -> Tensor | None:
    """``A @ x``, or nothing where something is not as usual: gradients are recorded, the indices are new, an operand does not fit.
    Nobody looks on (`unwatched`)."""
    if not (_EXCHANGES and type(crow) is type(col) is Tensor and type(values) in _PLAIN and type(x) in _PLAIN):
        return None
    if (values.requires_grad or x.requires_grad) and torch.is_grad_enabled() or values.is_neg() or x.is_neg():
        return None
    if out is None:
        rows = crow.numel() - 1
        if rows < 0 or x.ndim != 2 or x.layout != torch.strided:
            return None
        # Two numbers: torch takes longer to read a tuple.
        made = x.new_empty(rows, x.shape[1])
        return made if _core._spmm_kept(_kept, crow, col, values, x, made) else None
    if type(out) not in _PLAIN or out.requires_grad and torch.is_grad_enabled() or out.is_neg():
        return None
    if not _core._spmm_kept(_kept, crow, col, values, x, out):
        return None
    # What torch does for its own functions.
    _written(out)
    return out


def kept_dots(crow: Tensor, col: Tensor, x1: Tensor, x2: Tensor) -> Tensor | None:
    """``x1 @ x2`` at the nonzeros, or nothing, as `kept_product`."""
    if not (_EXCHANGES and type(crow) is type(col) is Tensor and type(x1) in _PLAIN and type(x2) in _PLAIN):
        return None
    if (x1.requires_grad or x2.requires_grad) and torch.is_grad_enabled() or x1.is_neg() or x2.is_neg():
        return None
    dtype = VALUES.get(x1.dtype)
    if dtype is None or x1.layout != torch.strided:
        return None
    out = x1.new_empty(col.numel(), dtype=dtype)
    return out if _core._sddmm_kept(_kept, crow, col, x1, x2, out) else None


def call(name: str, *arguments: Any) -> Any:
    """The operator, by the shortest way that does what torch asks of it: what an operator of torch's library takes for its dispatch is
    several times what a small product takes, and looking for gradients takes that again."""
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    gradients = torch.is_grad_enabled() and any([x.requires_grad for x in tensors])
    if not _compiling() and unwatched() and usual(*tensors):
        return _recorded[name].apply(*arguments) if gradients else _direct[name](*arguments)
    # torch itself would take tangents for zeros.
    forward = _forward._current_level >= 0
    if forward and any([_forward.unpack_dual(x).tangent is not None for x in tensors]):
        raise NotImplementedError(f"sparsimd.torch.{name} has no forward-mode derivative")
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


# The same gradients for operators of torch's library and, beside them, for what calls the functions themselves.
_recorded: dict[str, Any] = {}


def _record(name: str, save: Any, backward: Any) -> None:
    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            output = _direct[name](*arguments)
            save(ctx, arguments, output)
            return output

    function: Any = Recorded
    function.backward = staticmethod(backward)
    _recorded[name] = function
    _torch_library.register_autograd(f"sparsimd::{name}", backward, setup_context=save)


_record("spmm", _save_spmm, _spmm_backward)
_record("spmm_t", _save_spmm, _spmm_t_backward)
_record("sddmm", _save_spmm, _sddmm_backward)
_record("extremum", _save_extremum, _extremum_gradients)
_record("attention", _save_attention, _attention_gradients)
_record("attention_backward", _save_nothing, _no_second_gradient)

"""Operators of PyTorch: results, gradients, and what torch.library and torch.compile ask."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as hypothesis_st
import numpy as np
import pytest
from conftest import assert_close, dense_of, random_csr, strided

torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)

from torch_operands import dense, uniform  # noqa: E402

import sparsimd as ss  # noqa: E402
import sparsimd.torch as st  # noqa: E402


@pytest.fixture
def matrix(rng):
    data, indices, indptr = random_csr(rng, 12, 15, 0.3)
    return torch.from_numpy(indptr), torch.from_numpy(indices), torch.from_numpy(data)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_results_and_gradients(matrix, index):
    crow, col, values = matrix
    crow, col = crow.to(index), col.to(index)
    values.requires_grad_()
    X = uniform(15, 7, grad=True)
    A = dense(crow, col, values, 15)
    got, want = st.spmm(crow, col, values, X), A @ X
    torch.testing.assert_close(got, want)
    up = uniform(12, 7)
    torch.testing.assert_close(torch.autograd.grad(got, [values, X], up), torch.autograd.grad(want, [values, X], up))
    X1, X2 = uniform(12, 7, grad=True), uniform(15, 7, grad=True)
    rows = torch.repeat_interleave(torch.arange(12), crow.diff())
    got, want = st.sddmm(crow, col, X1, X2.T, values), values * (X1 @ X2.T)[rows, col.long()]
    torch.testing.assert_close(got, want)
    inputs, up = [X1, X2, values], uniform(len(col))
    torch.testing.assert_close(torch.autograd.grad(got, inputs, up), torch.autograd.grad(want, inputs, up))


def reference(crow, col, q, k, v, scale):
    mask = dense(crow, col, torch.ones(len(col), dtype=q.dtype), k.shape[-2]) > 0
    scores = (scale * q @ k.transpose(-1, -2)).masked_fill(~mask, -torch.inf)
    some = mask.any(1)
    o = torch.zeros((*q.shape[:-1], v.shape[-1]), dtype=q.dtype)
    o[..., some, :] = scores[..., some, :].softmax(-1) @ v
    return o, scores.logsumexp(-1)


@pytest.mark.parametrize("heads", [(), (3,)])
def test_attention(matrix, heads):
    crow, col, _ = matrix
    q, k, v = uniform(*heads, 12, 8, grad=True), uniform(*heads, 15, 8, grad=True), uniform(*heads, 15, 5, grad=True)
    got, lse = st.attention(crow, col, q, k, v, return_lse=True)
    want, want_lse = reference(crow, col, q, k, v, 8**-0.5)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(lse, want_lse)
    up = uniform(*got.shape)
    torch.testing.assert_close(torch.autograd.grad(got, [q, k, v], up), torch.autograd.grad(want, [q, k, v], up))


@pytest.mark.parametrize("shared", [False, True])
def test_batches_of_masks(matrix, shared):
    """One mask for all, or the batch of one for each, with gradients."""
    crow, col, _ = matrix
    q, k, v = uniform(2, 3, 12, 8, grad=True), uniform(2, 3, 15, 8, grad=True), uniform(2, 3, 15, 5, grad=True)
    masks = [(crow, col), (crow, col) if shared else (crow, 14 - col)]
    where = (crow, col)
    if not shared:
        batch = ss.block_diagonal([(np.ones(len(j)), j.numpy(), i.numpy()) for i, j in masks])
        where = (torch.tensor(batch.indptr), torch.tensor(batch.indices))
    got, lse = st.attention(*where, q, k, v, return_lse=True)
    wanted = [reference(*mask, *one, 8**-0.5) for mask, *one in zip(masks, q, k, v)]
    torch.testing.assert_close(got, torch.stack([o for o, _ in wanted]))
    torch.testing.assert_close(lse, torch.stack([l for _, l in wanted]))
    up = uniform(*got.shape)
    want = torch.stack([o for o, _ in wanted])
    torch.testing.assert_close(torch.autograd.grad(got, [q, k, v], up), torch.autograd.grad(want, [q, k, v], up))
    with pytest.raises(ValueError, match="^Q: 12 rows for a mask of"):
        st.attention(where[0][:-1], where[1][: where[0][-2]], q, k, v)


def test_heads_in_the_middle_are_read_where_they_are(matrix):
    crow, col, _ = matrix
    q, k, v = (uniform(n, 3, 8).transpose(0, 1) for n in (12, 15, 15))
    torch.testing.assert_close(st.attention(crow, col, q, k, v), reference(crow, col, q, k, v, 8**-0.5)[0])


OPERATORS = ["spmm", "spmm_t", "sddmm", "extremum", "attention"]


def calls(matrix):
    crow, col, values = matrix
    ops = torch.ops.sparsimd
    q, k, v = uniform(12, 8, grad=True), uniform(15, 8, grad=True), uniform(15, 6, grad=True)
    weights = values.clone().requires_grad_()
    return {
        "spmm": (ops.spmm, (crow, col, weights, uniform(15, 4, grad=True))),
        "spmm_t": (ops.spmm_t, (crow, col, weights, uniform(12, 4, grad=True), 15)),
        "sddmm": (ops.sddmm, (crow, col, uniform(12, 4, grad=True), uniform(15, 4, grad=True))),
        "extremum": (ops.extremum, (crow, col, weights, uniform(15, 4, grad=True), True)),
        "attention": (ops.attention, (crow, col, q, k, v, 2, 0.5)),
    }


@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(matrix, name):
    op, arguments = calls(matrix)[name]
    torch.library.opcheck(op.default, arguments)


@pytest.mark.parametrize("name", OPERATORS)
def test_gradcheck(matrix, name):
    op, arguments = calls(matrix)[name]
    inputs = [x for x in arguments if isinstance(x, torch.Tensor) and x.requires_grad]

    def run(*values):
        given = iter(values)
        full = [next(given) if isinstance(x, torch.Tensor) and x.requires_grad else x for x in arguments]
        result = op(*full)
        return result[0] if isinstance(result, tuple) else result

    assert torch.autograd.gradcheck(run, inputs)
    if name == "attention":
        (gradient,) = torch.autograd.grad(run(*inputs).sum(), inputs[0], create_graph=True)
        with pytest.raises(NotImplementedError, match="no second derivative"):
            gradient.sum().backward()
    else:
        assert torch.autograd.gradgradcheck(run, inputs)


@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck_of_the_operators_without_gradients(matrix, name):
    _, arguments = calls(matrix)[name]
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    torch.library.opcheck(getattr(torch.ops.sparsimd, f"{name}_plain").default, plain)


@pytest.mark.parametrize("reduce", ["mean", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reductions(matrix, reduce, dtype):
    crow, col, values = matrix
    values, X = values.to(dtype).requires_grad_(), uniform(15, 7, grad=True, dtype=dtype)
    rows = torch.repeat_interleave(torch.arange(12), crow.diff())
    terms = values[:, None] * X[col.long()]
    name = {"mean": "mean", "max": "amax", "min": "amin"}[reduce]
    index = rows[:, None].expand_as(terms)
    want = torch.zeros((12, 7), dtype=dtype).scatter_reduce(0, index, terms, name, include_self=False)
    got = st.spmm(crow, col, values, X, reduce)
    torch.testing.assert_close(got, want)
    up = uniform(12, 7, dtype=dtype)
    torch.testing.assert_close(torch.autograd.grad(got, [values, X], up), torch.autograd.grad(want, [values, X], up))
    with pytest.raises(ValueError, match="^reduce: 'sums'"):
        st.spmm(crow, col, values, X, "sums")


def test_rows_without_nonzeros_have_no_gradient():
    crow, col, values = torch.tensor([0, 0, 2]), torch.tensor([1, 2]), torch.tensor([2.0, 3.0])
    X = torch.ones(4, 2).requires_grad_()
    result = st.spmm(crow, col, values, X, "max")
    torch.testing.assert_close(result, torch.tensor([[0.0, 0.0], [3.0, 3.0]]))
    result.sum().backward()
    torch.testing.assert_close(X.grad, torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 3.0], [0.0, 0.0]]))
    none = torch.zeros(0)
    result = st.spmm(torch.zeros(3, dtype=torch.int64), none.long(), none, X, "min")
    result.sum().backward()
    torch.testing.assert_close(result, torch.zeros(2, 2))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_halves(matrix, half):
    """Sums in single precision, rounded once: half a unit in the last place apart from those of the widened operands."""
    crow, col, values = matrix
    values = values.float().requires_grad_()
    X, Y = uniform(15, 8, dtype=torch.float32).to(half), uniform(12, 8, dtype=torch.float32).to(half)
    X, Y = X.requires_grad_(), Y.requires_grad_()
    wide = {x: x.detach().float().requires_grad_() for x in (X, Y, values)}
    close = dict(rtol=2.0**-8 if half == torch.bfloat16 else 2.0**-11, atol=1e-5)
    for got, want, inputs in [
        (st.spmm(crow, col, values, X), st.spmm(crow, col, wide[values], wide[X]), (values, X)),
        (st.sddmm(crow, col, Y, X.t()), st.sddmm(crow, col, wide[Y], wide[X].t()), (X, Y)),
        (st.spmm(crow, col, values, X, "max"), st.spmm(crow, col, wide[values], wide[X], "max"), (values, X)),
        (st.attention(crow, col, Y, X, X), st.attention(crow, col, wide[Y], wide[X], wide[X]), (X, Y)),
    ]:
        assert got.dtype in (half, torch.float32)
        torch.testing.assert_close(got.float(), want, **close)
        up = uniform(*got.shape, dtype=torch.float32).to(got.dtype)
        gradients = torch.autograd.grad(got, inputs, up)
        expected = torch.autograd.grad(want, [wide[x] for x in inputs], up.float())
        for a, b, x in zip(gradients, expected, inputs, strict=True):
            assert a.dtype == x.dtype
            torch.testing.assert_close(a.float(), b, rtol=4 * close["rtol"], atol=8 * close["rtol"])
    with pytest.raises(TypeError, match="^values: torch.bfloat16; torch.float32"):
        st.spmm(crow, col, values.bfloat16(), X)
    A = ss.csr((values.detach().numpy(), col.numpy(), crow.numpy()), shape=(12, 15))
    out = torch.zeros(12, 8, dtype=half)
    assert ss.spmm(A, X.detach(), out=out) is out
    torch.testing.assert_close(out, st.spmm(crow, col, values, X).detach())


def test_who_looks_on_sees_the_operators(matrix):
    """The short way is taken only where nothing of torch could tell the difference."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    crow, col, values = matrix
    X = uniform(15, 3)

    class Names(TorchDispatchMode):
        seen: list[str] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))

    want = st.spmm(crow, col, values, X)
    with Names() as mode:
        torch.testing.assert_close(st.spmm(crow, col, values, X), want)
    assert "sparsimd.spmm_plain.default" in mode.seen
    graph = make_fx(lambda X: st.spmm(crow, col, values, X))(X)
    assert "spmm_plain" in graph.code
    with torch.profiler.profile() as profile:
        st.spmm(crow, col, values, X)
    assert "sparsimd::spmm_plain" in [event.key for event in profile.key_averages()]
    stacked = torch.func.vmap(lambda X: st.spmm(crow, col, values, X))(torch.stack([X, 2 * X]))
    torch.testing.assert_close(stacked, torch.stack([want, 2 * want]))
    # A view whose memory has the numbers with the other sign.
    negative = torch._neg_view(X)
    torch.testing.assert_close(st.spmm(crow, col, values, negative), -want)
    for tensor in (torch.nn.Parameter(X), X.t().contiguous().t(), X.repeat(1, 2)[:, 3:], X[:, :1].expand(15, 3)):
        with torch.no_grad():
            torch.testing.assert_close(st.spmm(crow, col, values, tensor), dense(crow, col, values, 15) @ tensor)


def test_no_gradient_where_none_is_asked_for(matrix):
    crow, col, values = matrix
    X = uniform(15, 3, grad=True)
    with torch.no_grad():
        assert not st.spmm(crow, col, values, X).requires_grad
    assert not st.spmm(crow, col, values, X.detach()).requires_grad
    assert st.spmm(crow, col, values, X).requires_grad
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda x: st.spmm(crow, col, values, x), (X.detach(),), (X.detach(),))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X.detach(), X.detach())
        st.spmm(crow, col, values, X.detach())
        with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
            st.spmm(crow, col, values, dual)


shapes = hypothesis_st.tuples(*(hypothesis_st.integers(low, high) for low, high in [(0, 200), (0, 200), (0, 130)]))


@hypothesis.given(
    shape=shapes,
    density=hypothesis_st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    dtype=hypothesis_st.sampled_from([np.float32, np.float64]),
    kind=hypothesis_st.sampled_from(["C", "F", "padded", "head", "every other"]),
    seed=hypothesis_st.integers(0, 2**32),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_every_shape_and_stride_within_the_bound(shape, density, dtype, kind, seed):
    """Against torch's dense products in double precision."""
    rng = np.random.default_rng(seed)
    m, k, n = shape
    arrays = random_csr(rng, m, k, density, dtype)
    data, indices, indptr = (torch.from_numpy(x) for x in arrays)
    A = torch.from_numpy(dense_of(*arrays, (m, k)))
    X, Y = (torch.from_numpy(strided(rng.uniform(-1, 1, (r, n)).astype(dtype), kind)) for r in (k, m))
    x, y = X.double(), Y.double()
    assert_close(st.spmm(indptr, indices, data, X).numpy(), (A @ x).numpy(), (A.abs() @ x.abs()).numpy(), k, dtype)
    got = torch.ops.sparsimd.spmm_t(indptr, indices, data, Y, k)
    assert_close(got.numpy(), (A.T @ y).numpy(), (A.abs().T @ y.abs()).numpy(), m, dtype)
    rows, cols = torch.repeat_interleave(torch.arange(m), indptr.diff()), indices.long()
    dots, magnitude = (y @ x.T)[rows, cols], (y.abs() @ x.abs().T)[rows, cols]
    assert_close(st.sddmm(indptr, indices, Y, X.T).numpy(), dots.numpy(), magnitude.numpy(), n, dtype)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(matrix, backend):
    crow, col, values = matrix
    X, W = uniform(15, 6), uniform(6, 4, grad=True)

    def layer(crow, col, values, X, W):
        h = torch.relu(st.spmm(crow, col, values, X @ W))
        return h.sum() + st.attention(crow, col, h, X[:, :4].contiguous(), X).sum()

    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    got, want = compiled(crow, col, values, X, W), layer(crow, col, values, X, W)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got, W), torch.autograd.grad(want, W))


class Batches(torch.utils.data.Dataset):
    """Products that a DataLoader's workers compute, each in a process of its own."""

    def __init__(self, A, X):
        self.A, self.X = A, X

    def __len__(self):
        return 4

    def __getitem__(self, number):
        return torch.from_numpy(self.A @ (self.X * (number + 1)))


def test_data_loader(rng):
    A = ss.csr(random_csr(rng, 1500, 1500, 0.05, np.float32), shape=(1500, 1500))
    X = rng.uniform(-1, 1, (1500, 64)).astype(np.float32)
    ss.set_num_threads(2)
    expected = [A @ (X * (number + 1)) for number in range(4)]
    loader = torch.utils.data.DataLoader(Batches(A, X), batch_size=None, num_workers=2, timeout=60)
    for got, want in zip(loader, expected, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_out(matrix, dtype):
    crow, col, values = matrix
    values = values.to(st._ops.VALUES[dtype])
    X = uniform(15, 6, dtype=torch.float64).to(dtype)
    for reduce in ("sum", "mean", "max"):
        want = st.spmm(crow, col, values, X, reduce)
        for out in (torch.full((12, 6), torch.nan, dtype=dtype), torch.full((12, 9), torch.nan, dtype=dtype)[:, 2:8]):
            address, version = out.data_ptr(), out._version
            assert st.spmm(crow, col, values, X, reduce, out=out) is out
            torch.testing.assert_close(out, want, rtol=0, atol=0)
            assert out.data_ptr() == address and out._version > version
    # The first call with these indices.
    out = torch.zeros(12, 6, dtype=dtype)
    torch.testing.assert_close(st.spmm(crow.clone(), col.clone(), values, X, out=out), st.spmm(crow, col, values, X))
    crow, X = torch.arange(13), torch.zeros(15, 6, dtype=dtype)
    col, values = torch.arange(12), values[:12].clone()
    for again in range(2):
        with pytest.raises(ValueError, match="^out: its memory overlaps"):
            st.spmm(crow, col, values, X, out=X[:12])
    for bad, error, message in [
        (torch.zeros(12, 5, dtype=dtype), ValueError, r"^out: has shape \(12, 5\); \(12, 6\)"),
        (torch.zeros(12, dtype=dtype), ValueError, "^out: has 1 dimensions"),
        (torch.zeros(12, 6, dtype=torch.int32), TypeError, "^out: torch.int32"),
        (torch.zeros(6, 12, dtype=dtype).t(), ValueError, "^out: its rows are not contiguous"),
        (torch.zeros(12, 6, dtype=dtype).to_sparse(), TypeError, "^out: a tensor of torch.sparse_coo"),
        (torch.zeros(12, 6, dtype=dtype, requires_grad=True), ValueError, "^out: is not for operands that gradients"),
    ]:
        with pytest.raises(error, match=message):
            st.spmm(crow, col, values, X, out=bad)
    with pytest.raises(ValueError, match="^out: is not for operands that gradients"):
        st.spmm(crow, col, values.requires_grad_(), X, out=out)
    with torch.no_grad():
        st.spmm(crow, col, values, X, out=out)
    compiled = torch.compile(lambda X, out: st.spmm(crow, col, values.detach(), X, out=out), fullgraph=True, backend="eager")
    X, out = torch.ones_like(X), torch.zeros(12, 6, dtype=dtype)
    torch.testing.assert_close(compiled(X, out), st.spmm(crow, col, values.detach(), X))


@pytest.mark.parametrize("exchanges", [True, False])
def test_gradients_by_the_short_way(matrix, monkeypatch, exchanges):
    """The functions that are called where nobody looks on have the gradients of torch's operators."""
    monkeypatch.setattr("sparsimd._operators._EXCHANGES", exchanges and st._ops._EXCHANGES)
    crow, col, values = matrix
    values = values.requires_grad_()
    X, Y, V = uniform(15, 4, grad=True), uniform(12, 4, grad=True), uniform(15, 2, grad=True)
    check, again = torch.autograd.gradcheck, torch.autograd.gradgradcheck
    for run, inputs in [
        (lambda v, X: st.spmm(crow, col, v, X), (values, X)),
        (lambda v, X: st.spmm(crow, col, v, X, "max"), (values, X)),
        (lambda Y, X: st.sddmm(crow, col, Y, X.t()), (Y, X)),
        (lambda Y, X, V: st.attention(crow, col, Y, X, V), (Y, X, V)),
    ]:
        assert "Backward" in type(run(*inputs).grad_fn).__name__
        assert check(run, inputs)
        if len(inputs) == 2:
            assert again(run, inputs)


def test_sparse_operands_are_refused(matrix):
    crow, col, values = matrix
    X = uniform(15, 3)
    for arguments, name in [
        ((crow, col, values, X.to_sparse_csr()), "X"),
        ((crow, col, values.to_sparse(), X), "values"),
        ((crow, col.to_sparse(), values, X), "col"),
    ]:
        with pytest.raises(TypeError, match=f"^{name}: a tensor of torch.sparse"):
            st.spmm(*arguments)
    with pytest.raises(TypeError, match="^X1: a tensor of torch.sparse"):
        st.sddmm(crow, col, uniform(12, 3).to_sparse(), X.t())


def test_errors(matrix):
    crow, col, values = matrix
    X = uniform(15, 3)
    with pytest.raises(ValueError, match="^X: has 1 dimensions"):
        st.spmm(crow, col, values, X[:, 0])
    with pytest.raises(TypeError, match="^X: torch.float32"):
        st.spmm(crow, col, values, X.float())
    with pytest.raises(TypeError, match="^crow: torch.float64"):
        st.spmm(crow.double(), col, values, X)
    with pytest.raises(ValueError, match="^A: row .*: column index"):
        st.spmm(crow, col, values, X[:3])
    with pytest.raises(ValueError, match="^values: "):
        st.spmm(crow, col, values[:-1], X)
    with pytest.raises(ValueError, match="^X: 11 values for 12 rows"):
        torch.ops.sparsimd.spmm_t(crow, col, values, uniform(11, 3), 15)
    with pytest.raises(ValueError, match="^X1: 11 values for 12 rows"):
        st.sddmm(crow, col, uniform(11, 3), X.t())
    with pytest.raises(ValueError, match="^Q: 3 rows for a mask of 12"):
        st.attention(crow, col, X[:3], X, X)
    with pytest.raises(ValueError, match="occurs twice"):
        st.spmm(torch.tensor([0, 2]), torch.tensor([1, 1]), torch.ones(2, dtype=torch.float64), X)


def test_tensors_as_matrices_and_operands(rng):
    data, indices, indptr = random_csr(rng, 9, 8, 0.4, np.float32)
    t = torch.sparse_csr_tensor(
        torch.from_numpy(indptr), torch.from_numpy(indices.astype(np.int64)), torch.from_numpy(data), (9, 8)
    )
    A = ss.csr(t)
    assert np.shares_memory(A.data, t.values().numpy())
    X, out = torch.rand(8, 5), torch.zeros(9, 5)
    assert ss.spmm(t, X, out=out) is out
    torch.testing.assert_close(out, t.to_dense() @ X)
    np.testing.assert_array_equal(ss.csr(t.to_sparse_coo()).toarray(), t.to_dense().numpy())
    with pytest.raises(TypeError, match="^X: a tensor that requires gradients"):
        ss.spmm(t, X.requires_grad_())
    with pytest.raises(TypeError, match="^A: a dense tensor"):
        ss.csr(torch.eye(3))

"""Operators of PyTorch: results, gradients, and what torch.library and torch.compile ask."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import random_csr

torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)

import sparsimd as ss  # noqa: E402
import sparsimd.torch as st  # noqa: E402


@pytest.fixture
def matrix(rng):
    data, indices, indptr = random_csr(rng, 12, 15, 0.3)
    return torch.from_numpy(indptr), torch.from_numpy(indices), torch.from_numpy(data)


def uniform(*shape, grad=False, dtype=torch.float64):
    return (torch.rand(shape, dtype=dtype) - 0.5).requires_grad_(grad)


def dense(crow, col, values, cols):
    rows = torch.repeat_interleave(torch.arange(len(crow) - 1), crow.diff())
    return torch.zeros((len(crow) - 1, cols), dtype=values.dtype).index_put((rows, col.long()), values)


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


def test_heads_in_the_middle_are_read_where_they_are(matrix):
    crow, col, _ = matrix
    q, k, v = (uniform(n, 3, 8).transpose(0, 1) for n in (12, 15, 15))
    torch.testing.assert_close(st.attention(crow, col, q, k, v), reference(crow, col, q, k, v, 8**-0.5)[0])


def calls(matrix):
    crow, col, values = matrix
    ops = torch.ops.sparsimd
    q, k, v = uniform(2, 12, 4, grad=True), uniform(2, 15, 4, grad=True), uniform(2, 15, 3, grad=True)
    weights = values.clone().requires_grad_()
    return {
        "spmm": (ops.spmm, (crow, col, weights, uniform(15, 4, grad=True))),
        "spmm_t": (ops.spmm_t, (crow, col, weights, uniform(12, 4, grad=True), 15)),
        "sddmm": (ops.sddmm, (crow, col, uniform(12, 4, grad=True), uniform(15, 4, grad=True))),
        "attention": (ops.attention, (crow, col, q, k, v, 0.5)),
    }


@pytest.mark.parametrize("name", ["spmm", "spmm_t", "sddmm", "attention"])
def test_opcheck(matrix, name):
    op, arguments = calls(matrix)[name]
    torch.library.opcheck(op.default, arguments)


@pytest.mark.parametrize("name", ["spmm", "spmm_t", "sddmm", "attention"])
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


def test_changed_indices_are_noticed(matrix):
    crow, col, values = matrix
    X = uniform(15, 3)
    st.spmm(crow, col, values, X)
    col[0] = next(j for j in range(15) if j not in col[: crow[1]])
    torch.testing.assert_close(st.spmm(crow, col, values, X), dense(crow, col, values, 15) @ X)
    for _ in range(st.PATTERNS + 5):
        st.spmm(crow.clone(), col.clone(), values, X)


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

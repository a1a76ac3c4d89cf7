"""FusedMM of heads and its gradients, against loops in double precision and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import random_csr

import sparsimd as ss

EDGES = ["identity", "scale", "sigmoid", "softmax", "leaky_relu", "softmax_leaky_relu"]
M, K, N, P = 14, 17, 12, 9


def edge_function(edge, s, a):
    leaky = np.maximum(s, 0.2 * s)
    return {
        "identity": s,
        "scale": a * s,
        "sigmoid": 1 / (1 + np.exp(-s)),
        "softmax": 0.5 * s,
        "leaky_relu": leaky,
        "softmax_leaky_relu": leaky,
    }[edge]


def reference(A, x, y, z, edge, heads, sums, bias):
    """The result and the log-sum-exp."""
    rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    e, lse = np.zeros((len(x), z.shape[1])), np.zeros((len(x), heads))
    for head in range(heads):
        n, p = x.shape[1] // heads, z.shape[1] // heads
        left, right = x[:, head * n : (head + 1) * n], y[:, head * n : (head + 1) * n]
        s = left[rows, 0] + right[A.indices, 0] if sums else (left[rows] * right[A.indices]).sum(1)
        w = edge_function(edge, s, A.data)
        if edge.startswith("softmax"):
            w = w + (0 if bias is None else bias)
            for i in range(len(x)):
                row = slice(A.indptr[i], A.indptr[i + 1])
                total = np.logaddexp.reduce(w[row]) if row.start < row.stop else -np.inf
                lse[i, head], w[row] = total, np.exp(w[row] - total)
        np.add.at(e[:, head * p : (head + 1) * p], rows, w[:, None] * z[A.indices, head * p : (head + 1) * p])
    return e, lse


def problem(rng, heads, sums, dtype=np.float64):
    data, indices, indptr = random_csr(rng, M, K, 0.3, dtype)
    # Without nonzeros: row 4.
    keep = np.repeat(np.arange(M), np.diff(indptr)) != 4
    indptr[5:] -= indptr[5] - indptr[4]
    A = ss.csr((data[keep], indices[keep], indptr), shape=(M, K))
    widths = (heads if sums else N, heads if sums else N, P if P % heads == 0 else heads * 2)
    operands = [rng.uniform(-1, 1, (r, c)).astype(dtype) for r, c in zip((M, K, K), widths, strict=True)]
    return A, operands, rng.uniform(-1, 1, A.nnz).astype(dtype)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("heads", [1, 3, 4])
def test_results_and_gradients(rng, edge, sums, heads):
    A, (x, y, z), bias = problem(rng, heads, sums)
    softmax = edge.startswith("softmax")
    options = dict(edge=edge, heads=heads, scores="sums" if sums else "dots", bias=bias if softmax else None)
    if edge == "softmax":
        options["scale"] = 0.5
    expected, expected_lse = reference(A, x, y, z, edge, heads, sums, options["bias"])
    got, lse = ss.fusedmm(A, x, y, z, return_lse=True, **options)
    np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(lse, expected_lse if softmax else 0 * lse, rtol=1e-11, atol=1e-12)
    np.testing.assert_array_equal(ss.fusedmm(A, x, y, z, out=np.empty_like(got), **options), ss.fusedmm(A, x, y, z, **options))

    up = rng.uniform(-1, 1, got.shape)
    results = ss.fusedmm_gradient(A, x, y, z, up, lse=lse if softmax else None, **options)
    inputs = [x, y, z, A.data if edge == "scale" else None, options["bias"]]
    for gradient, value in zip(results, inputs, strict=True):
        assert (gradient is None) == (value is None)
        if value is None:
            continue
        assert gradient.shape == value.shape
        step = rng.uniform(-1, 1, value.shape)
        sides = []
        for sign in (1, -1):
            moved = [v if v is not value else v + sign * 1e-6 * step for v in inputs]
            B = A if edge != "scale" else A.with_values(moved[3])
            sides.append((reference(B, *moved[:3], edge, heads, sums, moved[4])[0] * up).sum())
        assert (gradient * step).sum() == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-6, abs=1e-8)


def test_single_precision_and_strides(rng):
    A, (x, y, z), _ = problem(rng, 3, False, np.float32)
    expected, lse = reference(A, *(v.astype(np.float64) for v in (x, y, z)), "softmax", 3, False, None)
    for layout in (np.asfortranarray, lambda v: np.pad(v, ((0, 0), (0, 3)))[:, : v.shape[1]]):
        got, got_lse = ss.fusedmm(A, layout(x), layout(y), layout(z), scale=0.5, heads=3, return_lse=True)
        assert got.dtype == got_lse.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got_lse, lse, rtol=1e-5)


def test_dropout(rng):
    """Weights are dropped or multiplied by 1 / (1 - rate), the same ones in the gradient."""
    A, (x, y, _), _ = problem(rng, 1, False)
    z, options = np.eye(K), dict(edge="sigmoid", dropout=0.4, seed=5)
    full, some = ss.fusedmm(A, x, y, z, edge="sigmoid"), ss.fusedmm(A, x, y, z, **options)
    kept = some != 0
    np.testing.assert_allclose(some[kept], full[kept] / 0.6, rtol=1e-12)
    assert 0.4 < kept.sum() / A.nnz < 0.8
    up = rng.uniform(-1, 1, (M, K))
    dz = ss.fusedmm_gradient(A, x, y, z, up, **options)[2]
    np.testing.assert_allclose(dz, some.T @ up, rtol=1e-11, atol=1e-13)
    assert (ss.fusedmm(A, x, y, z, edge="sigmoid", dropout=0.4, seed=6) != some).any()


@pytest.mark.parametrize("empty", ["nonzeros", "columns", "results", "rows"])
def test_nothing(rng, empty):
    m, n, p = (0 if empty == "rows" else 5), (0 if empty == "columns" else 4), (0 if empty == "results" else 6)
    density = 0.0 if empty == "nonzeros" else 0.5
    A = ss.csr(random_csr(rng, m, 7, density), shape=(m, 7))
    x, y, z = rng.uniform(-1, 1, (m, n)), rng.uniform(-1, 1, (7, n)), rng.uniform(-1, 1, (7, p))
    got, lse = ss.fusedmm(A, x, y, z, heads=2, return_lse=True)
    expected, expected_lse = reference(A, 2 * x, y, z, "softmax", 2, False, None)
    np.testing.assert_allclose(got, expected, atol=1e-12)
    np.testing.assert_allclose(lse, expected_lse if A.nnz else np.full((m, 2), -np.inf), atol=1e-12)
    gradients = ss.fusedmm_gradient(A, x, y, z, np.ones((m, p)), lse=lse, heads=2)
    assert [g.shape for g in gradients[:3]] == [x.shape, y.shape, z.shape]
    assert np.isfinite(np.concatenate([g.ravel() for g in gradients[:3]])).all()
    np.testing.assert_allclose(gradients[2].sum(), 1.0 * p * (np.diff(A.indptr) > 0).sum(), atol=1e-9)


def test_plans_share_their_pattern(rng):
    A, (x, y, z), _ = problem(rng, 3, False)
    plan = A.prepare("fusedmm", N)
    np.testing.assert_array_equal(ss.fusedmm(plan, x, y, z, heads=3), ss.fusedmm(A, x, y, z, heads=3))
    with pytest.raises(ValueError, match="^A: is a plan, which keeps its values"):
        ss.fusedmm(plan, x, y, z, edge="scale", heads=3)


def test_errors(rng):
    A, (x, y, z), bias = problem(rng, 3, False)
    for options, text in [
        (dict(heads=0), "^heads: 0 is not"),
        (dict(heads=5), "^heads: the 12 columns of X are not those of 5"),
        (dict(heads=2), "^heads: the 9 columns of Z are not those of 2"),
        (dict(scores="products"), '^scores: "products" is none of dots, sums'),
        (dict(dropout=1.0), "^dropout: 1 is not"),
        (dict(bias=bias[:-1]), "^bias: .* values for .* nonzeros"),
        (dict(bias=bias, edge="sigmoid"), "^bias: is for edge="),
        (dict(scores="sums"), r"^X: has shape \(14, 12\); \(14, 1\) is expected"),
    ]:
        with pytest.raises(ValueError, match=text):
            ss.fusedmm(A, x, y, z, **options)
    with pytest.raises(ValueError, match="^lse: is needed"):
        ss.fusedmm_gradient(A, x, y, z, np.ones((M, P)))
    with pytest.raises(ValueError, match=r"^dE: has shape \(14, 8\)"):
        ss.fusedmm_gradient(A, x, y, z, np.ones((M, 8)), edge="identity")

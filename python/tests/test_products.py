"""SpMM, SDDMM and FusedMM against numpy in double precision."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from conftest import IN_PLACE, KINDS, assert_close, dense_of, random_csr, strided
from hypothesis import given, settings
from hypothesis import strategies as st

import sparsimd as ss


def problem(rng, rows, cols, density, dtype, sort=True):
    arrays = random_csr(rng, rows, cols, density, dtype, sort=sort)
    return ss.csr(arrays, shape=(rows, cols)), dense_of(*arrays, (rows, cols))


shapes = st.tuples(st.integers(0, 200), st.integers(0, 200), st.integers(0, 130))
options = {
    "shape": shapes,
    "density": st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    "dtype": st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)]),
    "kind": st.sampled_from(KINDS),
    "seed": st.integers(0, 2**32),
    "sort": st.booleans(),
}


@given(**options)
@settings(max_examples=150, deadline=None)
def test_spmm(shape, density, dtype, kind, seed, sort):
    rng = np.random.default_rng(seed)
    (m, k, n) = shape
    A, full = problem(rng, m, k, density, dtype, sort)
    X = strided(rng.uniform(-1, 1, (k, n)).astype(dtype), kind)
    magnitude = np.abs(full) @ np.abs(X.astype(np.float64))
    assert_close(A @ X, full @ X.astype(np.float64), magnitude, k, dtype)
    scipy_sparse = pytest.importorskip("scipy.sparse")
    theirs = scipy_sparse.csr_array((A.data.astype(np.float64), A.indices, A.indptr), shape=(m, k))
    assert_close(ss.spmm(theirs.astype(dtype), X), theirs @ X.astype(np.float64), magnitude, k, dtype)
    out = strided(np.full((m, n), np.nan, dtype), "padded")
    assert ss.spmm(A, X, out=out) is out
    assert_close(out, full @ X.astype(np.float64), magnitude, k, dtype)
    start = rng.uniform(-1, 1, (m, n)).astype(dtype)
    out = start.copy()
    ss.spmm(A, X, out=out, alpha=-2.0, beta=0.5)
    expected = -2.0 * (full @ X.astype(np.float64)) + 0.5 * start
    assert_close(out, expected, 2 * magnitude + 0.5 * np.abs(start), k + 2, dtype)
    Y = strided(rng.uniform(-1, 1, (m, n)).astype(dtype), kind)
    magnitude = np.abs(full.T) @ np.abs(Y.astype(np.float64))
    assert_close(A.T @ Y, full.T @ Y.astype(np.float64), magnitude, m, dtype)


@given(**options)
@settings(max_examples=100, deadline=None)
def test_sddmm(shape, density, dtype, kind, seed, sort):
    rng = np.random.default_rng(seed)
    (m, k, n) = shape
    A, full = problem(rng, m, k, density, dtype, sort)
    X1 = strided(rng.uniform(-1, 1, (m, n)).astype(dtype), kind)
    X2 = strided(rng.uniform(-1, 1, (n, k)).astype(dtype), kind)
    rows = np.repeat(np.arange(m), np.diff(A.indptr))
    dots = (X1.astype(np.float64) @ X2.astype(np.float64))[rows, A.indices]
    magnitude = (np.abs(X1.astype(np.float64)) @ np.abs(X2.astype(np.float64)))[rows, A.indices]
    assert_close(ss.sddmm(A, X1, X2), dots, magnitude, n, dtype)
    values = A.data.astype(np.float64)
    out = np.full(A.nnz, np.nan, dtype)
    assert ss.sddmm(A, X1, X2, scaled=True, out=out) is out
    assert_close(out, values * dots, np.abs(values) * magnitude, n + 1, dtype)


def weights(edge, s, a, mask, scale, slope):
    leaky = np.maximum(s, slope * s)
    if edge == "identity":
        f = s
    elif edge == "scale":
        f = a * s
    elif edge == "sigmoid":
        f = 1 / (1 + np.exp(-s))
    elif edge == "leaky_relu":
        f = leaky
    else:
        e = np.where(mask, scale * s if edge == "softmax" else leaky, -np.inf)
        top = e.max(axis=1, keepdims=True, initial=-np.inf)
        e = np.exp(e - np.where(np.isfinite(top), top, 0))
        total = e.sum(axis=1, keepdims=True)
        f = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
    return np.where(mask, f, 0.0)


EDGES = ["identity", "scale", "sigmoid", "softmax", "leaky_relu", "softmax_leaky_relu"]


@given(**options, edge=st.sampled_from(EDGES), p=st.integers(0, 70))
@settings(max_examples=150, deadline=None)
def test_fusedmm(shape, density, dtype, kind, seed, sort, edge, p):
    rng = np.random.default_rng(seed)
    (m, k, n) = shape
    A, full = problem(rng, m, k, density, dtype, sort)
    mask = dense_of(np.ones(A.nnz), A.indices, A.indptr, (m, k)) > 0
    X, Y = (strided(rng.uniform(-1, 1, (r, n)).astype(dtype), kind) for r in (m, k))
    Z = strided(rng.uniform(-1, 1, (k, p)).astype(dtype), kind)
    x, y, z = (t.astype(np.float64) for t in (X, Y, Z))
    scale, slope = 0.7 if edge == "softmax" else 1.0, 0.25
    w = weights(edge, x @ y.T, full, mask, scale, slope)
    got = ss.fusedmm(A, X, Y, Z, edge=edge, scale=scale, negative_slope=slope)
    # Rounding of the dots goes through f, whose derivative is at most 1 (for a softmax in relative terms), and exp has its own.
    dots = np.abs(x) @ np.abs(y).T
    sensitivity = np.where(mask, (1 + np.abs(w)) * (dots + 1), 0.0) if edge != "scale" else np.abs(full) * (dots + 1)
    if edge.startswith("softmax"):
        sensitivity = w * 2 * (1 + np.where(mask, dots, 0).max(axis=1, keepdims=True, initial=0))
    assert_close(got, w @ z, sensitivity @ np.abs(z) + 1e-300, 4 * (n + k) + 16, dtype)
    out = strided(np.full((m, p), np.nan, dtype), "head")
    assert ss.fusedmm(A, X, Y, Z, edge=edge, scale=scale, negative_slope=slope, out=out) is out
    np.testing.assert_array_equal(out, got)


@pytest.mark.parametrize("strategy", ["direct", "panel"])
@pytest.mark.parametrize("n", [1, 7, 64, 130])
def test_plans(rng, dtype, strategy, n):
    m, k = 90, 110
    A, full = problem(rng, m, k, 0.4, dtype)
    X, Y = rng.uniform(-1, 1, (k, n)).astype(dtype), rng.uniform(-1, 1, (m, n)).astype(dtype)
    magnitude = np.abs(full) @ np.abs(X.astype(np.float64))
    plan = A.prepare("spmm", n, strategy=strategy)
    assert (plan.op, plan.n, plan.strategy, plan.shape, plan.nnz) == ("spmm", n, strategy, (m, k), A.nnz)
    assert plan.explain() in repr(plan)
    assert_close(plan @ X, full @ X, magnitude, k, dtype)
    assert_close(ss.spmm(plan, X[:, : n // 2 + 1]), full @ X[:, : n // 2 + 1], magnitude[:, : n // 2 + 1], k, dtype)
    values = rng.uniform(-1, 1, A.nnz).astype(dtype)
    plan.set_values(values)
    other = dense_of(values, A.indices, A.indptr, (m, k))
    assert_close(plan @ X, other @ X, np.abs(other) @ np.abs(X.astype(np.float64)), k, dtype)
    plan = A.T.prepare("spmm", n, strategy=strategy)
    assert_close(plan @ Y, full.T @ Y, np.abs(full.T) @ np.abs(Y.astype(np.float64)), m, dtype)
    dots = ss.sddmm(A, Y, X.T)
    got = ss.sddmm(A.prepare("sddmm", n, strategy=strategy), Y, X.T)
    assert_close(got, dots.astype(np.float64), np.abs(dots) + n, n, dtype)
    fused = ss.fusedmm(A.prepare("fusedmm", n, strategy=strategy), Y, X, X)
    assert_close(fused, ss.fusedmm(A, Y, X, X).astype(np.float64), np.full((m, n), n), 4 * k + 16, dtype)


def test_effort_measure(rng):
    A, full = problem(rng, 300, 300, 0.3, np.float32)
    X = rng.uniform(-1, 1, (300, 64)).astype(np.float32)
    for op in ("spmm", "spmm_t", "sddmm", "fusedmm"):
        plan = A.prepare(op, 64, effort="measure")
        assert plan.strategy in ("direct", "panel")
        assert "measured" in plan.explain()
    np.testing.assert_allclose(A.prepare("spmm", 64, effort="measure") @ X, full @ X, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_copied(rng, dtype, kind):
    A, full = problem(rng, 20, 30, 0.3, dtype)
    X = strided(rng.uniform(-1, 1, (30, 8)).astype(dtype), kind)
    if kind in IN_PLACE:
        ss.spmm(A, X, copy=False)
    else:
        with pytest.raises(ValueError, match="^X: would have to be copied"):
            ss.spmm(A, X, copy=False)
    out = strided(np.zeros((20, 8), dtype), kind)
    if kind in IN_PLACE:
        address = out.ctypes.data
        assert ss.spmm(A, X, out=out) is out
        assert out.ctypes.data == address
        np.testing.assert_allclose(out, full @ X, rtol=1e-4, atol=1e-5)
    else:
        before = out.copy()
        with pytest.raises(ValueError, match="^out: its rows are not contiguous"):
            ss.spmm(A, X, out=out)
        np.testing.assert_array_equal(out, before)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_of_copies(rng, dtype, kind):
    """What is read and written where it is takes no memory; what is not takes that of one copy."""
    m = k = n = 256
    A, _ = problem(rng, m, k, 0.05, dtype)
    X, out = strided(rng.uniform(-1, 1, (k, n)).astype(dtype), kind), ss.empty((m, n), dtype)
    plans = {op: A.prepare(op, n) for op in ("sddmm", "fusedmm")}
    places = [x.ctypes.data for x in (X, out, A.data)]
    dots = ss.empty(A.nnz, dtype)
    calls = [
        lambda: ss.spmm(A, X, out=out),
        lambda: ss.spmm(A, X, out=out, alpha=2.0, beta=0.5),
        lambda: ss.sddmm(plans["sddmm"], out, X.T, out=dots),
        lambda: ss.fusedmm(plans["fusedmm"], X, X, X, out=out),
    ]
    for call, copies in zip(calls, (1, 1, 1, 3)):
        call()
        tracemalloc.start()
        try:
            call()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        if kind in IN_PLACE:
            assert peak < 16384
        else:
            assert copies * X.nbytes <= peak < copies * X.nbytes + 16384
    assert places == [x.ctypes.data for x in (X, out, A.data)]


class OnlyDLPack:
    """An array of a package that numpy does not know, but for DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack(rng, dtype):
    A, full = problem(rng, 20, 30, 0.3, dtype)
    X = rng.uniform(-1, 1, (30, 4)).astype(dtype)
    got = ss.spmm(A, OnlyDLPack(X), copy=False)
    np.testing.assert_array_equal(got, A @ X)
    np.testing.assert_array_equal(A @ OnlyDLPack(X[:, 1]), A @ X[:, 1])
    dots = ss.sddmm(A, OnlyDLPack(got), OnlyDLPack(X).array.T)
    np.testing.assert_array_equal(dots, ss.sddmm(A, got, X.T))


def test_transposed_operand_in_place(rng, dtype):
    A, _ = problem(rng, 20, 30, 0.3, dtype)
    Q, K = rng.uniform(-1, 1, (20, 8)).astype(dtype), rng.uniform(-1, 1, (30, 8)).astype(dtype)
    ss.sddmm(A, Q, K.T, copy=False)
    with pytest.raises(ValueError, match="^X2: would have to be copied"):
        ss.sddmm(A, Q, np.ascontiguousarray(K.T), copy=False)
    heads = rng.uniform(-1, 1, (30, 4, 8)).astype(dtype)
    ss.fusedmm(A, Q, heads[:, 1, :], heads[:, 2, :], copy=False)


def test_vectors_and_the_left_side(rng, dtype):
    A, full = problem(rng, 20, 30, 0.3, dtype)
    x, y = rng.uniform(-1, 1, 30).astype(dtype), rng.uniform(-1, 1, 20).astype(dtype)
    close = dict(rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(A @ x, full @ x, **close)
    np.testing.assert_allclose(A.T @ y, full.T @ y, **close)
    np.testing.assert_allclose(y @ A, y @ full, **close)
    np.testing.assert_allclose(x @ A.T, x @ full.T, **close)
    X, Y = rng.uniform(-1, 1, (30, 5)).astype(dtype), rng.uniform(-1, 1, (5, 20)).astype(dtype)
    np.testing.assert_allclose(Y @ A, Y @ full, **close)
    np.testing.assert_allclose(X.T @ A.T, X.T @ full.T, **close)
    out = np.zeros(20, dtype)
    assert ss.spmm(A, x, out=out) is out
    np.testing.assert_allclose(out, full @ x, **close)
    ints = rng.integers(-3, 3, 30).astype(np.int8)
    np.testing.assert_allclose(A @ ints, full @ ints, **close)
    np.testing.assert_allclose(A.astype(np.float64) @ list(range(30)), full @ np.arange(30), **close)


def test_values_are_read_where_they_are(rng, dtype):
    A, full = problem(rng, 20, 30, 0.3, dtype)
    X = rng.uniform(-1, 1, (30, 4)).astype(dtype)
    A.data[:] *= 2
    np.testing.assert_allclose(A @ X, 2 * full @ X, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(A.T @ np.ones((20, 1), dtype), 2 * full.T @ np.ones((20, 1)), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="^data: "):
        A.data.shape = (A.nnz, 1)
        A @ X


REFUSED = [
    (lambda A, X: A @ X[:-1], ValueError, r"^X: has shape \(29, 4\)"),
    (lambda A, X: A @ X[..., None], ValueError, "^X: has 3 dimensions"),
    (lambda A, X: A @ X.astype(complex), TypeError, "^X: complex128 are not real numbers"),
    (lambda A, X: A @ np.array(["a"] * 30), TypeError, "^X: "),
    (lambda A, X: A @ object(), TypeError, "^X: "),
    (lambda A, X: A @ A, TypeError, "^X: a dense array is expected, not CSR"),
    (lambda A, X: A @ X.astype(np.longdouble), TypeError, "^X: .* does not fit"),
    (lambda A, X: ss.spmm(A, X, out=np.zeros((20, 5), X.dtype)), ValueError, r"^out: has shape \(20, 5\); \(20, 4\)"),
    (lambda A, X: ss.spmm(A, X, out=np.zeros((20, 4), np.int32)), TypeError, "^out: int32"),
    (lambda A, X: ss.spmm(A, X, out=[0.0]), TypeError, "^out: an array of numpy is expected, not list"),
    (lambda A, X: ss.spmm(A, X, beta=1.0), ValueError, "^beta: "),
    (lambda A, X: ss.sddmm(A, X, X.T), ValueError, r"^X1: has shape \(30, 4\)"),
    (lambda A, X: ss.sddmm(A, X[:20], X), ValueError, r"^X2: has shape \(30, 4\); \(4, 30\)"),
    (lambda A, X: ss.sddmm(A, X[:20, 0], X.T), ValueError, "^X1: has 1 dimensions"),
    (lambda A, X: ss.sddmm(A, X[:20], X.T, out=np.zeros(3, X.dtype)), ValueError, "^out: has shape"),
    (lambda A, X: ss.fusedmm(A, X[:20], X, X, edge="tanh"), ValueError, '^edge: "tanh" is none of identity'),
    (lambda A, X: ss.fusedmm(A, X[:20], X[:, :2], X), ValueError, "^Y: "),
    (lambda A, X: ss.fusedmm(A, X[:20], X, X[1:]), ValueError, "^Z: "),
    (lambda A, X: ss.fusedmm(A, X[:20], X, X, negative_slope=2.0), ValueError, "^negative_slope: "),
    (lambda A, X: ss.fusedmm(A, X[:20], X, X, edge="sigmoid", scale=2.0), ValueError, "^scale: is for edge="),
    (lambda A, X: A.prepare("spmv", 4), ValueError, "^op: "),
    (lambda A, X: A.prepare("spmm", 0), ValueError, "^n: "),
    (lambda A, X: A.prepare("spmm", -1), ValueError, "^n: -1 is negative"),
    (lambda A, X: A.prepare("spmm", 2**64), ValueError, "^n: 18446744073709551616 is negative or too large"),
    (lambda A, X: A.prepare("spmm", 4, reuse=-1), ValueError, "^reuse: -1 is negative"),
    (lambda A, X: A.prepare("spmm", 4.5), TypeError, "'n'"),
    (lambda A, X: ss.empty((2, -1)), ValueError, "^shape: -1 is negative"),
    (lambda A, X: ss.empty("ab"), TypeError, "^shape: "),
    (lambda A, X: A.prepare("spmm", 4, effort="much"), ValueError, "^effort: "),
    (lambda A, X: A.prepare("spmm", 4, strategy="tiles"), ValueError, "^strategy: "),
    (lambda A, X: A.T.prepare("sddmm", 4), ValueError, "^op: "),
    (lambda A, X: ss.sddmm(A.prepare("spmm", 4), X[:20], X.T), ValueError, "prepared for"),
    (lambda A, X: A.prepare("spmm", 4).set_values(np.zeros(3)), ValueError, "^values: 3 values"),
    (lambda A, X: A.with_values(np.zeros(3)), ValueError, "^values: 3 values"),
    (lambda A, X: ss.spmm(np.eye(3), X), TypeError, "^A: ndarray is not a sparse matrix"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_errors_name_the_argument(rng, number):
    A, _ = problem(rng, 20, 30, 0.3, np.float64)
    call, error, message = REFUSED[number]
    with pytest.raises(error, match=message):
        call(A, rng.uniform(-1, 1, (30, 4)))


def test_single_precision_is_not_lost_in_silence(rng):
    A, _ = problem(rng, 20, 30, 0.3, np.float32)
    with pytest.raises(TypeError, match="^X: float64 does not fit float32"):
        A @ np.zeros((30, 2))
    # As numpy and scipy promote.
    X = np.zeros((30, 2), np.float16)
    assert (A @ X).dtype == np.result_type(A.dtype, X.dtype) == np.float32
    pytest.importorskip("scipy.sparse")
    assert (A.to_scipy() @ X).dtype == np.float32


def test_overlap_is_refused(rng, dtype):
    A, _ = problem(rng, 30, 30, 0.3, dtype)
    big = np.zeros((30, 12), dtype)
    with pytest.raises(ValueError, match="^out: its memory overlaps"):
        ss.spmm(A, big[:, :4], out=big[:, 2:6])
    with pytest.raises(ValueError, match="^out: its memory overlaps"):
        ss.sddmm(A, big, big.T, scaled=True, out=A.data)
    frozen = np.zeros((30, 4), dtype)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="^out: is read-only"):
        ss.spmm(A, big[:, :4], out=frozen)


def test_empty_is_aligned():
    for shape in [(64, 64), (3, 1000), 5000]:
        array = ss.empty(shape, np.float32)
        assert array.ctypes.data % 64 == 0 and array.flags.writeable and array.flags.c_contiguous
        assert array.shape == (shape if isinstance(shape, tuple) else (shape,)) and array.dtype == np.float32
    assert ss.empty((2, 3)).dtype == np.float64
    with pytest.raises(TypeError, match="^dtype: "):
        ss.empty((2, 3), np.int32)
    with pytest.raises(MemoryError):
        ss.empty((2**31, 2**31))

"""SpMM with other reductions, over semirings, of integers and of 16-bit operands, against numpy."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from conftest import KINDS, assert_close, dense_of, half_types, random_csr, strided

import sparsimd as ss

shapes = st.tuples(st.integers(0, 60), st.integers(1, 60), st.integers(0, 70))
given = hypothesis.given(
    shape=shapes,
    density=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    dtype=st.sampled_from([np.float32, np.float64]),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32),
)
settings = hypothesis.settings(max_examples=60, deadline=None)


def rows_of(arrays):
    """Positions of each row's nonzeros."""
    indptr = arrays[2]
    return [slice(indptr[i], indptr[i + 1]) for i in range(len(indptr) - 1)]


@given
@settings
def test_mean_max_min(shape, density, dtype, kind, seed):
    rng = np.random.default_rng(seed)
    m, k, n = shape
    arrays = data, indices, indptr = random_csr(rng, m, k, density, dtype)
    A = ss.csr(arrays, shape=(m, k))
    X = strided(rng.uniform(-1, 1, (k, n)).astype(dtype), kind)
    # A product of two numbers is rounded once, in maxima and minima.
    terms = data[:, None] * X[indices]
    degree = np.maximum(np.diff(indptr), 1)[:, None]
    full = dense_of(*arrays, (m, k))
    mean = ss.spmm(A, X, reduce="mean")
    assert_close(mean, full @ X.astype(np.float64) / degree, np.abs(full) @ np.abs(X) / degree, k + 2, dtype)
    for reduce, pick in (("max", np.argmax), ("min", np.argmin)):
        got, positions = ss.spmm(A, X, reduce=reduce, return_positions=True)
        assert got.shape == positions.shape == (m, n) and got.dtype == dtype
        for i, row in enumerate(rows_of(arrays)):
            if row.start == row.stop:
                assert (got[i] == 0).all() and (positions[i] == -1).all()
                continue
            first = pick(terms[row], axis=0)
            np.testing.assert_array_equal(got[i], terms[row][first, np.arange(n)])
            np.testing.assert_array_equal(positions[i], row.start + first)
        np.testing.assert_array_equal(ss.spmm(A, X, reduce=reduce), got)


@pytest.mark.parametrize("strategy", ["direct", "panel"])
def test_plans_and_out(rng, dtype, strategy):
    A = ss.csr(random_csr(rng, 70, 80, 0.2, dtype), shape=(70, 80))
    X = rng.uniform(-1, 1, (80, 32)).astype(dtype)
    plan = A.prepare("spmm", 32, strategy=strategy)
    close = dict(rtol=1e-4, atol=1e-6)
    for reduce in ("mean", "max", "min"):
        expected = ss.spmm(A, X, reduce=reduce)
        out = np.full((70, 32), np.nan, dtype)
        assert ss.spmm(plan, X, reduce=reduce, out=out) is out
        np.testing.assert_allclose(out, expected, **close)
    # New values are averaged, not those of before.
    new = rng.uniform(-1, 1, A.nnz).astype(dtype)
    plan.set_values(new)
    np.testing.assert_allclose(ss.spmm(plan, X, reduce="mean"), ss.spmm(A.with_values(new), X, reduce="mean"), **close)
    np.testing.assert_allclose(ss.spmm(plan, X[:, 0], reduce="max"), ss.spmm(A.with_values(new), X, reduce="max")[:, 0])


ADD = {"plus": np.add, "min": np.minimum, "max": np.maximum, "or": np.logical_or}
MULTIPLY = {
    "times": np.multiply,
    "plus": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.logical_and,
    "second": lambda a, b: b + 0 * a,
}
NEUTRAL = {"plus": 0, "or": 0, "min": np.inf, "max": -np.inf}
SEMIRINGS = [
    "plus-times", "or-and", "min-plus", "max-plus", "max-times", "min-times", "plus-min", "max-min", "min-max",
    "plus-second", "max-second", "min-second",
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("name", SEMIRINGS)
def test_semirings(rng, name, dtype):
    """Of small integers, which are exact in every type."""
    m, k, n = 23, 31, 19
    _, indices, indptr = random_csr(rng, m, k, 0.2)
    # Row 4 has no nonzeros.
    indices = np.delete(indices, slice(indptr[4], indptr[5]))
    indptr[5:] -= indptr[5] - indptr[4]
    data = rng.integers(-3, 4, len(indices)).astype(dtype)
    A = ss.csr((data, indices, indptr), shape=(m, k), dtype=dtype)
    X = rng.integers(-3, 4, (k, n)).astype(dtype)
    add, multiply = name.split("-")
    integer = np.issubdtype(dtype, np.integer)
    neutral = NEUTRAL[add]
    if integer and np.isinf(neutral):
        neutral = np.iinfo(dtype).max if neutral > 0 else np.iinfo(dtype).min
    expected = np.full((m, n), neutral, dtype)
    for i, row in enumerate(rows_of((data, indices, indptr))):
        if row.start < row.stop:
            terms = MULTIPLY[multiply](data[row][:, None], X[indices[row]])
            expected[i] = ADD[add].reduce(terms, axis=0)
    got = ss.spmm(A, X, semiring=name)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, expected)
    assert indptr[4] == indptr[5]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers(rng, dtype):
    data, indices, indptr = random_csr(rng, 20, 30, 0.3)
    data = rng.integers(-9, 9, len(data))
    A = ss.csr((data, indices, indptr), shape=(20, 30), dtype=dtype)
    full = dense_of(data, indices, indptr, (20, 30)).astype(dtype)
    X, Y = rng.integers(-9, 9, (30, 7)).astype(dtype), rng.integers(-9, 9, (20, 7)).astype(dtype)
    assert A.dtype == dtype and repr(A).endswith(f"{np.dtype(dtype)}>")
    for got, want in [(A @ X, full @ X), (A.T @ Y, full.T @ Y), (A @ X[:, 0], full @ X[:, 0])]:
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want)
    out = np.zeros((20, 7), dtype)
    assert ss.spmm(A, X, out=out) is out
    np.testing.assert_array_equal(out, full @ X)
    np.testing.assert_array_equal(A.toarray(), full)
    np.testing.assert_array_equal(A.astype(np.float64) @ X.astype(float), full @ X)
    assert A.with_values(A.data + 1).dtype == dtype
    assert A.with_values(np.ones(A.nnz)).dtype == np.float64
    import pickle

    assert pickle.loads(pickle.dumps(A)).dtype == dtype
    # Entries at one place are added up.
    twice = ss.csr(([2, 3, 4], [1, 1, 0], [0, 3]), shape=(1, 2), dtype=dtype)
    np.testing.assert_array_equal(twice.toarray(), [[4, 5]])
    # 2^31 + 2^31 wraps around in 32 bits.
    top = np.array([[np.iinfo(dtype).max]], dtype)
    one = ss.csr(([1], [0], [0, 1]), shape=(1, 1), dtype=dtype)
    two = ss.csr(([2], [0], [0, 1]), shape=(1, 1), dtype=dtype)
    assert (one @ top)[0, 0] == top[0, 0] and (two @ top)[0, 0] == -2
    with pytest.raises(TypeError, match="^A: has integers"):
        ss.sddmm(A, np.ones((20, 2)), np.ones((2, 30)))
    with pytest.raises(TypeError, match="^A: has integers"):
        A.prepare("spmm", 4)
    with pytest.raises(TypeError, match="^X: float64 does not fit int"):
        A @ np.ones((30, 2))
    with pytest.raises(ValueError, match="^alpha: "):
        ss.spmm(A, X, alpha=2.0)
    with pytest.raises(TypeError, match="^A: has integers"):
        ss.spmm(A, X, reduce="max", return_positions=True)


@hypothesis.given(
    shape=shapes,
    density=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    dtype=st.sampled_from([np.int32, np.int64]),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32),
)
@settings
def test_mean_max_min_of_integers(shape, density, dtype, kind, seed):
    """Maxima and minima are those of numpy, products that wrap around included; the mean is float64, as numpy's."""
    rng = np.random.default_rng(seed)
    m, k, n = shape
    _, indices, indptr = random_csr(rng, m, k, density)
    for largest in (50, 2**20):
        data = rng.integers(-largest, largest, len(indices)).astype(dtype)
        A = ss.csr((data, indices, indptr), shape=(m, k), dtype=dtype)
        with np.errstate(invalid="ignore"):  # what is between its rows
            X = strided(rng.integers(-largest, largest, (k, n)).astype(dtype), kind)
        terms = data[:, None] * X[indices]
        exact = data[:, None].astype(np.float64) * X[indices]
        want = {reduce: np.zeros((m, n), dtype) for reduce in ("max", "min")}
        mean, magnitude = np.zeros((2, m, n))
        for i, row in enumerate(rows_of((data, indices, indptr))):
            if row.start < row.stop:
                want["max"][i], want["min"][i] = terms[row].max(axis=0), terms[row].min(axis=0)
                mean[i], magnitude[i] = exact[row].mean(axis=0), np.abs(exact[row]).mean(axis=0)
        for reduce, expected in want.items():
            got, out = ss.spmm(A, X, reduce=reduce), np.full((m, n), -1, dtype)
            assert got.dtype == dtype and ss.spmm(A, X, reduce=reduce, out=out) is out
            np.testing.assert_array_equal(got, expected)
            np.testing.assert_array_equal(out, expected)
        assert_close(ss.spmm(A, X, reduce="mean"), mean, magnitude, 2 * k + 2, np.dtype(np.float64))
        out = np.full((m, n), np.nan)
        assert ss.spmm(A, X, reduce="mean", out=out) is out
        with pytest.raises(TypeError, match="^out: int"):
            ss.spmm(A, X, reduce="mean", out=np.zeros((m, n), dtype))


def assert_rounded(got, reference, magnitude, terms, half):
    """Sums in single precision, rounded once to `half`: of 11 or 8 bits, float16's subnormal numbers 2^-24 apart."""
    assert got.dtype == half
    unit, least = (2.0**-11, 2.0**-24) if half == np.float16 else (2.0**-8, 0.0)
    sums = 2 * (np.asarray(terms) + 4) * np.finfo(np.float32).eps * magnitude
    error = np.abs(got.astype(np.float64) - reference)
    assert (error <= sums + unit * (np.abs(reference) + sums) + least).all()


@pytest.mark.parametrize("half", half_types(), ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_halves(rng, half, kind):
    m, k, n = 40, 50, 24
    arrays = random_csr(rng, m, k, 0.2, np.float32)
    A, full = ss.csr(arrays, shape=(m, k)), dense_of(*arrays, (m, k))
    X, Y = (strided(rng.uniform(-1, 1, (r, n)).astype(half), kind) for r in (k, m))
    x, y = X.astype(np.float64), Y.astype(np.float64)
    # The dtype that numpy promotes both to.
    for got in (ss.spmm(A, X), A @ X, ss.spmm(A, X, out=np.empty((m, n), np.float32))):
        assert got.dtype == np.result_type(np.float32, half) == np.float32
        assert_close(got, full @ x, np.abs(full) @ np.abs(x), k, np.dtype(np.float32))
    assert_close(A.T @ Y, full.T @ y, np.abs(full.T) @ np.abs(y), m, np.dtype(np.float32))
    assert (A @ X[:, 0]).dtype == (Y.T @ A).dtype == np.float32
    assert_rounded(ss.spmm(A, X, out=np.empty((m, n), half)), full @ x, np.abs(full) @ np.abs(x), k, half)
    for strategy in ("direct", "panel"):
        plan = A.prepare("spmm", n, strategy=strategy)
        out = np.zeros((m, n), half)
        assert ss.spmm(plan, X, out=out) is out
        assert_rounded(out, full @ x, np.abs(full) @ np.abs(x), k, half)
    rows = np.repeat(np.arange(m), np.diff(A.indptr))
    dots, magnitude = (y @ x.T)[rows, A.indices], (np.abs(y) @ np.abs(x.T))[rows, A.indices]
    assert_close(ss.sddmm(A, Y, X.T), dots, magnitude, n, np.dtype(np.float32))
    got = ss.fusedmm(A, Y, X, X, edge="scale")
    weights = np.zeros((m, k))
    weights[rows, A.indices] = dots * A.data
    bound = np.zeros((m, k))
    bound[rows, A.indices] = magnitude * np.abs(A.data)
    assert_rounded(got, weights @ x, 2 * bound @ np.abs(x), n + k, half)
    assert ss.attention(A, Y, X, X).dtype == half
    np.testing.assert_allclose(
        ss.attention(A, Y, X, X, return_lse=True)[1], ss.attention(A.astype(np.float64), y, x, x, return_lse=True)[1],
        rtol=1e-5,
    )  # fmt: skip
    # Values of 16 bits become single precision.
    B = ss.csr((A.data.astype(half), A.indices, A.indptr), shape=A.shape)
    assert B.dtype == np.float32 and A.with_values(B.data.astype(half)).dtype == np.float32
    np.testing.assert_array_equal(B.data, A.data.astype(half).astype(np.float32))
    # A double-precision matrix widens them.
    assert (A.astype(np.float64) @ X).dtype == np.float64


def test_half_operands_that_do_not_fit(rng):
    A = ss.csr(random_csr(rng, 4, 6, 0.9, np.float32), shape=(4, 6))
    X = np.ones((6, 3), np.float16)
    with pytest.raises(TypeError, match="^Y: float32; float16 is expected"):
        ss.fusedmm(A, X[:4], X.astype(np.float32), X)
    out = np.zeros((4, 3), np.float16)
    with pytest.raises(TypeError, match="^out: float16; float32"):
        ss.spmm(A, X.astype(np.float32), out=out)
    for arguments in ({}, {"out": out.astype(np.float32)}):
        with pytest.raises(ValueError, match="^X: would have to be copied"):
            ss.spmm(A, X, copy=False, **arguments)
    with pytest.raises(ValueError, match="^X: would have to be copied"):
        ss.spmm(A, np.asfortranarray(X), copy=False, out=out)
    ss.spmm(A, X, copy=False, out=out)
    others = [half for half in half_types() if half != np.float16]
    for other in others:
        with pytest.raises(TypeError, match="^out: bfloat16; float32"):
            ss.spmm(A, X, out=np.zeros((4, 3), other))
    with pytest.raises(ValueError, match="^out: its memory overlaps"):
        ss.spmm(A, X, out=X[:4])


def test_errors(rng):
    A = ss.csr(random_csr(rng, 4, 6, 0.9), shape=(4, 6))
    X = np.ones((6, 3))
    with pytest.raises(ValueError, match='^reduce: "sums" is none of sum, mean, max, min'):
        ss.spmm(A, X, reduce="sums")
    with pytest.raises(ValueError, match='^semiring: "plus" is none of plus-times'):
        ss.spmm(A, X, semiring="plus")
    with pytest.raises(ValueError, match="^reduce: .* with a semiring"):
        ss.spmm(A, X, reduce="max", semiring="min-plus")
    with pytest.raises(ValueError, match="^return_positions: "):
        ss.spmm(A, X, reduce="mean", return_positions=True)
    with pytest.raises(ValueError, match="^beta: "):
        ss.spmm(A, X, reduce="max", beta=1.0, out=np.zeros((4, 3)))

"""Tensors: MTTKRP, TTM, TTV, arithmetic, conversions, decompositions."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import KINDS, assert_close, half_types, real_data, strided
from hypothesis import given, settings
from hypothesis import strategies as st

import sparsimd as ss

FORMATS = ["coo", "csf-all", "csf-one", "csf-two", "bcsf", "mmcsf", "hicoo", "alto", "tiled", "tree", "joint"]


def random_tensor(rng, shape, nnz, dtype=np.float64):
    coords = np.stack([rng.integers(0, n, nnz) for n in shape]) if min(shape) else np.zeros((len(shape), 0), int)
    coords = np.unique(coords, axis=1)
    return coords, rng.uniform(-1, 1, coords.shape[1]).astype(dtype)


def khatri_rao(coords, values, factors, mode):
    """MTTKRP and the sum of magnitudes, in double precision."""
    rank = next(f.shape[1] for m, f in enumerate(factors) if m != mode)
    rows = np.repeat(values.astype(np.float64)[:, None], rank, axis=1)
    for m, factor in enumerate(factors):
        if m != mode:
            rows = rows * factor.astype(np.float64)[coords[m]]
    length = factors[mode].shape[0]
    out, magnitude = np.zeros((length, rank)), np.zeros((length, rank))
    np.add.at(out, coords[mode], rows)
    np.add.at(magnitude, coords[mode], np.abs(rows))
    return out, magnitude


@given(
    shape=st.lists(st.integers(1, 40), min_size=2, max_size=5),
    nnz=st.sampled_from([0, 1, 50, 2000]),
    rank=st.integers(1, 70),
    dtype=st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)]),
    kind=st.sampled_from(KINDS),
    format=st.sampled_from(["auto", *FORMATS]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None)
def test_mttkrp(shape, nnz, rank, dtype, kind, format, seed):
    rng = np.random.default_rng(seed)
    coords, values = random_tensor(rng, shape, nnz, dtype)
    T = ss.Tensor(coords, values, shape)
    factors = [strided(rng.uniform(-1, 1, (n, rank)).astype(dtype), kind) for n in shape]
    prepared = T.prepare(rank, format)
    for mode in range(len(shape)):
        expected, magnitude = khatri_rao(coords, values, factors, mode)
        got = ss.mttkrp(prepared, factors, mode)
        assert_close(got, expected, magnitude, len(values) + len(shape), dtype)
        given = [None if m == mode else f for m, f in enumerate(factors)]
        out = strided(np.full((shape[mode], rank), np.nan, dtype), "padded")
        assert ss.mttkrp(prepared, given, mode - len(shape), out=out) is out
        np.testing.assert_array_equal(out, got)
    assert_close(ss.mttkrp(T, factors, 0), *khatri_rao(coords, values, factors, 0), len(values) + len(shape), dtype)


@pytest.mark.parametrize("half", half_types())
@pytest.mark.parametrize("format", ["auto", "coo", "csf-all", "hicoo", "tiled", "tree"])
def test_factors_of_halves(rng, half, format):
    """Exact numbers of 16 bits: products and sums are those of single precision, and mixed types are widened."""
    shape, rank = (20, 30, 25), 17
    coords, values = random_tensor(rng, shape, 500, np.float32)
    T = ss.Tensor(coords, values, shape)
    factors = [rng.uniform(-1, 1, (n, rank)).astype(half) for n in shape]
    wide = [factor.astype(np.float32) for factor in factors]
    prepared = pickle.loads(pickle.dumps(T.prepare(rank, format, factors=half)))
    for mode in range(3):
        for given in (factors, [*factors[:2], wide[2]], [np.asfortranarray(factor) for factor in factors]):
            got = ss.mttkrp(prepared, given, mode)
            assert got.dtype == np.float32
            assert_close(got, *khatri_rao(coords, values, wide, mode), len(values) + len(shape), np.dtype(np.float32))
        U = factors[mode].T
        got, want = ss.ttm(T, U, mode), ss.ttm(T, wide[mode].T, mode)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got.toarray(), want.toarray())
    # A tensor is prepared anew for other factors.
    for given in (wide, factors, wide):
        got = ss.mttkrp(T, given, 1)
        assert_close(got, *khatri_rao(coords, values, wide, 1), len(values) + len(shape), np.dtype(np.float32))
    assert T.prepare(64, "tiled", factors=half).explain() != T.prepare(64, "tiled").explain()
    assert ss.mttkrp(ss.Tensor(coords, values.astype(np.float64), shape), factors, 0).dtype == np.float64
    with pytest.raises(ValueError, match="^factors\\[1\\]: has shape"):
        ss.mttkrp(T, [factors[0], factors[1][:-1], factors[2]], 0)


@given(
    shape=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    nnz=st.sampled_from([0, 1, 30, 300]),
    dtype=st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None)
def test_products_and_arithmetic(shape, nnz, dtype, seed):
    rng = np.random.default_rng(seed)
    close = dict(rtol=1e-5, atol=1e-5)
    T = ss.Tensor(*random_tensor(rng, shape, nnz, dtype), shape)
    S = ss.Tensor(*random_tensor(rng, shape, nnz, dtype), shape)
    t, s = T.toarray(), S.toarray()
    assert T.shape == tuple(shape) and T.ndim == len(shape) and T.dtype == dtype
    for mode, length in enumerate(shape):
        U, v = rng.uniform(-1, 1, (5, length)).astype(dtype), rng.uniform(-1, 1, length).astype(dtype)
        expected = np.moveaxis(np.tensordot(U, t, (1, mode)), 0, mode)
        for u in (U, np.asfortranarray(U)):
            Y = ss.ttm(T, u, mode)
            assert Y.shape == expected.shape and Y.dtype == dtype
            np.testing.assert_allclose(Y.toarray(), expected, **close)
        y = ss.ttv(T, v, mode - len(shape))
        y = y.toarray() if len(shape) > 1 else y
        np.testing.assert_allclose(y, np.tensordot(t, v, (mode, 0)), **close)
    np.testing.assert_allclose((T + S).toarray(), t + s, **close)
    np.testing.assert_allclose((T - S).toarray(), t - s, **close)
    np.testing.assert_allclose((T * S).toarray(), t * s, **close)
    np.testing.assert_allclose((T * 2.5).toarray(), t * 2.5, **close)
    np.testing.assert_allclose((np.float64(2) * T).toarray(), t * 2, **close)
    np.testing.assert_allclose((T / 4).toarray(), t / 4, **close)
    np.testing.assert_allclose((-T).toarray(), -t, **close)
    again = pickle.loads(pickle.dumps(T))
    np.testing.assert_array_equal(again.coords, T.coords)
    np.testing.assert_array_equal(again.values, T.values)


def test_mixed_precision(rng):
    coords, values = random_tensor(rng, (4, 5, 6), 30, np.float32)
    T = ss.Tensor(coords, values, (4, 5, 6))
    S = ss.Tensor(coords, values.astype(np.float64), (4, 5, 6))
    assert (T + T).dtype == np.float32 and (T + S).dtype == np.float64
    with pytest.raises(TypeError, match=r"^factors\[0\]: float64 does not fit float32"):
        ss.mttkrp(T, [np.ones((n, 2)) for n in (4, 5, 6)], 1)


def test_duplicates_are_added_up():
    T = ss.Tensor([[0, 1, 0], [2, 0, 2]], [1.0, 2.0, 4.0], (2, 3))
    assert T.nnz == 2
    np.testing.assert_array_equal(T.toarray(), [[0, 0, 5], [2, 0, 0]])


REFUSED = [
    (
        lambda: ss.Tensor([[0], [3]], [1.0], (2, 3)),
        ValueError,
        "^coords: entry 0: coordinate 3 of mode 1 is not below 3",
    ),
    (lambda: ss.Tensor([[0], [-1]], [1.0], (2, 3)), ValueError, "^coords: -1 at position 0 is negative"),
    (lambda: ss.Tensor([[0], [1]], [1.0, 2.0], (2, 3)), ValueError, "^coords: 1 in mode 0 for 2 values"),
    (lambda: ss.Tensor([[0]], [1.0], (2, 3)), ValueError, "^coords: 1 rows for a shape of 2 modes"),
    (lambda: ss.Tensor([[0]] * 9, [1.0], (1,) * 9), ValueError, "^shape: order 9"),
    (lambda: ss.Tensor([[0.5]], [1.0], (2,)), TypeError, "^coords: float64 are not integers"),
    (lambda: ss.Tensor([[0]], ["x"], (2,)), TypeError, "^values: .* are not real numbers"),
    (lambda: ss.Tensor([[0]], [1.0], (-2,)), ValueError, "^shape: -2 is negative"),
    (lambda: small().prepare(0), ValueError, "^rank: 0"),
    (lambda: small().prepare(-1), ValueError, "^rank: -1 is negative"),
    (lambda: small().prepare(4, factors="float16"), ValueError, "^factors: float16, where the tensor is of float64"),
    (lambda: small().prepare(4, factors="floats"), TypeError, "floats"),
    (lambda: wide().prepare(4, "alto"), ss.SparsimdError, "is not available"),
    (lambda: small().prepare(4, "tile"), ValueError, '^format: "tile" is none of auto, coo'),
    (lambda: ss.mttkrp(small(), ones(3), 3), ValueError, "^mode: 3 is not a mode of a tensor of order 3"),
    (lambda: ss.mttkrp(small(), ones(3)[:2], 0), ValueError, "^factors: 2 for a tensor of order 3"),
    (lambda: ss.mttkrp(small(), [*ones(3)[:2], np.ones((7, 3))], 0), ValueError, r"^factors\[2\]: has shape \(7, 3\)"),
    (lambda: ss.mttkrp(small(), [*ones(3)[:2], np.ones(6)], 0), ValueError, r"^factors\[2\]: "),
    (lambda: ss.mttkrp(np.eye(3), ones(3), 0), TypeError, "^T: ndarray is neither a Tensor"),
    (lambda: ss.mttkrp(small(), ones(3), 0, out=np.ones((4, 2))), ValueError, "^out: has shape"),
    (lambda: ss.ttm(small(), np.ones((3, 3)), 1), ValueError, r"^U: the mode is 5 long: \(r, 5\) is expected"),
    (lambda: ss.ttm(small(), np.ones(5), 1), ValueError, "^U: "),
    (lambda: ss.ttv(small(), np.ones(3), 1), ValueError, "^v: 3 values for 5 indices of the mode"),
    (lambda: ss.ttv(np.eye(3), np.ones(3), 1), TypeError, "^T: ndarray is not a Tensor"),
    (lambda: small() + ss.Tensor([[0]], [1.0], (2,)), ValueError, "^other: has shape"),
    (lambda: small() / 0.0, ValueError, "^other: division by 0"),
    (lambda: small() + 1.0, TypeError, "unsupported operand"),
    (lambda: ss.cp_als(small(), 0), ValueError, "^rank: 0"),
    (lambda: ss.cp_als(small(), -1), ValueError, "^rank: -1 is negative"),
    (lambda: ss.cp_als(small(), 2, maxiters=0), ValueError, "^maxiters: 0"),
    (lambda: ss.cp_als(small(), 2, maxiters=-3), ValueError, "^maxiters: -3 is negative"),
    (lambda: ss.cp_als(small(), 2, seed=-1), ValueError, "^seed: -1 is negative"),
    (lambda: ss.cp_als(small(), 2, ridge=-1.0), ValueError, "^ridge: "),
    (lambda: ss.cp_als(small(), 2, init="svd"), ValueError, '^init: "svd" is not "random"'),
    (lambda: ss.cp_als(small(), 2, init=ones(3)[:2]), ValueError, "^init: "),
    (lambda: ss.cp_als(ss.Tensor([[0], [0]], [np.inf], (2, 2)), 2), ValueError, "not finite"),
    (lambda: ss.tucker(small(), (9, 9, 9)), ValueError, "^ranks: "),
    (lambda: ss.tucker(small(), (2, -2, 2)), ValueError, "^ranks: -2 is negative"),
    (lambda: ss.tucker(small(), 2, init="hosvd"), ValueError, "^init: "),
    (lambda: ss.tucker(np.eye(3), 2), TypeError, "^T: "),
]


def small():
    return ss.Tensor([[0, 1, 3], [4, 1, 0], [5, 0, 2]], [1.0, 2.0, 3.0], (4, 5, 6))


def wide():
    """A tensor whose coordinates do not fit one integer of 128 bits."""
    return ss.Tensor([[0, 1]] * 5, [1.0, 2.0], (2**31,) * 5)


def ones(rank):
    return [np.ones((n, rank)) for n in (4, 5, 6)]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_errors_name_the_argument(number):
    call, error, message = REFUSED[number]
    with pytest.raises(error, match=message):
        call()


def test_pyttb(rng):
    pyttb = pytest.importorskip("pyttb")
    shape = (7, 8, 9)
    coords, values = random_tensor(rng, shape, 100)
    X = pyttb.sptensor(np.ascontiguousarray(coords.T), values[:, None], shape)
    T = ss.Tensor.from_pyttb(X)
    np.testing.assert_array_equal(T.toarray(), X.full().data)
    assert T.to_pyttb().isequal(X)
    factors = [rng.uniform(-1, 1, (n, 4)) for n in shape]
    for mode in range(3):
        np.testing.assert_allclose(ss.mttkrp(T, factors, mode), X.mttkrp(factors, mode), atol=1e-12)
        U, v = rng.uniform(-1, 1, (3, shape[mode])), rng.uniform(-1, 1, shape[mode])
        np.testing.assert_allclose(ss.ttm(T, U, mode).toarray(), X.full().ttm(U, mode).data, atol=1e-12)
        np.testing.assert_allclose(ss.ttv(T, v, mode).toarray(), X.full().ttv(v, mode).data, atol=1e-12)
    np.testing.assert_array_equal(ss.Tensor.from_pyttb(X.full()).toarray(), X.full().data)
    with pytest.raises(TypeError, match="^x: "):
        ss.Tensor.from_pyttb(3)


@given(
    shape=st.lists(st.integers(1, 15), min_size=2, max_size=4),
    nnz=st.sampled_from([1, 20, 200]),
    rank=st.integers(1, 40),
    dtype=st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=40, deadline=None)
def test_mttkrp_of_pyttb_within_the_bound(shape, nnz, rank, dtype, seed):
    pyttb = pytest.importorskip("pyttb")
    rng = np.random.default_rng(seed)
    coords, values = random_tensor(rng, shape, nnz, dtype)
    factors = [rng.uniform(-1, 1, (n, rank)).astype(dtype) for n in shape]
    X = pyttb.sptensor(np.ascontiguousarray(coords.T), values[:, None].astype(np.float64), tuple(shape))
    T = ss.Tensor(coords, values, shape)
    for mode in range(len(shape)):
        theirs = X.mttkrp([f.astype(np.float64) for f in factors], mode)
        magnitude = khatri_rao(coords, values, factors, mode)[1]
        assert_close(ss.mttkrp(T, factors, mode), theirs, magnitude, len(values) + len(shape), dtype)


def test_cp_als_reaches_the_fit_of_pyttb(rng):
    pyttb = pytest.importorskip("pyttb")
    shape, rank = (20, 25, 30), 4
    coords, values = random_tensor(rng, shape, 1500)
    T = ss.Tensor(coords, values, shape)
    start = [rng.uniform(0, 1, (n, rank)) for n in shape]
    X = pyttb.sptensor(np.ascontiguousarray(coords.T), values[:, None], shape)
    model, _, info = pyttb.cp_als(
        X, rank, stoptol=0.0, maxiters=6, printitn=-1, init=pyttb.ktensor([f.copy() for f in start])
    )
    weights, factors, fits = ss.cp_als(T, rank, stoptol=0.0, maxiters=6, init=start)
    assert len(fits) == 6 and abs(fits[-1] - info["fit"]) < 1e-6
    reconstructed = np.einsum("r,ir,jr,kr->ijk", weights, *factors)
    np.testing.assert_allclose(reconstructed, model.full().data, atol=1e-6)


def test_other_packages(rng):
    coords, values = random_tensor(rng, (4, 5, 6), 40)
    T = ss.Tensor(coords, values, (4, 5, 6))
    np.testing.assert_array_equal(ss.Tensor.from_tensorly(T.toarray()).toarray(), T.toarray())
    scipy_sparse = pytest.importorskip("scipy.sparse")
    A = scipy_sparse.random_array((9, 8), density=0.3, rng=rng)
    np.testing.assert_array_equal(ss.Tensor.from_sparse(A).toarray(), A.toarray())
    try:
        import sparse
    except ImportError:
        with pytest.raises(ImportError, match="needs the package sparse"):
            T.to_sparse()
        return
    np.testing.assert_array_equal(ss.Tensor.from_sparse(T.to_sparse()).toarray(), T.toarray())
    assert isinstance(T.to_sparse(), sparse.COO)


def model(rng, shape=(30, 40, 50), nnz=6000):
    return ss.Tensor(*random_tensor(rng, shape, nnz), shape)


def test_cp_als(rng, tmp_path):
    T = model(rng)
    seen = []
    whole = ss.cp_als(T, 5, maxiters=8, stoptol=0, seed=3, callback=lambda number, fit: seen.append((number, fit)))
    assert [number for number, _ in seen] == list(range(1, 9))
    np.testing.assert_array_equal([fit for _, fit in seen], whole.fits)
    for factor in whole.factors:
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1, rtol=1e-12)
    checkpoint = tmp_path / "cp"
    ss.cp_als(T, 5, maxiters=4, stoptol=0, seed=3, checkpoint=checkpoint)
    resumed = ss.cp_als(T.prepare(5), 5, maxiters=8, stoptol=0, init=checkpoint)
    np.testing.assert_array_equal(resumed.fits, whole.fits)
    np.testing.assert_array_equal(resumed.weights, whole.weights)
    assert len(ss.cp_als(T, 5, maxiters=8, stoptol=0, callback=lambda number, _: number == 3).fits) == 3
    positive = ss.cp_als(T, 5, maxiters=3, nonnegative=True)
    assert all((factor >= 0).all() for factor in positive.factors)
    with pytest.raises(OSError):
        ss.cp_als(T, 5, checkpoint=tmp_path / "none" / "cp")
    with pytest.raises(FileNotFoundError):
        ss.cp_als(T, 5, init=tmp_path / "none")
    single = ss.cp_als(ss.Tensor(T.coords, T.values.astype(np.float32), T.shape), 3, maxiters=2)
    assert single.factors[0].dtype == np.float32 and single.weights.dtype == np.float64


def test_an_exception_of_the_callback_is_passed_on(rng):
    calls = []

    def fail(number, fit):
        calls.append(number)
        if number == 2:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        ss.cp_als(model(rng), 5, maxiters=50, stoptol=0, callback=fail)
    assert calls == [1, 2]


def test_callbacks_may_call_the_library(rng):
    T, A = model(rng), ss.csr(([1.0], [0], [0, 1]), shape=(1, 1))
    ss.cp_als(T, 5, maxiters=3, stoptol=0, callback=lambda *_: bool((A @ np.zeros((1, 1))).any()))


def test_tucker(rng, tmp_path):
    T = model(rng, (12, 14, 16), 900)
    t = T.toarray()
    core, factors, fits = ss.tucker(T, (3, 4, 5), maxiters=10)
    assert core.shape == (3, 4, 5) and [f.shape for f in factors] == [(12, 3), (14, 4), (16, 5)]
    for factor in factors:
        np.testing.assert_allclose(factor.T @ factor, np.eye(factor.shape[1]), atol=1e-12)
    rebuilt = np.einsum("abc,ia,jb,kc->ijk", core, *factors)
    assert abs(1 - np.linalg.norm(t - rebuilt) / np.linalg.norm(t) - fits[-1]) < 1e-10
    np.testing.assert_allclose(np.einsum("ijk,ia,jb,kc->abc", t, *factors), core, atol=1e-10)
    assert ss.tucker(T, 3, init="random", seed=1, maxiters=2).core.shape == (3, 3, 3)
    ss.tucker(T, 3, maxiters=2, stoptol=0, checkpoint=tmp_path / "t")
    seen = []
    resumed = ss.tucker(T, 3, maxiters=5, stoptol=0, init=tmp_path / "t", callback=lambda n, fit: seen.append(n))
    assert seen == [3, 4, 5] and len(resumed.fits) == 5
    given = ss.tucker(T, 3, maxiters=1, init=list(resumed.factors))
    assert given.fits[-1] >= resumed.fits[-2] - 1e-9


INTERRUPTED = """
import os, signal, threading, time, warnings
import numpy as np, sparsimd as ss
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
rng = np.random.default_rng(0)
shape = (300, 300, 300)
coords = np.unique(rng.integers(0, 300, (3, 200000)), axis=1)
T = ss.Tensor(coords, rng.uniform(-1, 1, coords.shape[1]), shape)
def press():
    time.sleep(0.7)
    os.kill(os.getpid(), signal.SIGINT)
def run(maxiters):
    if "DECOMPOSITION" == "tucker":
        return ss.tucker(T, 4, maxiters=maxiters, stoptol=0, init="random")
    return ss.cp_als(T, 16, maxiters=maxiters, stoptol=0)
run(1)
threading.Thread(target=press).start()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    started = time.monotonic()
    result = run(10**6)
    took = time.monotonic() - started
print(len(result.fits), took, [str(w.message) for w in caught])
assert len(result.fits) > 1 and took < 3 and "interrupted after iteration" in str(caught[0].message)
"""


@pytest.mark.parametrize("decomposition", ["cp_als", "tucker"])
def test_ctrl_c_ends_a_run_with_what_there_is(decomposition):
    code = INTERRUPTED.replace("DECOMPOSITION", decomposition)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no alarm signal")
def test_an_exception_of_a_handler_is_passed_on(rng):
    T = model(rng)

    def ring(number, frame):
        raise TimeoutError("ring")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(TimeoutError, match="ring"):
            ss.cp_als(T, 8, maxiters=10**7, stoptol=0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_other_threads_go_on(rng):
    T, counted, stop = model(rng), [0], threading.Event()

    def count():
        while not stop.wait(0.001):
            counted[0] += 1

    counter = threading.Thread(target=count)
    counter.start()
    ss.cp_als(T, 16, maxiters=200, stoptol=0)
    stop.set()
    counter.join()
    assert counted[0] > 5


def test_files(tmp_path, rng, dtype):
    T = ss.Tensor(*random_tensor(rng, (4, 5, 6), 40, dtype), (4, 5, 6))
    for name in ("t.tns", "t.tns.gz", "t.tnsb"):
        ss.write(tmp_path / name, T)
        S = ss.read(tmp_path / name, dtype=dtype)
        assert S.shape == T.shape and S.dtype == dtype
        np.testing.assert_array_equal(S.toarray(), T.toarray())
    (tmp_path / "twice.tns").write_text("0 0 1.5\n0 0 2\n")
    with pytest.raises(ValueError, match="twice.tns:2: "):
        ss.read(tmp_path / "twice.tns", zero_based=True)
    assert ss.read(tmp_path / "twice.tns", zero_based=True, sum_duplicates=True).values == [3.5]
    with pytest.raises(ValueError, match="^path: "):
        ss.write(tmp_path / "a.txt", ss.csr(([1.0], [0], [0, 1])))


def test_plans(rng):
    T = model(rng)
    prepared = T.prepare(16, "csf-all")
    assert (prepared.format, prepared.rank, prepared.shape, prepared.nnz) == ("csf-all", 16, T.shape, T.nnz)
    assert "csf-all" in prepared.explain() and "csf-all" in repr(prepared)
    again = pickle.loads(pickle.dumps(prepared))
    factors = [rng.uniform(-1, 1, (n, 16)) for n in T.shape]
    np.testing.assert_array_equal(ss.mttkrp(again, factors, 1), ss.mttkrp(prepared, factors, 1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_decompositions_after_a_fork(rng):
    T = model(rng)
    expected = ss.cp_als(T, 5, maxiters=3, stoptol=0).fits
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = int(not np.array_equal(ss.cp_als(T, 5, maxiters=3, stoptol=0).fits, expected))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_real_tensor():
    T = ss.read(real_data("aminoacid.tns"))
    weights, factors, fits = ss.cp_als(T, 3, maxiters=200, stoptol=1e-8)
    assert fits[-1] > 0.97

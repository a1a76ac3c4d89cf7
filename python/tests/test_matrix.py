"""Making matrices: from scipy and arrays, refused ones, pickles, files."""

from __future__ import annotations

import errno
import os
import pickle

import numpy as np
import pytest
from conftest import DATA, dense_of, random_csr

import sparsimd as ss

scipy_sparse = pytest.importorskip("scipy.sparse")


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "lil", "dok", "dia"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_scipy_formats(rng, dtype, form, kind):
    base = getattr(scipy_sparse, f"csr_{kind}")(scipy_sparse.random_array((40, 60), density=0.1, rng=rng), dtype=dtype)
    other = base.asformat(form)
    A = ss.csr(other)
    assert (A.shape, A.dtype) == ((40, 60), dtype)
    np.testing.assert_array_equal(A.toarray(), base.toarray())
    X = rng.uniform(-1, 1, (60, 7)).astype(dtype)
    np.testing.assert_allclose(ss.spmm(other, X), other @ X, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(A.to_scipy().toarray(), base.toarray())


@pytest.mark.parametrize("index", [np.int32, np.int64, np.uint16])
def test_unsorted_and_duplicate_entries(rng, dtype, index):
    data, indices, indptr = random_csr(rng, 50, 40, 0.3, dtype, sort=False)
    indices, indptr = indices.astype(index), indptr.astype(index)
    A = ss.csr((data, indices, indptr), shape=(50, 40))
    assert np.shares_memory(A.data, data)
    np.testing.assert_array_equal(A.indices, indices)
    np.testing.assert_array_equal(A.indptr, indptr)
    # Every entry twice, the second time in reverse.
    twice = np.concatenate([np.concatenate([indices[a:b], indices[a:b][::-1]]) for a, b in zip(indptr, indptr[1:])])
    values = np.concatenate([np.concatenate([data[a:b], data[a:b][::-1]]) for a, b in zip(indptr, indptr[1:])])
    before = values.copy()
    B = ss.csr((values, twice, indptr * 2), shape=(50, 40))
    assert B.nnz == A.nnz and (np.diff(B.indices)[np.diff(B.indices) < 0].size < 50)
    np.testing.assert_array_equal(B.toarray(), 2 * A.toarray())
    np.testing.assert_array_equal(values, before)
    coo = scipy_sparse.coo_array((np.ones(3), ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    np.testing.assert_array_equal(ss.csr(coo).toarray(), coo.toarray())


def test_indices_are_copied_and_read_only(rng, dtype):
    data, indices, indptr = random_csr(rng, 50, 40, 0.3, dtype)
    expected = dense_of(data, indices, indptr, (50, 40))
    A = ss.csr((data, indices, indptr), shape=(50, 40))
    indices[:] = 10**6
    indptr[:] = -1
    np.testing.assert_allclose(A @ np.eye(40, dtype=dtype), expected)
    for array in (A.indices, A.indptr):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError):
            array.flags.writeable = True
    view = A.indices
    del A
    assert view.max() < 40


def test_pickle(rng, dtype):
    A = ss.csr(random_csr(rng, 50, 40, 0.3, dtype), shape=(50, 45))
    X, Y = rng.uniform(-1, 1, (45, 16)).astype(dtype), rng.uniform(-1, 1, (50, 16)).astype(dtype)
    B = pickle.loads(pickle.dumps(A))
    assert (B.shape, B.dtype, B.nnz) == (A.shape, A.dtype, A.nnz)
    np.testing.assert_array_equal(B @ X, A @ X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(A.T)) @ Y, A.T @ Y)
    for strategy, n in (("direct", 16), ("panel", 16), ("slices", 1)):
        plan = A.prepare("spmm", n, strategy=strategy, reuse=50)
        again = pickle.loads(pickle.dumps(plan))
        assert (again.op, again.n, again.strategy, again.explain()) == ("spmm", n, strategy, plan.explain())
        np.testing.assert_array_equal(again @ X, plan @ X)


def test_properties(rng, dtype):
    A = ss.csr(random_csr(rng, 5, 7, 0.5, dtype), shape=(5, 7))
    assert repr(A) == f"<sparsimd.CSR 5 x 7, {A.nnz} nonzeros, {dtype}>"
    assert repr(A.T) == repr(A) + ".T"
    assert (A.T.shape, A.T.dtype, A.T.nnz, A.ndim) == ((7, 5), dtype, A.nnz, 2)
    assert A.T.T is A
    assert ss.csr(A) is A and ss.csr(A, dtype=dtype) is A
    np.testing.assert_array_equal(ss.csr(A.T).toarray(), A.toarray().T)
    B = A.with_values(np.arange(A.nnz))
    assert B.dtype == dtype
    np.testing.assert_array_equal(B.data, np.arange(A.nnz))
    values = np.ones(A.nnz, np.float64)
    C = A.with_values(values)
    assert C.dtype == np.float64 and np.shares_memory(C.data, values)
    assert A.astype(np.float32).dtype == np.float32


def test_linear_operator(rng):
    linalg = pytest.importorskip("scipy.sparse.linalg")
    n = 60
    base = scipy_sparse.random_array((n, n), density=0.1, rng=rng) + scipy_sparse.eye_array(n) * 8
    base = (base + base.T).tocsr()
    operator = linalg.aslinearoperator(ss.csr(base))
    b = rng.uniform(-1, 1, n)
    x, failed = linalg.cg(operator, b, rtol=1e-10)
    assert not failed
    np.testing.assert_allclose(base @ x, b, atol=1e-8)
    np.testing.assert_allclose(operator.rmatvec(b), base.T @ b)
    np.testing.assert_allclose(operator.matmat(np.stack([b, x], 1)), base @ np.stack([b, x], 1))


def test_linear_operator_of_the_transpose(rng):
    linalg = pytest.importorskip("scipy.sparse.linalg")
    base = scipy_sparse.random_array((40, 60), density=0.2, rng=rng).tocsr()
    operator = linalg.aslinearoperator(ss.csr(base).T)
    x, y = rng.uniform(-1, 1, 40), rng.uniform(-1, 1, (60, 3))
    assert (operator.shape, operator.dtype) == ((60, 40), np.float64)
    np.testing.assert_allclose(operator.matvec(x), base.T @ x)
    np.testing.assert_allclose(operator.matmat(np.stack([x, 2 * x], 1)), base.T @ np.stack([x, 2 * x], 1))
    np.testing.assert_allclose(operator.rmatvec(y[:, 0]), base @ y[:, 0])
    np.testing.assert_allclose(operator.rmatmat(y), base @ y)
    largest = linalg.svds(ss.csr(base), k=3, return_singular_vectors=False)
    np.testing.assert_allclose(np.sort(largest), np.sort(np.linalg.svd(base.toarray())[1])[-3:])


def test_numpy_leaves_products_to_the_matrix(rng):
    A = ss.csr(random_csr(rng, 6, 6, 0.5), shape=(6, 6))
    T = ss.Tensor([[0], [1]], [2.0], (2, 2))
    for operand in (A, A.T, A.prepare("spmm", 6), T):
        assert operand.__array_ufunc__ is None
        with pytest.raises(TypeError):
            np.ones(6) + operand
        with pytest.raises(TypeError):
            np.sin(operand)
    # An array of objects would be what numpy makes of an unknown operand.
    left = np.ones((3, 6)) @ A
    assert type(left) is np.ndarray and left.dtype == np.float64 and left.shape == (3, 6)


REFUSED = [
    (([1.0], [0], [0, 2]), (1, 1), ValueError, "^A: the last row pointer is 2"),
    (([1.0], [3], [0, 1]), (1, 3), ValueError, "^A: row 0: column index 3 is not below 3"),
    (([1.0], [-1], [0, 1]), (1, 3), ValueError, "^indices: -1 at position 0 is negative"),
    (([1.0], [2**40], [0, 1]), (1, 3), ValueError, "^indices: 1099511627776 at position 0"),
    (([1.0], [0], [0, -1]), (1, 3), ValueError, "^indptr: -1 at position 1 is negative"),
    (([1.0, 1.0], [0, 1], [1, 2]), (1, 3), ValueError, "^(A|data): "),
    (([1.0, 1.0], [0], [0, 1]), (1, 3), ValueError, "^data: 2 values for 1 column indices"),
    (([1.0], [0], [0, 1, 0]), (2, 3), ValueError, "^A: row 1: pointers decrease"),
    (([1.0], [0], [0, 1]), (2, 3), ValueError, "^A: 2 row pointers for 2 rows"),
    (([1.0], [0.5], [0, 1]), (1, 3), TypeError, "^indices: float64 are not integers"),
    ((["x"], [0], [0, 1]), (1, 3), TypeError, "^A: .* are not real numbers"),
    (([1j], [0], [0, 1]), (1, 3), TypeError, "^A: complex128 are not real numbers"),
    (([1.0], [0], [0, 1]), (1, -3), ValueError, "^shape: "),
    (([1.0], [0], [0, 1]), (1, 2**70), ValueError, "^shape: 1180591620717411303424 is negative or too large"),
    (([1.0], [0], [0, 1]), (1, 2**40), ValueError, "^A: dimension 1099511627776 exceeds"),
    (([[1.0]], [0], [0, 1]), (1, 3), ValueError, "^data: has 2 dimensions"),
    (([1.0], [0], [0, 1]), 3, ValueError, r"^shape: 3 is not \(rows, columns\)"),
    (([1.0], [0], [0, 1]), (1, 3, 1), ValueError, r"^shape: \(1, 3, 1\) is not \(rows, columns\)"),
    (([1.0], [0]), (1, 3), ValueError, "^A: a tuple of 2"),
]


@pytest.mark.parametrize("arrays, shape, error, message", REFUSED)
def test_refused(arrays, shape, error, message):
    with pytest.raises(error, match=message):
        ss.csr(arrays, shape=shape)


def test_types_that_are_no_matrix():
    for what in (np.eye(2), "text", 3.0, None, [1, 2]):
        with pytest.raises(TypeError, match="^A: "):
            ss.csr(what)
    with pytest.raises(TypeError, match="^dtype: int16"):
        ss.csr(([1.0], [0], [0, 1]), shape=(1, 1), dtype=np.int16)
    for make in (ss.csr, lambda arrays, **options: ss.empty((1, 1), options["dtype"])):
        with pytest.raises(TypeError, match="^dtype: .*quad"):
            make(([1.0], [0], [0, 1]), shape=(1, 1), dtype="quad")
    with pytest.raises(TypeError, match="real numbers"):
        ss.csr(scipy_sparse.eye_array(3, dtype=complex))


def test_no_nonzeros_and_no_rows():
    for shape in [(0, 0), (0, 5), (5, 0), (4, 5)]:
        A = ss.csr(([], [], np.zeros(shape[0] + 1, int)), shape=shape)
        assert (A.shape, A.nnz) == (shape, 0)
        np.testing.assert_array_equal(A @ np.ones((shape[1], 3)), np.zeros((shape[0], 3)))
        np.testing.assert_array_equal(A.T @ np.ones((shape[0], 3)), np.zeros((shape[1], 3)))


def test_files(tmp_path, rng, dtype):
    A = ss.csr(random_csr(rng, 9, 7, 0.4, dtype), shape=(9, 7))
    for name in ("a.mtx", "a.mtx.gz"):
        ss.write(tmp_path / name, A)
        B = ss.read(tmp_path / name, dtype=dtype)
        assert (B.shape, B.dtype) == (A.shape, dtype)
        np.testing.assert_array_equal(B.toarray(), A.toarray())
    ss.write(str(tmp_path / "a.smtx"), A.to_scipy())
    np.testing.assert_array_equal(ss.read(tmp_path / "a.smtx").toarray(), A.toarray() != 0)
    assert ss.read(DATA / "ca-CondMat.mtx.gz").nnz == 186936


def test_file_errors(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        ss.read(tmp_path / "none.mtx")
    assert (caught.value.filename, caught.value.strerror) == (str(tmp_path / "none.mtx"), os.strerror(errno.ENOENT))
    (tmp_path / "bad.mtx").write_text("%%MatrixMarket matrix coordinate real general\n2 2 1\n1 x 3\n")
    with pytest.raises(ValueError, match="bad.mtx:3: "):
        ss.read(tmp_path / "bad.mtx")
    with pytest.raises(ValueError, match="^path: "):
        ss.read(tmp_path / "a.txt")
    with pytest.raises(OSError):
        ss.write(tmp_path / "none" / "a.mtx", ss.csr(([1.0], [0], [0, 1])))
    with pytest.raises(TypeError, match="^dtype: "):
        ss.read(tmp_path / "a.mtx", dtype=int)


def test_block_diagonal(rng, dtype):
    """Blocks of every kind, also without rows, columns or nonzeros, and of mixed dtypes."""
    shapes = [(5, 7), (0, 3), (4, 0), (6, 2)]
    blocks = [scipy_sparse.random_array(shape, density=0.4, rng=rng, dtype=dtype).tocsr() for shape in shapes]
    got = ss.block_diagonal(blocks)
    np.testing.assert_array_equal(got.toarray(), scipy_sparse.block_diag(blocks, format="csr").toarray())
    assert got.dtype == dtype
    assert ss.block_diagonal([ss.csr(blocks[0]), ss.csr(blocks[3], dtype=np.int64)]).dtype == np.float64
    with pytest.raises(ValueError, match="^matrices: "):
        ss.block_diagonal([])

"""Operators of PyTorch keep the pattern that they last had; what changes it is noticed."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import random_csr

torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)

from torch_operands import dense, uniform  # noqa: E402

import sparsimd.torch as st  # noqa: E402


def test_views_of_one_index_tensor_are_told_apart():
    crow, values, X = torch.tensor([0, 2]), torch.ones(2), torch.arange(4.0)[:, None]
    col = torch.arange(4)
    assert st.spmm(crow, col[:2], values, X).item() == 1
    assert st.spmm(crow, col[::2], values, X).item() == 2


def test_changed_indices_are_noticed(rng):
    data, indices, indptr = random_csr(rng, 12, 15, 0.3)
    crow, col, values = (torch.from_numpy(x) for x in (indptr, indices, data))
    X = uniform(15, 3)
    st.spmm(crow, col, values, X)
    col[0] = next(j for j in range(15) if j not in col[: crow[1]])
    torch.testing.assert_close(st.spmm(crow, col, values, X), dense(crow, col, values, 15) @ X)
    for _ in range(st.PATTERNS + 5):
        st.spmm(crow.clone(), col.clone(), values, X)
    # Other memory in the same tensor.
    st.spmm(crow, col, values, X)
    other = col.clone()
    other[0] = next(j for j in range(15) if j not in col[: crow[1]])
    col.data = other
    torch.testing.assert_close(st.spmm(crow, col, values, X), dense(crow, col, values, 15) @ X)


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_whoever_writes_to_the_indices_is_noticed(rng, monkeypatch, index, exchanges):
    """By arrays of numpy that share the memory, by `data`, and where torch counts no versions; beyond what one thread compares, too."""
    monkeypatch.setattr("sparsimd._operators._EXCHANGES", exchanges and st._ops._EXCHANGES)
    for m, k, density in [(12, 15, 0.3), (400, 700, 0.4)]:
        data, indices, indptr = random_csr(rng, m, k, density)
        indices, indptr = indices.astype(index), indptr.astype(index)
        crow, col, values = (torch.from_numpy(x) for x in (indptr, indices, data))
        X, Y = uniform(k, 3), uniform(m, 3)

        def right(crow=crow, col=col, values=values, X=X, Y=Y, k=k):
            A = dense(crow, col, values, k)
            torch.testing.assert_close(st.spmm(crow, col, values, X), A @ X)
            rows = torch.repeat_interleave(torch.arange(len(crow) - 1), crow.diff())
            torch.testing.assert_close(st.sddmm(crow, col, Y, X.t()), (Y @ X.t())[rows, col.long()])

        right()
        version = col._version
        # The last nonzero of the last row that has one moves to a column that the row does not have.
        row = indices[indptr[-2] : indptr[-1]]
        row[-1] = np.setdiff1d(np.arange(k), row)[-1]
        assert col._version == version
        right()
        # The first row loses its last nonzero to the second, if that does not have it.
        last = indices[indptr[1] - 1]
        if last not in indices[indptr[1] : indptr[2]]:
            indptr[1] -= 1
            right()
        row[-1] = k + 5
        with pytest.raises(ValueError, match="^A: row .*: column index"):
            st.spmm(crow, col, values, X)
        row[-1] = -1
        with pytest.raises(ValueError, match="negative"):
            st.spmm(crow, col, values, X)
        row[-1] = np.setdiff1d(np.arange(k), row)[0]
        right()
        col.data[:] = col.data.clone()
        with torch.inference_mode():
            right(crow.clone(), col.clone(), values.clone(), X.clone(), Y.clone())

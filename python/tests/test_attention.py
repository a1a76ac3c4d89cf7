"""Attention by heads against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import random_csr

import sparsimd as ss


def reference(mask, q, k, v, scale):
    s = np.where(mask, scale * (q @ k.T), -np.inf)
    top = s.max(axis=1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = e.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = (np.where(np.isfinite(top), top, 0) + np.log(total))[:, 0]
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0) @ v, lse


@pytest.fixture
def parts(rng, dtype):
    m, k = 40, 50
    A = ss.csr(random_csr(rng, m, k, 0.15, dtype), shape=(m, k))
    mask = np.zeros((m, k), bool)
    mask[np.repeat(np.arange(m), np.diff(A.indptr)), A.indices] = True
    mask[3] = False
    keep = np.repeat(np.arange(m), np.diff(A.indptr)) != 3
    indptr = np.concatenate([[0], np.cumsum(mask.sum(axis=1))])
    return ss.csr((A.data[keep], A.indices[keep], indptr), shape=(m, k)), mask


def test_one_head(rng, dtype, parts):
    A, mask = parts
    q, k, v = (rng.uniform(-1, 1, shape).astype(dtype) for shape in [(40, 16), (50, 16), (50, 24)])
    expected, lse = reference(mask, q, k, v, 0.25)
    close = dict(rtol=1e-4, atol=1e-5) if dtype == np.float32 else dict(rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(ss.attention(A, q, k, v), expected, **close)
    got, got_lse = ss.attention(A, q, k, v, scale=0.25, return_lse=True)
    np.testing.assert_allclose(got, expected, **close)
    np.testing.assert_allclose(got_lse, lse, **close)
    assert got.dtype == got_lse.dtype == dtype and np.isneginf(got_lse[3])
    plan = A.prepare("fusedmm", 16)
    np.testing.assert_allclose(ss.attention(plan, q, k, v, return_lse=True)[1], lse, **close)
    other = A.astype(np.float32 if dtype == np.float64 else np.float64)
    assert ss.attention(other, q, k, v).dtype == dtype
    np.testing.assert_allclose(ss.attention(A.to_scipy(), q, k, v), expected, **close)


@pytest.mark.parametrize("axis", [0, 1])
def test_heads(rng, dtype, parts, axis):
    A, mask = parts
    shapes = [(40, 16), (50, 16), (50, 24)]
    heads = [[rng.uniform(-1, 1, shape).astype(dtype) for shape in shapes] for _ in range(3)]
    q, k, v = (np.ascontiguousarray(np.stack([head[i] for head in heads], axis=axis)) for i in range(3))
    expected = [reference(mask, *head, 0.25) for head in heads]
    close = dict(rtol=1e-4, atol=1e-5) if dtype == np.float32 else dict(rtol=1e-10, atol=1e-12)
    got, lse = ss.attention(A, q, k, v, return_lse=True)
    assert got.shape == ((3, 40, 24) if axis == 0 else (40, 3, 24))
    np.testing.assert_allclose(np.moveaxis(got, axis, 0), [o for o, _ in expected], **close)
    np.testing.assert_allclose(lse, [l for _, l in expected], **close)
    for out in (np.empty(got.shape, dtype), np.empty_like(got)):
        assert ss.attention(A, q, k, v, out=out) is out
        np.testing.assert_array_equal(out, got)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shared", [False, True])
def test_batches(rng, dtype, parts, axis, shared):
    """One mask for all, or the batch of one for each: as one after another."""
    A, _ = parts
    b, h = 3, 2
    masks = [A] * b if shared else [A, *(ss.csr(random_csr(rng, 40, 50, 0.2, dtype), shape=(40, 50)) for _ in range(b - 1))]
    shapes = [(b, h, n, d) if axis == 0 else (b, n, h, d) for n, d in [(40, 16), (50, 16), (50, 24)]]
    q, k, v = (rng.uniform(-1, 1, shape).astype(dtype) for shape in shapes)
    mask = A if shared else ss.block_diagonal(masks)
    got, lse = ss.attention(mask, q, k, v, return_lse=True)
    each = [ss.attention(of_one, *one, return_lse=True) for of_one, *one in zip(masks, q, k, v)]
    close = dict(rtol=1e-4, atol=1e-5) if dtype == np.float32 else dict(rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(got, np.stack([o for o, _ in each]), **close)
    np.testing.assert_allclose(lse, np.stack([l for _, l in each]), **close)
    assert got.dtype == lse.dtype == dtype
    out = np.empty_like(got)
    assert ss.attention(mask, q, k, v, out=out) is out
    np.testing.assert_array_equal(out, got)
    with pytest.raises(ValueError, match="^Q: shapes"):
        ss.attention(A, q, k[:2], v)
    with pytest.raises(ValueError, match="^out: "):
        ss.attention(mask, q, k, v, out=out[:2])


def test_which_axis(rng):
    A = ss.csr(random_csr(rng, 4, 4, 0.9), shape=(4, 4))
    q = rng.uniform(-1, 1, (4, 4, 8))
    with pytest.raises(ValueError, match="^head_axis: "):
        ss.attention(A, q, q, q)
    first = ss.attention(A, q, q, q, head_axis=0)
    np.testing.assert_allclose(first[1], ss.attention(A, q[1], q[1], q[1]))
    second = ss.attention(A, q, q, q, head_axis=1)
    np.testing.assert_allclose(second[:, 1], ss.attention(A, q[:, 1], q[:, 1], q[:, 1]))


def test_errors(rng):
    A = ss.csr(random_csr(rng, 4, 6, 0.9), shape=(4, 6))
    q, k = np.ones((4, 8)), np.ones((6, 8))
    with pytest.raises(ValueError, match="^Q: shapes"):
        ss.attention(A, np.ones((2, 5, 8)), np.ones((2, 6, 8)), np.ones((2, 6, 8)))
    with pytest.raises(ValueError, match="^Q: 2, 2 and 3 dimensions"):
        ss.attention(A, q, k, np.ones((2, 6, 8)))
    with pytest.raises(ValueError, match="^Y: "):
        ss.attention(A, q, k[:5], k)
    with pytest.raises(ValueError, match="^out: "):
        ss.attention(A, np.ones((2, 4, 8)), np.ones((2, 6, 8)), np.ones((2, 6, 8)), out=np.ones((4, 8)))

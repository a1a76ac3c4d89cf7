"""What the tests share: matrices of every awkward kind, operands of every stride, and the error bound."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import sparsimd as ss

# What is measured here must not change the plans of this machine's user.
os.environ["SPARSIMD_WISDOM"] = "off"

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"


def real_data(name: str) -> Path:
    """A real matrix or tensor of the folder of test data, or a skipped test."""
    roots = [os.environ.get("SPARSIMD_DATA"), Path(__file__).resolve().parents[3] / "shared" / "data"]
    for root in filter(None, roots):
        if (Path(root) / name).exists():
            return Path(root) / name
    pytest.skip(f"no {name}: SPARSIMD_DATA names no folder that has it")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def random_csr(rng, rows, cols, density, dtype=np.float64, *, sort=True):
    """Arrays of a random matrix: data, indices, indptr."""
    mask = rng.random((rows, cols)) < density
    indptr = np.concatenate([[0], np.cumsum(mask.sum(axis=1))]).astype(np.int64)
    columns = [np.flatnonzero(row) for row in mask]
    if not sort:
        columns = [rng.permutation(row) for row in columns]
    indices = np.concatenate([*columns, np.zeros(0, np.int64)]).astype(np.int32)
    data = rng.uniform(-1, 1, len(indices)).astype(dtype)
    return data, indices, indptr


def dense_of(data, indices, indptr, shape):
    """The matrix in double precision; entries at one place are added."""
    out = np.zeros(shape)
    rows = np.repeat(np.arange(shape[0]), np.diff(indptr))
    np.add.at(out, (rows, indices), data.astype(np.float64))
    return out


def strided(x, kind):
    """A copy of `x` with another memory layout."""
    rows, cols = x.shape
    if kind == "C":
        return np.ascontiguousarray(x)
    if kind == "F":
        return np.asfortranarray(x)
    if kind == "padded":
        wide = np.full((rows, cols + 5), np.nan, x.dtype)
        wide[:, 2 : cols + 2] = x
        return wide[:, 2 : cols + 2]
    if kind == "head":
        heads = np.full((rows, 3, cols), np.nan, x.dtype)
        heads[:, 1, :] = x
        return heads[:, 1, :]
    if kind == "every other":
        wide = np.full((2 * rows, 2 * cols), np.nan, x.dtype)
        wide[::2, ::2] = x
        return wide[::2, ::2]
    if kind == "reversed":
        return np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]
    if kind == "unaligned":
        raw = np.zeros(x.nbytes + 1, np.uint8)
        view = raw[1:].view(x.dtype) if x.size else x.reshape(-1)
        view = view.reshape(rows, cols)
        view[...] = x
        return view
    raise AssertionError(kind)


KINDS = ["C", "F", "padded", "head", "every other", "reversed", "unaligned"]
IN_PLACE = {"C", "padded", "head"}


def assert_close(got, reference, magnitude, terms, dtype):
    """|got - reference| <= c n eps sum |a| |b|, element by element."""
    eps = np.finfo(dtype).eps
    bound = 2 * (np.asarray(terms, np.float64) + 4) * eps * magnitude + np.finfo(dtype).tiny
    error = np.abs(np.asarray(got, np.float64) - reference)
    assert got.dtype == dtype
    assert (error <= bound).all(), f"worst {np.max(error / bound):.3g} of the bound"


@pytest.fixture(params=[np.float32, np.float64], ids=["f32", "f64"])
def dtype(request):
    return np.dtype(request.param)


@pytest.fixture(autouse=True)
def same_threads():
    before = ss.get_num_threads()
    yield
    ss.set_num_threads(before)


def half_types():
    found = [np.dtype(np.float16)]
    try:
        import ml_dtypes

        found.append(np.dtype(ml_dtypes.bfloat16))
    except ImportError:
        pass
    return found

"""A graph with made labels, for the examples that train."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sparsimd as ss

OWN = Path(__file__).resolve().parents[2] / "tests" / "data" / "ca-CondMat.mtx.gz"


def graph() -> ss.CSR:
    """pubmed's citations where SPARSIMD_DATA names a folder that has them, else the collaborations that come with the project."""
    folder = os.environ.get("SPARSIMD_DATA")
    pubmed = Path(folder or ".") / "pubmed.mtx"
    A: ss.CSR = ss.read(pubmed if folder and pubmed.exists() else OWN, dtype=np.float32)
    return A


def with_loops(A: ss.CSR) -> ss.CSR:
    """The symmetric pattern of `A` with its diagonal; values are ones."""
    n = A.shape[0]
    rows = np.repeat(np.arange(n), np.diff(A.indptr))
    all_rows = np.concatenate([rows, A.indices, np.arange(n)])
    all_cols = np.concatenate([A.indices, rows, np.arange(n)])
    places = np.unique(all_rows * n + all_cols)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(places // n, minlength=n))])
    return ss.csr((np.ones(len(places), np.float32), places % n, indptr), shape=(n, n))


def normalised(A: ss.CSR) -> ss.CSR:
    """D^-1/2 A D^-1/2, D the row sums."""
    degree = A @ np.ones(A.shape[1], np.float32)
    rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    return A.with_values((A.data / np.sqrt(degree[rows] * degree[A.indices])).astype(np.float32))


def task(A: ss.CSR, features: int, classes: int, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Features, labels that neighbourhoods of two steps decide, and which nodes are for training."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((A.shape[0], features), dtype=np.float32)
    smooth = A @ (A @ X)
    scores = smooth @ rng.standard_normal((features, classes), dtype=np.float32)
    scores /= np.linalg.norm(smooth, axis=1, keepdims=True) + 1e-6
    return X, scores.argmax(axis=1), rng.random(A.shape[0]) < 0.6


def show(path: Path, curves: dict[str, list[float]], title: str) -> None:
    """Draws losses by epoch, where matplotlib is installed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("matplotlib is not installed: no picture")
        return
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for style, (label, losses) in zip(("-", "--"), curves.items(), strict=False):
        axes.plot(range(1, len(losses) + 1), losses, style, label=label)
    axes.set_xlabel("epoch")
    axes.set_ylabel("cross-entropy of the training nodes")
    axes.set_title(title)
    axes.legend()
    figure.savefig(path, dpi=120)
    print("picture:", path)

"""sparsimd among other packages: scipy's solvers, pickles in worker processes, pyttb, torch. What is not installed is skipped.

python python/examples/interop.py
"""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import sparsimd as ss

OWN = Path(__file__).resolve().parents[2] / "tests" / "data" / "ca-CondMat.mtx.gz"


def norm_of_product(work: tuple[ss.CSR, int]) -> tuple[int, float]:
    """What a worker process computes: its pool of threads is its own."""
    A, seed = work
    X = np.random.default_rng(seed).standard_normal((A.shape[1], 32), dtype=np.float32)
    with ss.threads(1):
        return os.getpid(), float(np.linalg.norm(A @ X))


def workers(A: ss.CSR) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.map(norm_of_product, [(A, seed) for seed in range(4)])
    here = [norm_of_product((A, seed))[1] for seed in range(4)]
    assert [norm for _, norm in results] == here
    print("multiprocessing:", len({pid for pid, _ in results}), "forked workers, the same norms as here")


def solver(A: ss.CSR) -> None:
    try:
        import scipy.sparse.linalg as linalg
    except ImportError:
        print("scipy is not installed: skipped")
        return
    # The graph's Laplacian plus the identity, as a product that is never stored.
    degree = A @ np.ones(A.shape[1])

    def times(x: NDArray[np.float64]) -> NDArray[np.float64]:
        y: NDArray[np.float64] = x + degree * x - A @ x
        return y

    operator = linalg.LinearOperator(A.shape, matvec=times, dtype=np.float64)
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    x, failed = linalg.cg(operator, b, rtol=1e-8)
    assert not failed and np.linalg.norm(times(x) - b) < 1e-6 * np.linalg.norm(b)
    values = linalg.eigsh(linalg.aslinearoperator(A), k=3, return_eigenvectors=False)
    print("scipy: a system solved by conjugate gradients; largest eigenvalues", np.round(values, 3))


def tensors() -> None:
    rng = np.random.default_rng(0)
    coords = np.unique(rng.integers(0, 40, (3, 3000)), axis=1)
    T = ss.Tensor(coords, rng.uniform(0, 1, coords.shape[1]), (40, 40, 40))
    factors = [rng.uniform(0, 1, (40, 8)) for _ in range(3)]
    own = ss.mttkrp(T, factors, 1)
    try:
        X = T.to_pyttb()
    except ImportError as missing:
        print(missing, "(skipped)")
        return
    np.testing.assert_allclose(own, X.mttkrp(factors, 1))
    print("pyttb: the same MTTKRP of", T)


def torch_tensors(A: ss.CSR) -> None:
    try:
        import torch
    except (ImportError, OSError, ValueError):
        print("torch is not installed: skipped")
        return
    X, out = torch.rand(A.shape[1], 16), torch.empty(A.shape[0], 16)
    ss.spmm(A, X, out=out)  # both in place: no copy
    np.testing.assert_array_equal(out.numpy(), A @ X.numpy())
    print("torch: tensors as operand and result, in place")


def main() -> None:
    A = ss.read(OWN, dtype=np.float32)
    # Before anything else: torch's own threads do not survive a fork.
    workers(A)
    solver(A.astype(np.float64))
    tensors()
    torch_tensors(A)


if __name__ == "__main__":
    main()

"""A sparse matrix times a dense one, straight and prepared, beside scipy: python python/examples/quickstart.py [FILE.mtx]"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import sparsimd as ss


def best_ms(call: Callable[[], object]) -> float:
    """The shortest of some runs, in milliseconds."""
    times = []
    for _ in range(9):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def main() -> None:
    own = Path(__file__).resolve().parents[2] / "tests" / "data" / "ca-CondMat.mtx.gz"
    A = ss.read(sys.argv[1] if len(sys.argv) > 1 else own, dtype=np.float32)
    X = np.random.default_rng(0).standard_normal((A.shape[1], 128), dtype=np.float32)
    print(A, "on", ss.get_num_threads(), "threads,", ss.info()["simd"])

    # Straight from the matrix, then into an array that is used again.
    C = A @ X
    out = ss.empty(C.shape, C.dtype)
    print(f"A @ X                 {best_ms(lambda: A @ X):6.2f} ms")
    print(f"spmm(A, X, out=out)   {best_ms(lambda: ss.spmm(A, X, out=out)):6.2f} ms")

    # Prepared for many runs; the plan says what was chosen, and why.
    plan = A.prepare("spmm", 128)
    print(f"spmm(plan, X, ...)    {best_ms(lambda: ss.spmm(plan, X, out=out)):6.2f} ms   {plan.explain()}")
    np.testing.assert_allclose(out, C, rtol=1e-3, atol=1e-3)

    try:
        B = A.to_scipy()
    except ImportError:
        print("scipy is not installed: no comparison")
        return
    np.testing.assert_allclose(C, B @ X, rtol=1e-3, atol=1e-3)
    print(f"scipy's A @ X         {best_ms(lambda: B @ X):6.2f} ms, one thread")


if __name__ == "__main__":
    main()

"""The operations of one package, as a process that compare.py asks: `python peers.py NAME`, requests and answers a line each.

`verify` compares the result with a product in double precision, within the bound of each element, and tells how much memory a run
takes; `time` gives the shortest of a few runs; `forget` drops the operands.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

PEERS = ["sparsimd", "scipy", "torch", "pyttb", "graphblas"]

LEAST_SECONDS = 0.05
"""Runs go on for so long in each turn, and there are at least three."""

SHORT_SECONDS = 0.0002
"""Shorter runs are timed in batches."""


def matrix(operand: str) -> Any:
    """The matrix in single precision as scipy has it."""
    import scipy.sparse as sparse

    if operand.startswith("random:"):
        size, zeros = operand.removeprefix("random:").split("@")
        rows, cols = map(int, size.split("x"))
        rng = np.random.default_rng(1)
        A = sparse.random_array((rows, cols), density=1 - float(zeros), rng=rng, format="csr", dtype=np.float32)
    else:
        import sparsimd as ss

        # Not scipy.io: it does not read all of them.
        A = ss.read(operand, dtype=np.float32).to_scipy()
    A.sort_indices()
    return A


def tensor(operand: str) -> tuple[Any, Any, tuple[int, ...]]:
    """Coordinates, values and shape."""
    if operand.startswith("random:"):
        size, nnz = operand.removeprefix("random:").split("@")
        shape = tuple(map(int, size.split("x")))
        rng = np.random.default_rng(1)
        coords = np.unique(np.stack([rng.integers(0, n, int(nnz)) for n in shape]), axis=1)
        return coords, rng.uniform(-1, 1, coords.shape[1]), shape
    import sparsimd as ss

    T = ss.read(operand)
    return T.coords, T.values, T.shape


def aligned(x: Any) -> Any:
    """`x` in single precision whose memory begins with a cache line, as torch's own tensors: numpy's begin where chance has it, which is
    worth a fifth of the time."""
    room = np.empty(x.size + 16, np.float32)
    start = -room.ctypes.data % 64 // 4
    place = room[start : start + x.size].reshape(x.shape)
    place[...] = x
    return place


class Case:
    """One case for one peer: what runs, and whether its result is right."""

    def __init__(self, peer: str, op: str, operand: str, n: int) -> None:
        self.run: Callable[[], Any] | None = None
        self.variant = ""
        self.native: Callable[[], float] | None = None
        """Seconds of what the run does without Python."""
        self.check: Callable[[Any], float] = lambda result: 0.0
        rng = np.random.default_rng(2)
        prepare = getattr(self, f"{peer}_{op.split()[0]}", None)
        if prepare is None:
            return
        if op.split()[0] in ("mttkrp", "cp_als"):
            coords, values, shape = tensor(operand)
            factors = [rng.uniform(0, 1, (length, n)) for length in shape]
            prepare(coords, values, shape, factors, n)
        elif op == "read":
            prepare(operand)
        else:
            A = matrix(operand)
            dense = [aligned(rng.uniform(-1, 1, (rows, n))) for rows in (A.shape[0], A.shape[1], A.shape[1])]
            prepare(A, *dense, new=op.endswith("new"))

    def product(self, A: Any, X: Any) -> None:
        """Verifies A X."""
        reference = A.astype(np.float64) @ X.astype(np.float64)
        bound = abs(A).astype(np.float64) @ np.abs(X.astype(np.float64))
        bound *= 2 * np.finfo(np.float32).eps * (np.diff(A.indptr).max(initial=0) + 4)
        self.check = lambda C: float(np.max(np.abs(np.asarray(C) - reference) / (bound + 1e-30)))

    def largest(self, A: Any, X: Any) -> None:
        """Verifies the maximum of the products of each row."""
        self.reduced(A, X, np.multiply, np.max)

    def shortest(self, A: Any, X: Any) -> None:
        """Verifies the minimum of the sums of each row, as shortest paths have it."""
        self.reduced(A, X, np.add, np.min)

    def reduced(self, A: Any, X: Any, term: Callable[..., Any], reduce: Callable[..., Any]) -> None:
        """Verifies what becomes of the terms of each row, in rows that have any, some of them; the mean is a product."""
        some = np.flatnonzero(np.diff(A.indptr))[:: max(1, A.shape[0] // 2000)]
        reference = []
        for i in some:
            row = slice(A.indptr[i], A.indptr[i + 1])
            reference.append(reduce(term(A.data[row, None], X[A.indices[row]]), axis=0))
        # Terms are rounded alike everywhere.
        self.check = lambda C: float(not np.array_equal(np.asarray(C)[some], reference)) * 2

    def shares(self, A: Any) -> Any:
        """`A` whose rows are divided by their numbers of nonzeros."""
        counts = np.diff(A.indptr)
        B = A.copy()
        B.data /= np.repeat(np.maximum(counts, 1), counts).astype(np.float32)
        return B

    def dots(self, A: Any, X: Any, Y: Any) -> None:
        """Verifies (X Y^T) at the nonzeros of A, some of them."""
        some = np.linspace(0, A.nnz - 1, min(A.nnz, 20000)).astype(np.int64)
        rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))[some]
        x, y = X[rows].astype(np.float64), Y[A.indices[some]].astype(np.float64)
        reference, magnitude = (x * y).sum(1), np.abs(x * y).sum(1)
        bound = 2 * np.finfo(np.float32).eps * (X.shape[1] + 4) * magnitude
        self.check = lambda out: float(np.max(np.abs(np.asarray(out)[some] - reference) / bound))

    def softmax(self, A: Any, Q: Any, K: Any, V: Any) -> None:
        """Verifies attention, some rows of it."""
        some = np.flatnonzero(np.diff(A.indptr))[:: max(1, A.shape[0] // 200)]
        q, k, v = (x.astype(np.float64) for x in (Q, K, V))
        reference = []
        for i in some:
            columns = A.indices[A.indptr[i] : A.indptr[i + 1]]
            scores = k[columns] @ q[i] / np.sqrt(q.shape[1])
            weights = np.exp(scores - scores.max())
            reference.append(weights @ v[columns] / weights.sum())
        self.check = lambda out: float(np.max(np.abs(np.asarray(out)[some] - reference))) / 1e-4

    # sparsimd

    def sparsimd_spmm(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        import sparsimd as ss

        S = ss.csr(A)
        plan = S.prepare("spmm", Y.shape[1], reuse=10**6)
        out = None if new else ss.empty((A.shape[0], Y.shape[1]), np.float32)
        self.run, self.variant = lambda: ss.spmm(plan, Y, out=out), plan.strategy
        self.product(A, Y)

    def sparsimd_reduced(self, A: Any, Y: Any, **rule: Any) -> None:
        import sparsimd as ss

        plan, out = ss.csr(A).prepare("spmm", Y.shape[1], reuse=10**6), ss.empty((A.shape[0], Y.shape[1]), np.float32)
        self.run, self.variant = lambda: ss.spmm(plan, Y, out=out, **rule), plan.strategy

    def sparsimd_max(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        self.sparsimd_reduced(A, Y, reduce="max")
        self.largest(A, Y)

    sparsimd_scatter = sparsimd_max

    def sparsimd_semiring(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        self.sparsimd_reduced(A, Y, semiring="min-plus")
        self.shortest(A, Y)

    def sparsimd_mean(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        self.sparsimd_reduced(A, Y, reduce="mean")
        self.product(self.shares(A), Y)

    def sparsimd_call(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        import sparsimd as ss

        self.sparsimd_spmm(A, X, Y, Z, new)
        plan, out = ss.csr(A).prepare("spmm", Y.shape[1], reuse=10**6), ss.empty((A.shape[0], Y.shape[1]), np.float32)
        self.native = lambda: ss._sparsimd._spmm_seconds(plan, Y, out, 1000)

    def sparsimd_operator(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        try:
            import torch

            import sparsimd.torch as operators
        except ImportError:
            return
        crow, col = torch.from_numpy(A.indptr.astype(np.int64)), torch.from_numpy(A.indices.astype(np.int64))
        values, y = torch.from_numpy(A.data), torch.from_numpy(Y)
        out = None if new else torch.empty((A.shape[0], Y.shape[1]))
        self.run = lambda: operators.spmm(crow, col, values, y, out=out)
        self.product(A, Y)
        import sparsimd as ss

        S, place = ss.csr(A), ss.empty((A.shape[0], Y.shape[1]), np.float32)
        self.native = lambda: ss._sparsimd._spmm_seconds(S, Y, place, 1000)

    def sparsimd_sddmm(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        import sparsimd as ss

        plan = ss.csr(A).prepare("sddmm", Y.shape[1], reuse=10**5, effort="measure")
        out = ss.empty(A.nnz, np.float32)
        self.run, self.variant = lambda: ss.sddmm(plan, X, Y.T, out=out), plan.strategy
        self.dots(A, X, Y)

    def sparsimd_attention(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        import sparsimd as ss

        plan = ss.csr(A).prepare("fusedmm", Y.shape[1], reuse=10**6)
        out = ss.empty(X.shape, np.float32)
        self.run, self.variant = lambda: ss.attention(plan, X, Y, Z, out=out), plan.strategy
        self.softmax(A, X, Y, Z)

    def sparsimd_mttkrp(self, coords: Any, values: Any, shape: Any, factors: Any, rank: int) -> None:
        import sparsimd as ss

        T = ss.Tensor(coords, values, shape).prepare(rank)
        outs = [np.empty((length, rank)) for length in shape]
        modes = range(len(shape))
        self.run, self.variant = lambda: [ss.mttkrp(T, factors, mode, out=outs[mode]) for mode in modes], T.format
        self.sums(coords, values, shape, factors)

    def sparsimd_cp_als(self, coords: Any, values: Any, shape: Any, factors: Any, rank: int) -> None:
        import sparsimd as ss

        T = ss.Tensor(coords, values, shape).prepare(rank)
        self.run = lambda: ss.cp_als(T, rank, maxiters=4, stoptol=0, init=factors).fits[-1]
        self.fit(coords, values, shape, factors, rank)

    def sparsimd_read(self, operand: str) -> None:
        import sparsimd as ss

        self.run = lambda: ss.read(operand)
        self.same(operand)

    # scipy

    def scipy_spmm(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        # Without `out`: scipy has none.
        self.run = lambda: A @ Y
        self.product(A, Y)

    def scipy_call(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        self.scipy_spmm(A, X, Y, Z, new)

    def scipy_read(self, operand: str) -> None:
        import scipy.io

        # It would take all processors.
        reader: Any = scipy.io._fast_matrix_market
        reader.PARALLELISM = int(os.environ["OMP_NUM_THREADS"])
        self.run = lambda: scipy.io.mmread(operand).tocsr()
        self.same(operand)

    def same(self, operand: str) -> None:
        """Verifies that scipy and sparsimd read the same."""
        import scipy.io

        import sparsimd as ss

        reference = scipy.io.mmread(operand).tocsr()
        difference = abs(ss.read(operand).to_scipy() - reference)
        self.check = lambda _: 2.0 if difference.nnz and difference.max() > 0 else 0.0

    # torch

    def torch_matrix(self, A: Any) -> Any:
        import torch

        crow, col = torch.from_numpy(A.indptr.astype(np.int64)), torch.from_numpy(A.indices.astype(np.int64))
        return torch.sparse_csr_tensor(crow, col, torch.from_numpy(A.data), A.shape)

    def torch_spmm(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        import torch

        S, y = self.torch_matrix(A), torch.from_numpy(Y)
        self.run = lambda: S @ y
        self.product(A, Y)

    def torch_reduced(self, A: Any, Y: Any, reduce: str) -> None:
        import torch

        S, y = self.torch_matrix(A), torch.from_numpy(Y)
        self.run = lambda: torch.sparse.mm(S, y, reduce)

    def torch_max(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        self.torch_reduced(A, Y, "amax")
        self.largest(A, Y)

    def torch_mean(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        self.torch_reduced(A, Y, "mean")
        self.product(self.shares(A), Y)

    def torch_scattered(self, A: Any, Y: Any, term: Callable[[Any, Any], Any], reduce: str) -> None:
        """As torch_scatter has it: the terms of all nonzeros, then what becomes of them by row."""
        import torch

        y, values, columns = torch.from_numpy(Y), torch.from_numpy(A.data), torch.from_numpy(A.indices.astype(np.int64))
        rows = torch.from_numpy(np.repeat(np.arange(A.shape[0]), np.diff(A.indptr)))
        rows = rows[:, None].expand(-1, y.shape[1])
        zeros = torch.zeros((A.shape[0], y.shape[1]))
        self.run = lambda: zeros.scatter_reduce(0, rows, term(values[:, None], y[columns]), reduce, include_self=False)

    def torch_scatter(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        self.torch_scattered(A, Y, lambda a, b: a * b, "amax")
        self.largest(A, Y)

    def torch_semiring(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        self.torch_scattered(A, Y, lambda a, b: a + b, "amin")
        self.shortest(A, Y)

    def torch_call(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        self.torch_spmm(A, X, Y, Z, new)

    def torch_operator(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        self.torch_spmm(A, X, Y, Z, new)

    def torch_sddmm(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        import torch

        S, x, y = self.torch_matrix(A), torch.from_numpy(X), torch.from_numpy(Y)
        out = S.clone()
        self.run = lambda: torch.sparse.sampled_addmm(S, x, y.T, beta=0.0, out=out).values()
        self.dots(A, X, Y)

    def torch_attention(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        import torch

        rows = torch.from_numpy(np.repeat(np.arange(A.shape[0]), np.diff(A.indptr)))
        columns = torch.from_numpy(A.indices.astype(np.int64))
        q, k, v = map(torch.from_numpy, (X, Y, Z))
        scale = X.shape[1] ** -0.5

        def run() -> Any:
            scores = (q[rows] * k[columns]).sum(1) * scale
            top = torch.full((q.shape[0],), -torch.inf).scatter_reduce(0, rows, scores, "amax")
            weights = torch.exp(scores - top[rows])
            sums = torch.zeros(q.shape[0]).index_add(0, rows, weights)
            weights = weights / sums[rows]
            return torch.zeros((q.shape[0], v.shape[1])).index_add(0, rows, weights[:, None] * v[columns])

        self.run = run
        self.softmax(A, X, Y, Z)

    # graphblas

    def graphblas_product(self, A: Any, Y: Any, semiring: str, verify: Callable[[Any, Any], None]) -> None:
        import graphblas as gb

        package: Any = gb
        package.ss.config["nthreads"] = int(os.environ["OMP_NUM_THREADS"])
        S = package.Matrix.from_csr(A.indptr.astype(np.uint64), A.indices.astype(np.uint64), A.data, ncols=A.shape[1])
        X, operation = package.Matrix.from_dense(Y), getattr(package.semiring, semiring)
        self.run = lambda: S.mxm(X, operation).new()
        verify(A, Y)
        check = self.check
        # Rows without nonzeros have no entries.
        self.check = lambda C: check(C.to_dense(fill_value=0.0))

    def graphblas_spmm(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        self.graphblas_product(A, Y, "plus_times", self.product)

    def graphblas_max(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        self.graphblas_product(A, Y, "max_times", self.largest)

    def graphblas_semiring(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        self.graphblas_product(A, Y, "min_plus", self.shortest)

    def graphblas_mean(self, A: Any, X: Any, Y: Any, Z: Any, new: bool) -> None:
        # The division is of the matrix, and not timed.
        self.graphblas_product(self.shares(A), Y, "plus_times", self.product)

    # pyttb

    def pyttb_tensor(self, coords: Any, values: Any, shape: Any) -> Any:
        import pyttb

        package: Any = pyttb
        return package.sptensor(np.ascontiguousarray(coords.T), values[:, None], tuple(map(int, shape)))

    def pyttb_mttkrp(self, coords: Any, values: Any, shape: Any, factors: Any, rank: int) -> None:
        T = self.pyttb_tensor(coords, values, shape)
        self.run = lambda: [T.mttkrp(factors, mode) for mode in range(len(shape))]
        self.sums(coords, values, shape, factors)

    def pyttb_cp_als(self, coords: Any, values: Any, shape: Any, factors: Any, rank: int) -> None:
        import pyttb

        package: Any = pyttb
        T = self.pyttb_tensor(coords, values, shape)

        def run() -> Any:
            start = package.ktensor([factor.copy() for factor in factors])
            return package.cp_als(T, rank, stoptol=0.0, maxiters=4, printitn=-1, init=start)[2]["fit"]

        self.run = run
        self.fit(coords, values, shape, factors, rank)

    def sums(self, coords: Any, values: Any, shape: Any, factors: Any) -> None:
        """Verifies MTTKRP in all modes."""
        references = []
        for mode, length in enumerate(shape):
            rows = values[:, None]
            for m, factor in enumerate(factors):
                if m != mode:
                    rows = rows * factor[coords[m]]
            columns = [np.bincount(coords[mode], row, length) for row in rows.T]
            references.append(np.stack(columns, axis=1))

        def check(results: Any) -> float:
            pairs = zip(results, references, strict=True)
            return max(
                float(np.max(np.abs(got - want)) / (1e-9 * max(1.0, np.max(np.abs(want))))) for got, want in pairs
            )

        self.check = check

    def fit(self, coords: Any, values: Any, shape: Any, factors: Any, rank: int) -> None:
        """Verifies a fit: that of another package from the same start would be 1e-6 away at most."""
        import sparsimd as ss

        T = ss.Tensor(coords, values, shape)
        expected = ss.cp_als(T, rank, maxiters=4, stoptol=0, init=factors).fits[-1]
        self.check = lambda got: abs(float(got) - expected) / 1e-6


def timed(run: Callable[[], Any]) -> float:
    """The shortest of some runs; of some batches, where the clock would count among short ones."""
    start = time.perf_counter()
    run()
    batch = 1 + int(SHORT_SECONDS / (time.perf_counter() - start))
    times: list[float] = []
    while len(times) < 3 or sum(times) * batch < LEAST_SECONDS:
        start = time.perf_counter()
        for _ in range(batch):
            run()
        times.append((time.perf_counter() - start) / batch)
    return min(times)


def extra_bytes(run: Callable[[], Any]) -> tuple[Any, int]:
    """What a run gives, and how much more memory the process had during it, its result included; 0 where the system does not tell."""

    def memory(line: str) -> int:
        with open("/proc/self/status") as status:
            return next(int(text.split()[1]) for text in status if text.startswith(line)) * 1024

    try:
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as peak:
            peak.write("5")
        before = memory("VmRSS:")
        result = run()
        return result, max(0, memory("VmHWM:") - before)
    except (OSError, AttributeError):
        return run(), 0


def serve(peer: str) -> None:
    """Answers until the input ends."""
    warnings.simplefilter("ignore")
    try:
        __import__(peer)
        if peer == "torch":
            import torch

            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    except (ImportError, OSError, ValueError) as error:
        print(json.dumps({"missing": f"{type(error).__name__}: {error}"}), flush=True)
        return
    print(json.dumps({}), flush=True)
    case: Case | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        if request["do"] == "verify":
            case = Case(peer, request["op"], request["operand"], request["n"])
            answer = {"has": case.run is not None, "right": True, "variant": case.variant, "error": 0.0, "bytes": 0}
            if case.run is not None:
                case.run()  # what is allocated once
                result, answer["bytes"] = extra_bytes(case.run)
                answer["error"] = case.check(result)
                answer["right"] = bool(answer["error"] <= 1)
        elif request["do"] == "time":
            assert case and case.run
            answer = {"seconds": timed(case.run), "native": case.native() if case.native else None}
        else:
            case = None
            gc.collect()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])

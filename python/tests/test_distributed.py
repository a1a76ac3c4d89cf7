"""Products and decompositions on the ranks of an MPI: this file is also what the ranks run.

Needs mpi4py, a launcher and the library that SPARSIMD_MPI_LIBRARY names (`.ci/distributed` has them).
"""

import ctypes
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

scipy_sparse = pytest.importorskip("scipy.sparse")


def fused(edge, a, c, b, d, de):
    """E and its gradients by the definition, in double precision: dC, dB, dD and dvalues."""
    c, b, d, de = (x.astype(np.float64) for x in (c, b, d, de))
    mask, values = a.toarray() != 0, a.toarray().astype(np.float64)
    s, g = c @ b.T, de @ d.T
    if edge == "scale":
        w, ds, dvalues = mask * values * s, mask * values * g, s * g
    elif edge == "sigmoid":
        f = 1 / (1 + np.exp(-s))
        w, ds, dvalues = mask * f, mask * f * (1 - f) * g, None
    else:
        z = np.where(mask, 0.5 * s, -np.inf)
        top = np.where(mask.any(axis=1), z.max(axis=1), 0.0)
        w = np.exp(z - top[:, None])
        w /= np.where(mask.any(axis=1), w.sum(axis=1), 1.0)[:, None]
        ds, dvalues = 0.5 * w * (g - (w * g).sum(axis=1)[:, None]), None
    values_at = None if dvalues is None else dvalues[a.nonzero()]
    return w @ d, (ds @ b, ds.T @ c, w.T @ de, values_at)


def decompose(distributed, comm) -> None:
    """A tensor of two components: the model's fit is what it says, by its definition."""
    rng = np.random.default_rng(5)
    shape = (8, 6, 7)
    for dtype, near in ((np.float32, 1e-4), (np.float64, 1e-9)):
        parts = [rng.random((length, 2)) for length in shape]
        x = np.einsum("ir,jr,kr->ijk", *parts) * (rng.random(shape) < 0.6)
        coords = np.array(x.nonzero())
        own = slice(comm.rank, None, comm.size)
        values = x[tuple(coords)].astype(dtype)
        cp = distributed.cp_als(coords[:, own], values[own], shape, comm, 2, iterations=30, tolerance=0, threads=1)
        assert cp.iterations == 30
        whole = [np.zeros((length, 2)) for length in shape]
        for factor, rows, to in zip(cp.factors, cp.rows, whole):
            assert factor.dtype == dtype
            to[rows.start : rows.stop] = factor
            comm.Allreduce(to.copy(), to)
            np.testing.assert_allclose(np.linalg.norm(to, axis=0), 1, atol=near)
        model = np.einsum("r,ir,jr,kr->ijk", cp.weights, *whole)
        fit = 1 - np.linalg.norm(x - model) / np.linalg.norm(x)
        assert 0.2 < fit < 1
        assert abs(cp.fit - fit) < near
    with pytest.raises(Exception, match="rank: 0 columns"):
        distributed.cp_als(coords[:, own], values[own], shape, comm, 0)
    if comm.size > 1:
        with pytest.raises(Exception, match="dims: differ between ranks"):
            distributed.cp_als(coords[:, own], values[own], (8 if comm.rank else 9, 6, 7), comm, 2)


def mappings() -> int:
    """Pieces of memory in common that this process has mapped."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:sparsimd" in line for line in maps)


def in_common(distributed, comm, a, b, c, own, own_b, near) -> None:
    """B and D in memory that all ranks have mapped: the same products, also after they have been written anew."""
    matrix = distributed.Matrix(
        a[own], comm, b_rows=own_b.stop - own_b.start, algorithm="aware", n=b.shape[1], in_common=True, threads=1
    )
    first, again, wide = matrix.common(b.shape[1]), matrix.common(b.shape[1]), matrix.common(4)
    if sys.platform == "linux":
        address = first.ctypes.data
        with open("/proc/self/maps") as maps:
            ranges = [line.split()[0].split("-") for line in maps if "memfd:sparsimd" in line]
        assert any(int(start, 16) <= address < int(end, 16) for start, end in ranges)
    assert not first.any() and first.dtype == b.dtype
    rng = np.random.default_rng(3)
    d, de = rng.standard_normal((len(b), 4)).astype(b.dtype), rng.standard_normal((len(c), 4)).astype(b.dtype)
    wide[:] = d[own_b]
    for factor in (1, -2):
        values = (factor * b).astype(b.dtype)
        first[:] = again[:] = values[own_b]
        np.testing.assert_allclose(matrix.spmm(first), (a @ values)[own], **near)
        # Not the same memory on all ranks, and not in common on one.
        for one in (first if comm.rank == 0 else again, first if comm.rank else values[own_b]):
            np.testing.assert_allclose(matrix.spmm(one), (a @ values)[own], **near)
        dots = np.asarray([c[i] @ values[j] for i, j in zip(*a.nonzero())])
        np.testing.assert_allclose(matrix.sddmm(c[own], first), dots[a.indptr[own.start] : a.indptr[own.stop]], **near)
        loose = {"rtol": near["rtol"], "atol": 40 * near["atol"]}
        for edge in ("scale", "sigmoid", "softmax"):
            e, gradients = fused(edge, a, c, values, d, de)
            got = matrix.fusedmm(c[own], first, wide, edge=edge, scale=0.5)
            np.testing.assert_allclose(got, e[own], **loose)
            parts = matrix.fusedmm_gradient(c[own], first, wide, de[own], edge=edge, scale=0.5)
            np.testing.assert_allclose(parts[1], gradients[1][own_b], **loose)
        e, _ = fused("sigmoid", a, c, values, values, c)
        np.testing.assert_allclose(matrix.fusedmm(c[own], first, first, edge="sigmoid"), e[own], **loose)
    with pytest.raises(Exception, match="n: 0 columns"):
        matrix.common(0)
    # Without the others, and without the matrix. What is freed is not mapped any more.
    if sys.platform == "linux":
        mapped = mappings()
        del again
        assert mappings() == mapped - 1
    matrix.common(3)
    kept = first[1:, :2]
    matrix.close()
    del first
    np.testing.assert_array_equal(kept, values[own_b][1:, :2])


def resume(distributed, comm, folder) -> None:
    """Runs that go on from a checkpoint, and from given factors, are the unbroken run; what does not fit is an error on all ranks."""
    rng = np.random.default_rng(11)
    shape, rank = (9, 7, 8), 3
    x = rng.random(shape) * (rng.random(shape) < 0.5)
    coords = np.array(x.nonzero())
    init = [rng.random((length, rank)) for length in shape]

    def run(ranks, iterations, **options):
        own = slice(ranks.rank, None, ranks.size)
        values = x[tuple(coords)][own]
        model = distributed.cp_als(
            coords[:, own], values, shape, ranks, rank, iterations=iterations, tolerance=0, threads=1, **options
        )
        whole = [np.zeros((length, rank)) for length in shape]
        for factor, rows, to in zip(model.factors, model.rows, whole):
            to[rows.start : rows.stop] = factor
            ranks.Allreduce(to.copy(), to)
        return model, whole

    def near(got, wanted):
        assert got[0].iterations == wanted[0].iterations
        np.testing.assert_allclose(got[0].fit, wanted[0].fit, rtol=1e-9)
        np.testing.assert_allclose(got[0].weights, wanted[0].weights, rtol=1e-7)
        for a, b in zip(got[1], wanted[1]):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)

    # The start is that of the factors, not of the seed, and does not depend on the ranks.
    one = comm.Split(comm.rank, 0)
    wanted = run(one, 8, init=init)
    assert abs(wanted[0].fit - run(one, 8)[0].fit) > 1e-6
    near(run(comm, 8, init=init, seed=5), wanted)

    # Five iterations on all ranks, of which the fourth is the last one written, go on by all but one of them, and by one.
    path = os.path.join(folder, "state")
    run(comm, 5, init=init, checkpoint=path, every=2)
    near(run(comm, 4, checkpoint=path, resume=True), run(one, 4, init=init))
    for first in {0, min(1, comm.size - 1)}:
        some = comm.Split(int(comm.rank >= first), 0)
        if comm.rank >= first:
            near(run(some, 8, checkpoint=path, every=100, resume=True), wanted)
        some.Free()
        comm.Barrier()
    near(run(one, 8, checkpoint=path, every=100, resume=True), wanted)
    comm.Barrier()
    # Where there is no file, from the start; and the file of one rank is gone on from by all.
    other = os.path.join(folder, f"of-one-{comm.rank}")
    near(run(one, 6, init=init, checkpoint=other, every=3, resume=True), run(one, 6, init=init))
    near(run(comm, 8, checkpoint=os.path.join(folder, "of-one-0"), every=100, resume=True), wanted)

    # Factors of the last rank that do not fit: too short, too few, of other components, with a number that is none.
    nan = init[0].copy()
    nan[3, 1] = np.nan
    bad = {
        "init: factors of": [init[0][:-2], *init[1:]],
        "init: a factor of 2 columns for rank 3": [*init[:2], init[2][:, :2]],
        "init: a factor has a value that is not finite": [nan, *init[1:]],
    }
    for words, factors in bad.items():
        with pytest.raises(Exception, match=words):
            run(comm, 3, init=factors if comm.rank == comm.size - 1 else init)
    with pytest.raises(Exception, match="init: factors of"):
        run(comm, 3, init=init[:2])
    with pytest.raises(Exception, match="every: 0 iterations"):
        run(comm, 3, checkpoint=path, every=0)
    # A state of another tensor, and a folder that there is not.
    x[0, 0, 0] += 1
    coords = np.array(x.nonzero())
    with pytest.raises(Exception, match="a tensor with other entries"):
        run(comm, 8, checkpoint=path, resume=True)
    with pytest.raises(Exception, match="No such file"):
        run(comm, 8, checkpoint=os.path.join(folder, "none", "state"), every=1)
    if comm.size > 1:
        with pytest.raises(Exception, match="options: differ between ranks"):
            run(comm, 3 + comm.rank)
    one.Free()


def main(folder: str) -> None:
    from mpi4py import MPI
    from sparsimd import distributed

    world = MPI.COMM_WORLD
    # Ranks of their own order: the handle is not that of the world.
    comm = world.Split(0, -world.rank)
    rank, size = comm.rank, comm.size
    rng = np.random.default_rng(7)
    for dtype in (np.float32, np.float64):
        m, k, n = 53, 41, 9
        a = scipy_sparse.random(m, k, 0.2, format="csr", dtype=dtype, random_state=1)
        a.sort_indices()
        b, c = rng.standard_normal((k, n)).astype(dtype), rng.standard_normal((m, n)).astype(dtype)
        rows = np.linspace(0, m, size + 1).astype(int)
        cols = np.linspace(0, k, size + 1).astype(int)
        own, own_b = slice(rows[rank], rows[rank + 1]), slice(cols[rank], cols[rank + 1])
        near = {"rtol": 1e-4 if dtype == np.float32 else 1e-12, "atol": 1e-4 if dtype == np.float32 else 1e-12}
        got = distributed.spmm(a[own], b[own_b], comm, threads=1)
        assert got.dtype == dtype
        np.testing.assert_allclose(got, (a @ b)[own], **near)
        for options in (
            {"algorithm": "aware", "operation": "sddmm"},
            {"algorithm": "dense", "replication": size, "operation": "fusedmm"},
            {"operation": "fusedmm_softmax", "n": n, "width": 4},
            {"operation": "fusedmm_gradient", "n": n, "width": 4},
        ):
            with distributed.Matrix(a[own], comm, b_rows=cols[rank + 1] - cols[rank], threads=1, **options) as matrix:
                np.testing.assert_allclose(matrix.spmm(b[own_b]), (a @ b)[own], **near)
                np.testing.assert_allclose(matrix.spmm_transposed(c[own]), (a.T @ c)[own_b], **near)
                dots = np.asarray([c[i] @ b[j] for i, j in zip(*a.nonzero())])
                first, last = a.indptr[own.start], a.indptr[own.stop]
                np.testing.assert_allclose(matrix.sddmm(c[own], b[own_b]), dots[first:last], **near)
                ds = rng.standard_normal(a.nnz).astype(dtype)
                by_ds = scipy_sparse.csr_matrix((ds, a.indices, a.indptr), shape=a.shape)
                dc, db = matrix.sddmm_gradient(c[own], b[own_b], ds[first:last])
                np.testing.assert_allclose(dc, (by_ds @ b)[own], **near)
                np.testing.assert_allclose(db, (by_ds.T @ c)[own_b], **near)
                d, de = rng.standard_normal((k, 4)).astype(dtype), rng.standard_normal((m, 4)).astype(dtype)
                for edge in ("scale", "sigmoid", "softmax"):
                    e, gradients = fused(edge, a, c, b, d, de)
                    got = matrix.fusedmm(c[own], b[own_b], d[own_b], edge=edge, scale=0.5)
                    np.testing.assert_allclose(got, e[own], rtol=near["rtol"], atol=20 * near["atol"])
                    parts = matrix.fusedmm_gradient(c[own], b[own_b], d[own_b], de[own], edge=edge, scale=0.5)
                    for part, wanted, some in zip(parts, gradients, (own, own_b, own_b, slice(first, last))):
                        assert (part is None) == (wanted is None)
                        if part is not None:
                            np.testing.assert_allclose(part, wanted[some], rtol=near["rtol"], atol=20 * near["atol"])
                # D is B: its rows travel once.
                local = np.ascontiguousarray(b[own_b])
                e, _ = fused("sigmoid", a, c, b, b, c)
                got = matrix.fusedmm(c[own], local, local, edge="sigmoid")
                np.testing.assert_allclose(got, e[own], rtol=near["rtol"], atol=20 * near["atol"])
        in_common(distributed, comm, a, b, c, own, own_b, near)
        # Rows of B that do not go with A are an error on all ranks.
        with pytest.raises(Exception, match="rows of B on all ranks for 41 columns"):
            distributed.spmm(a[own], b[own_b][rank == 0 :], comm, threads=1)
        if size > 1:
            with pytest.raises(Exception, match="given: differ between ranks"):
                distributed.Matrix(a[own], comm, b_rows=own_b.stop - own_b.start, n=4 + rank, threads=1)
            # What is null on one rank is an error on all.
            library, out = distributed._library(), ctypes.byref(ctypes.c_void_p())
            given = ctypes.byref(distributed._Given()) if rank == 0 else None
            assert library.sparsimd_mpi_create(comm.py2f(), given, out) == 1
            assert library.sparsimd_mpi_last_error() == b"rank 1: array: is null"
    decompose(distributed, comm)
    resume(distributed, comm, folder)
    comm.Free()
    if world.rank == 0:
        print(f"{size} ranks: right")


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks(ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    launcher = os.environ.get("SPARSIMD_MPIRUN")
    if not launcher or "SPARSIMD_MPI_LIBRARY" not in os.environ:
        pytest.skip("SPARSIMD_MPIRUN and SPARSIMD_MPI_LIBRARY are not set")
    command = [*shlex.split(launcher), "-n", str(ranks), sys.executable, __file__, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ranks} ranks: right\n"


if __name__ == "__main__":
    main(sys.argv[1])

"""Products and decompositions on the ranks of an MPI: this file is also what the ranks run.

Needs mpi4py, a launcher and the library that SPARSIMD_MPI_LIBRARY names (`.ci/distributed` has them).
"""

import os
import shlex
import subprocess
import sys

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


def main() -> None:
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
        # Rows of B that do not go with A are an error on all ranks.
        with pytest.raises(Exception, match="rows of B on all ranks for 41 columns"):
            distributed.spmm(a[own], b[own_b][rank == 0 :], comm, threads=1)
    decompose(distributed, comm)
    comm.Free()
    if world.rank == 0:
        print(f"{size} ranks: right")


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks(ranks: int) -> None:
    pytest.importorskip("mpi4py")
    launcher = os.environ.get("SPARSIMD_MPIRUN")
    if not launcher or "SPARSIMD_MPI_LIBRARY" not in os.environ:
        pytest.skip("SPARSIMD_MPIRUN and SPARSIMD_MPI_LIBRARY are not set")
    command = [*shlex.split(launcher), "-n", str(ranks), sys.executable, __file__]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ranks} ranks: right\n"


if __name__ == "__main__":
    main()

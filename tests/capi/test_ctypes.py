"""Calls the shared library named by SPARSIMD_LIB through ctypes and compares with scipy; skips without scipy."""

import ctypes as ct
import os
import sys

try:
    import numpy as np
    import scipy.sparse as sp
except ImportError:
    print("skipped: scipy is not installed")
    sys.exit(0)

lib = ct.CDLL(os.environ["SPARSIMD_LIB"])
lib.sparsimd_last_error.restype = ct.c_char_p
SPMM, SPMM_T, SDDMM, FUSEDMM = range(4)
SCALE = 1
size, handle = ct.c_size_t, ct.c_void_p


def call(name, *args):
    if status := getattr(lib, "sparsimd_" + name)(*args):
        raise RuntimeError(f"{name}: {status}: {lib.sparsimd_last_error().decode()}")


def made(name, *args):
    out = handle()
    call(name, *args, ct.byref(out))
    return out


def at(array):
    return array.ctypes.data_as(handle)


def ld(array):
    return size(array.strides[0] // array.itemsize)


def compare(cpu, dtype, real, suffix, path):
    rng = np.random.default_rng(1)
    m, k, n, p = 700, 500, 48, 17
    a = sp.random(m, k, 0.15, "csr", dtype, rng)
    row_ptr, col_idx = a.indptr.astype(np.uintp), a.indices.astype(np.uint32)
    # Columns of a wider array: rows are further apart than they are long.
    dense = lambda rows, cols: rng.random((rows, cols + 5)).astype(dtype)[:, :cols]
    b, c, d, e = dense(k, n), dense(m, n), dense(k, p), dense(m, p)
    tolerance = 1e3 * np.finfo(dtype).eps
    csr = made("csr_create_" + suffix, size(m), size(k), at(row_ptr), at(col_idx), at(a.data))

    def plan(op):
        return made("plan_create", cpu, op, csr, size(n), path, size(100))

    def close(got, wanted):
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)

    spmm, spmm_t, sddmm, fused = map(plan, (SPMM, SPMM_T, SDDMM, FUSEDMM))
    before = c.copy()
    call("spmm_" + suffix, cpu, spmm, size(n), real(2), at(b), ld(b), real(0.5), at(c), ld(c))
    close(c, 2 * (a @ b) + 0.5 * before)

    doubled = a * 2
    call("plan_set_values_" + suffix, spmm, at(doubled.data), size(a.nnz))
    call("spmm_" + suffix, cpu, spmm, size(n), real(1), at(b), ld(b), real(0), at(c), ld(c))
    close(c, doubled @ b)

    t = dense(k, n)
    call("spmm_t_" + suffix, cpu, spmm_t, size(n), real(1), at(before), ld(before), real(0), at(t), ld(t))
    close(t, a.T @ before)

    dots = (before @ b.T)[np.repeat(np.arange(m), np.diff(a.indptr)), a.indices]
    out = np.zeros(a.nnz, dtype)
    call("sddmm_" + suffix, cpu, sddmm, size(n), at(before), ld(before), at(b), ld(b), at(out))
    close(out, dots)
    call("sddmm_scaled_" + suffix, cpu, sddmm, size(n), at(before), ld(before), at(b), ld(b), at(out))
    close(out, dots * a.data)

    call("fusedmm_" + suffix, cpu, fused, SCALE, real(1), size(n), at(before), ld(before), at(b), ld(b),
         size(p), at(d), ld(d), at(e), ld(e))
    weights = sp.csr_matrix((dots * a.data, a.indices, a.indptr), a.shape)
    close(e, weights @ d)

    for each in (spmm, spmm_t, sddmm, fused):
        call("plan_destroy", each)
    call("csr_destroy", csr)


cpu = made("cpu_create", size(2))
for path in (1, 2):
    compare(cpu, np.float32, ct.c_float, "f32", path)
    compare(cpu, np.float64, ct.c_double, "f64", path)
call("cpu_destroy", cpu)
print("the C interface agrees with scipy")

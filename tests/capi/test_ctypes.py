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
INDEX = {"uint32": 0, "int32": 1, "uint64": 2, "int64": 3}
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


def compare(cpu, dtype, real, suffix, path, index):
    rng = np.random.default_rng(1)
    m, k, n, p = 700, 500, 48, 17
    a = sp.random(m, k, 0.15, "csr", dtype, rng)
    # Columns of a wider array: rows are further apart than they are long.
    dense = lambda rows, cols: rng.random((rows, cols + 5)).astype(dtype)[:, :cols]
    b, c, d, e = dense(k, n), dense(m, n), dense(k, p), dense(m, p)
    tolerance = 1e3 * np.finfo(dtype).eps
    if index is None:
        row_ptr, col_idx = a.indptr.astype(np.uintp), a.indices.astype(np.uint32)
        csr = made("csr_create_" + suffix, size(m), size(k), at(row_ptr), at(col_idx), at(a.data))
    else:  # scipy's own arrays, or wider row pointers beside them
        row_ptr = a.indptr.astype(index, copy=False)
        csr = made("csr_borrow_" + suffix, size(m), size(k), at(row_ptr), INDEX[row_ptr.dtype.name],
                   at(a.indices), INDEX[a.indices.dtype.name], at(a.data))

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


def tensors(cpu, dtype, real, suffix):
    rng = np.random.default_rng(2)
    dims, rank = (30, 20, 25), 7
    full = np.where(rng.random(dims) < 0.1, rng.random(dims) - 0.5, 0).astype(dtype)
    coords = [np.ascontiguousarray(c.astype(np.uint32)) for c in np.nonzero(full)]
    values = full[np.nonzero(full)]
    lists = (handle * 3)(*map(at, coords))
    lengths = (size * 3)(*dims)
    tensor = made("tensor_create_" + suffix, size(3), lengths, size(len(values)), lists, at(values))
    factors = [rng.random((dim, rank + 3)).astype(dtype)[:, :rank] for dim in dims]
    pointers, strides = (handle * 3)(*map(at, factors)), (size * 3)(*(ld(f).value for f in factors))
    products = ("ijk,jr,kr->ir", "ijk,ir,kr->jr", "ijk,ir,jr->kr")
    tolerance = 1e3 * np.finfo(dtype).eps
    for form in range(12):
        prepared = made("mttkrp_create", cpu, tensor, size(rank), form)
        call("mttkrp_set_values_" + suffix, cpu, prepared, at(values * 2), size(len(values)))
        for mode, product in enumerate(products):
            out = np.zeros((dims[mode], rank), dtype)
            call("mttkrp_" + suffix, cpu, prepared, size(mode), size(rank), pointers, strides, at(out), ld(out))
            others = [f for m, f in enumerate(factors) if m != mode]
            np.testing.assert_allclose(out, np.einsum(product, 2 * full, *others), rtol=tolerance, atol=tolerance)
        outs = [np.zeros((dim, rank + mode), dtype)[:, :rank] for mode, dim in enumerate(dims)]
        places, ldos = (handle * 3)(*map(at, outs)), (size * 3)(*(ld(out).value for out in outs))
        call("mttkrp_all_" + suffix, cpu, prepared, size(rank), pointers, strides, places, ldos)
        for mode, product in enumerate(products):
            others = [f for m, f in enumerate(factors) if m != mode]
            expected = np.einsum(product, 2 * full, *others)
            np.testing.assert_allclose(outs[mode], expected, rtol=tolerance, atol=tolerance)
        call("mttkrp_destroy", prepared)

    class Options(ct.Structure):
        _fields_ = [("iterations", size), ("tolerance", ct.c_double), ("ridge", ct.c_double),
                    ("nonnegative", ct.c_uint32), ("start_from_factors", ct.c_uint32), ("seed", ct.c_uint64)]

    # The fit that is returned is that of the model that is returned.
    prepared = made("mttkrp_create", cpu, tensor, size(rank), 0)
    weights, fit, iterations = np.zeros(rank), ct.c_double(), size()
    options = Options(iterations=12, start_from_factors=1)
    call("cp_als_" + suffix, cpu, prepared, size(rank), ct.byref(options), pointers, strides, at(weights),
         ct.byref(fit), ct.byref(iterations))
    model = np.einsum("r,ir,jr,kr->ijk", weights, *factors)
    np.testing.assert_allclose(fit.value, 1 - np.linalg.norm(full - model) / np.linalg.norm(full), atol=tolerance)
    assert iterations.value == 12 and 0 < fit.value < 1, (iterations, fit)
    call("mttkrp_destroy", prepared)

    class TuckerOptions(ct.Structure):
        _fields_ = [("iterations", size), ("tolerance", ct.c_double), ("start", ct.c_uint32), ("seed", ct.c_uint64)]

    ranks = (5, 4, 6)
    orthonormal = [np.zeros((dim, rank)) for dim, rank in zip(dims, ranks)]
    places, strides = (handle * 3)(*map(at, orthonormal)), (size * 3)(*ranks)
    core, options = np.zeros(ranks), TuckerOptions(iterations=5, seed=1)
    call("tucker", cpu, tensor, (size * 3)(*ranks), ct.byref(options), places, strides, at(core), ct.byref(fit),
         ct.byref(iterations))
    model = np.einsum("abc,ia,jb,kc->ijk", core, *orthonormal)
    np.testing.assert_allclose(fit.value, 1 - np.linalg.norm(full - model) / np.linalg.norm(full), atol=tolerance)
    assert iterations.value == 5 and 0 < fit.value < 1, (iterations, fit)

    scaled = made("ts", cpu, 2, tensor, ct.c_double(3.0))
    total, found = made("tew", cpu, 0, scaled, tensor), handle()
    call("tensor_values_" + suffix, total, ct.byref(found))
    sums = np.ctypeslib.as_array(ct.cast(found, ct.POINTER(real)), values.shape)
    np.testing.assert_allclose(sums, 4 * values, rtol=tolerance)
    call("tensor_destroy", total)
    call("tensor_destroy", scaled)
    call("tensor_destroy", tensor)


cpu = made("cpu_create", size(2))
tensors(cpu, np.float32, ct.c_float, "f32")
tensors(cpu, np.float64, ct.c_double, "f64")
for path in (1, 2):
    for index in (None, np.int32, np.int64):
        compare(cpu, np.float32, ct.c_float, "f32", path, index)
        compare(cpu, np.float64, ct.c_double, "f64", path, index)
call("cpu_destroy", cpu)
print("the C interface agrees with numpy and scipy")

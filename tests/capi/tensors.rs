//! Tensors: products, decompositions, arithmetic.

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use sparsimd::capi::*;
use sparsimd::{Stored, bf16, f16};

use super::{good, refused};

#[test]
fn ttm_and_ttv_by_fibers() {
    let (mut cpu, mut tensor, mut fibers) = (null_mut(), null_mut(), null_mut());
    // x(0, 0) = 2, x(0, 2) = 3.
    let (dims, coords, values) = ([2usize, 3], [[0u32, 0], [0, 2]], [2.0f64, 3.0]);
    let lists = [coords[0].as_ptr(), coords[1].as_ptr()];
    let u = [1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0];
    let (mut y, mut count, mut list) = ([0.0f64; 2], 0, null());
    // SAFETY: all arrays are as long as they are said to be.
    unsafe {
        good(sparsimd_cpu_create(2, &mut cpu));
        good(sparsimd_tensor_create_f64(2, dims.as_ptr(), 2, lists.as_ptr(), values.as_ptr(), &mut tensor));
        refused(sparsimd_fibers_create(cpu, tensor, 2, &mut fibers), Status::Argument, "mode");
        good(sparsimd_fibers_create(cpu, tensor, 1, &mut fibers));
        good(sparsimd_fibers_count(fibers, &mut count));
        assert_eq!(count, 1);
        good(sparsimd_fibers_coords(fibers, 0, &mut list));
        assert_eq!(*list, 0);
        refused(sparsimd_fibers_coords(fibers, 1, &mut list), Status::Argument, "level: 1");
        good(sparsimd_ttm_f64(cpu, fibers, 2, u.as_ptr(), 2, y.as_mut_ptr(), 2));
        assert_eq!(y, [17.0, 22.0]);
        good(sparsimd_ttv_f64(cpu, fibers, u.as_ptr(), y.as_mut_ptr()));
        assert_eq!(y[0], 2.0 * 1.0 + 3.0 * 3.0);
        let bad = [[0u32, 2], [0, 2]];
        let lists = [bad[0].as_ptr(), bad[1].as_ptr()];
        let mut none = null_mut();
        let call = sparsimd_tensor_create_f64(2, dims.as_ptr(), 2, lists.as_ptr(), values.as_ptr(), &mut none);
        refused(call, Status::Structure, "2");
        good(sparsimd_fibers_destroy(fibers));
        good(sparsimd_tensor_destroy(tensor));
        good(sparsimd_cpu_destroy(cpu));
    }
}

/// Numbers that both types of halves have exactly, and a sum that they have not.
#[test]
fn factors_of_halves() {
    fn check<D: Stored<Scalar = f32>>(half: Half, bits: fn(D) -> u16, from_bits: fn(u16) -> D) {
        let (mut cpu, mut tensor, mut fibers, mut prepared) = (null_mut(), null_mut(), null_mut(), null_mut());
        // x(0, 0) = 2, x(0, 2) = 3.
        let (dims, coords, values) = ([2usize, 3], [[0u32, 0], [0, 2]], [2.0f32, 3.0]);
        let lists = [coords[0].as_ptr(), coords[1].as_ptr()];
        // Rows of 2 columns, 3 elements apart.
        let u = [1.0f32, 2.0, -1.0, 3.0, 4.0, -1.0, 1365.0, 6.0].map(|x| bits(D::narrow(x)));
        let large = D::narrow(1365.0).widen();
        let (mut y, mut out, half) = ([0u16; 2], [9.0f32; 4], half as u32);
        let factors = [null(), u.as_ptr()];
        // SAFETY: all arrays are as long as they are said to be.
        unsafe {
            good(sparsimd_cpu_create(1, &mut cpu));
            good(sparsimd_tensor_create_f32(2, dims.as_ptr(), 2, lists.as_ptr(), values.as_ptr(), &mut tensor));
            good(sparsimd_fibers_create(cpu, tensor, 1, &mut fibers));
            good(sparsimd_ttm_half(cpu, fibers, half, 2, u.as_ptr(), 3, y.as_mut_ptr(), 2));
            assert_eq!(y.map(from_bits), [D::narrow(2.0 + 3.0 * large), D::narrow(22.0)]);
            let call = sparsimd_ttm_half(cpu, fibers, 2, 2, u.as_ptr(), 3, y.as_mut_ptr(), 2);
            refused(call, Status::Argument, "sparsimd_half");
            refused(
                sparsimd_mttkrp_create_half(cpu, tensor, 2, 2, 0, &mut prepared),
                Status::Argument,
                "sparsimd_half",
            );
            refused(sparsimd_mttkrp_create_half(cpu, tensor, half, 2, 12, &mut prepared), Status::Argument, "format");
            let strides = [0usize, 3];
            // Made for floats, and in each format for halves.
            good(sparsimd_mttkrp_create(cpu, tensor, 2, 0, &mut prepared));
            for format in 0..12 {
                let (at, of) = (out.as_mut_ptr(), (factors.as_ptr(), strides.as_ptr()));
                good(sparsimd_mttkrp_half(cpu, prepared, half, 0, 2, of.0, of.1, at, 2));
                assert_eq!(std::mem::replace(&mut out, [9.0; 4]), [2.0 + 3.0 * large, 22.0, 0.0, 0.0], "{format}");
                good(sparsimd_mttkrp_destroy(prepared));
                good(sparsimd_mttkrp_create_half(cpu, tensor, half, 2, format, &mut prepared));
            }
            let at = out.as_mut_ptr();
            let call = sparsimd_mttkrp_half(cpu, prepared, 7, 0, 2, factors.as_ptr(), strides.as_ptr(), at, 2);
            refused(call, Status::Argument, "sparsimd_half");
            good(sparsimd_mttkrp_destroy(prepared));
            good(sparsimd_fibers_destroy(fibers));
            good(sparsimd_tensor_destroy(tensor));
            good(sparsimd_cpu_destroy(cpu));
        }
    }
    check(Half::Bf16, bf16::to_bits, bf16::from_bits);
    check(Half::F16, f16::to_bits, f16::from_bits);
}

#[test]
fn mttkrp_and_cp_als() {
    let (mut cpu, mut tensor, mut prepared) = (null_mut(), null_mut(), null_mut());
    // x(0, 1) = 2, x(2, 0) = 3.
    let (dims, coords, values) = ([3usize, 2], [[0u32, 2], [1, 0]], [2.0f32, 3.0]);
    let lists = [coords[0].as_ptr(), coords[1].as_ptr()];
    // Rows of 2 columns, 3 elements apart.
    let factor = [1.0f32, 2.0, -1.0, 3.0, 4.0, -1.0];
    let factors = [null(), factor.as_ptr()];
    let strides = [2usize, 3];
    let mut out = [9.0f32; 6];
    // SAFETY: all arrays are as long as they are said to be.
    unsafe {
        good(sparsimd_cpu_create(1, &mut cpu));
        good(sparsimd_tensor_create_f32(2, dims.as_ptr(), 2, lists.as_ptr(), values.as_ptr(), &mut tensor));
        refused(sparsimd_mttkrp_create(cpu, tensor, 2, 12, &mut prepared), Status::Argument, "tensor_format");
        assert!(prepared.is_null());
        for format in 0..12 {
            good(sparsimd_mttkrp_create(cpu, tensor, 2, format, &mut prepared));
            let mut run = || {
                let (f, s) = (factors.as_ptr(), strides.as_ptr());
                sparsimd_mttkrp_f32(cpu, prepared, 0, 2, f, s, out.as_mut_ptr(), 2)
            };
            good(run());
            let new = [1.0f32, 0.5];
            let short = sparsimd_mttkrp_set_values_f32(cpu, prepared, new.as_ptr(), 1);
            refused(short, Status::Shape, "1 values for 2 entries");
            good(sparsimd_mttkrp_set_values_f32(cpu, prepared, new.as_ptr(), 2));
            good(run());
            assert_eq!(out, [3.0, 4.0, 0.0, 0.0, 0.5, 1.0], "format {format}");
            let (mut first, mut second) = ([9.0f32; 6], [9.0f32; 5]);
            let rows = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
            let (inputs, outs) = ([rows.as_ptr(), factor.as_ptr()], [first.as_mut_ptr(), second.as_mut_ptr()]);
            let all = |outs: [*mut f32; 2]| {
                let (f, s, ldos) = (inputs.as_ptr(), strides.as_ptr(), [2usize, 3]);
                sparsimd_mttkrp_all_f32(cpu, prepared, 2, f, s, outs.as_ptr(), ldos.as_ptr())
            };
            good(all(outs));
            assert_eq!(first, out, "format {format}");
            // Columns 0 and 1 of rows 3 elements apart.
            assert_eq!(second, [2.5, 3.0, 9.0, 1.0, 2.0], "format {format}");
            refused(all([outs[0], outs[0]]), Status::Argument, "outs: overlaps");
            refused(all([rows.as_ptr().cast_mut(), outs[1]]), Status::Argument, "outs: overlaps");
            refused(all([outs[0], null_mut()]), Status::Argument, "outs: the pointer is null");
            good(sparsimd_mttkrp_destroy(prepared));
        }
        good(sparsimd_mttkrp_create(cpu, tensor, 1, 0, &mut prepared));
        let mut text = null();
        good(sparsimd_mttkrp_text(prepared, &mut text));
        assert!(!CStr::from_ptr(text).is_empty());
        let call = sparsimd_mttkrp_f32(cpu, prepared, 2, 2, factors.as_ptr(), strides.as_ptr(), out.as_mut_ptr(), 2);
        refused(call, Status::Argument, "mode: 2");
        let call = sparsimd_mttkrp_f32(cpu, prepared, 1, 2, factors.as_ptr(), strides.as_ptr(), out.as_mut_ptr(), 2);
        refused(call, Status::Argument, "factors: the pointer is null");
        let call = sparsimd_mttkrp_f64(cpu, prepared, 0, 2, null(), null(), null_mut(), 2);
        refused(call, Status::Handle, "f64");

        // Two components are the whole of it: the rows of its matrix are orthogonal.
        let mut options =
            CpAlsOptions { iterations: 0, tolerance: 0.0, ridge: 0.0, nonnegative: 0, start_from_factors: 1, seed: 0 };
        let (mut a, mut b) = ([1.0f32, 0.0, 0.0, 0.0, 0.0, 1.0], [0.0f32, 1.0, 1.0, 0.0]);
        let places = [a.as_mut_ptr(), b.as_mut_ptr()];
        let (mut weights, mut fit, mut iterations) = ([0.0f64; 2], 0.0, 0);
        let mut decompose = |options: &CpAlsOptions, iterations: *mut usize| {
            let (w, s) = (weights.as_mut_ptr(), [2usize, 2]);
            sparsimd_cp_als_f32(cpu, prepared, 2, options, places.as_ptr(), s.as_ptr(), w, &mut fit, iterations)
        };
        refused(decompose(&options, &mut iterations), Status::Argument, "iterations");
        options.iterations = 3;
        refused(decompose(&options, null_mut()), Status::Argument, "iterations: the pointer is null");
        good(decompose(&options, &mut iterations));
        assert_eq!((iterations, weights), (3, [2.0, 3.0]));
        assert!((fit - 1.0).abs() < 1e-6);
        assert_eq!((a, b), ([1.0, 0.0, 0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]));
        good(sparsimd_mttkrp_destroy(prepared));
        good(sparsimd_tensor_destroy(tensor));
        good(sparsimd_cpu_destroy(cpu));
    }
}

/// A tensor's places and values, as C sees them.
fn entries(tensor: *const TensorHandle, order: usize) -> (Vec<Vec<u32>>, Vec<f32>) {
    let (mut nnz, mut coords, mut values) = (0, null(), null());
    // SAFETY: lists are as long as there are nonzeros.
    unsafe {
        good(sparsimd_tensor_nnz(tensor, &mut nnz));
        let lists = (0..order).map(|mode| {
            good(sparsimd_tensor_coords(tensor, mode, &mut coords));
            std::slice::from_raw_parts(coords, nnz).to_vec()
        });
        let lists = lists.collect();
        good(sparsimd_tensor_values_f32(tensor, &mut values));
        (lists, std::slice::from_raw_parts(values, nnz).to_vec())
    }
}

#[test]
fn tew_and_ts() {
    let (mut cpu, mut x, mut z, mut y) = (null_mut(), null_mut(), null_mut(), null_mut());
    let dims = [3usize, 2];
    // x(0, 1) = 2, x(2, 0) = 3; z(0, 1) = 4, z(1, 1) = 5.
    let (first, second) = ([[0u32, 2], [1, 0]], [[0u32, 1], [1, 1]]);
    let lists = |coords: &[[u32; 2]; 2]| [coords[0].as_ptr(), coords[1].as_ptr()];
    // SAFETY: all arrays are as long as they are said to be; handles are destroyed once.
    unsafe {
        good(sparsimd_cpu_create(1, &mut cpu));
        let (a, b) = (lists(&first), lists(&second));
        good(sparsimd_tensor_create_f32(2, dims.as_ptr(), 2, a.as_ptr(), [2.0f32, 3.0].as_ptr(), &mut x));
        good(sparsimd_tensor_create_f32(2, dims.as_ptr(), 2, b.as_ptr(), [4.0f32, 5.0].as_ptr(), &mut z));
        good(sparsimd_tew(cpu, Arithmetic::Sub as u32, x, z, &mut y));
        assert_eq!(entries(y, 2), (vec![vec![0, 1, 2], vec![1, 1, 0]], vec![-2.0, -5.0, 3.0]));
        good(sparsimd_tensor_destroy(y));
        good(sparsimd_tew(cpu, Arithmetic::Mul as u32, x, z, &mut y));
        assert_eq!(entries(y, 2), (vec![vec![0], vec![1]], vec![8.0]));
        good(sparsimd_tensor_destroy(y));
        good(sparsimd_tew(cpu, Arithmetic::Add as u32, x, x, &mut y));
        assert_eq!(entries(y, 2), (vec![vec![0, 2], vec![1, 0]], vec![4.0, 6.0]));
        good(sparsimd_tensor_destroy(y));
        good(sparsimd_ts(cpu, Arithmetic::Div as u32, x, 4.0, &mut y));
        assert_eq!(entries(y, 2).1, [0.5, 0.75]);
        good(sparsimd_tensor_destroy(y));

        refused(sparsimd_tew(cpu, Arithmetic::Div as u32, x, z, &mut y), Status::Argument, "");
        assert!(y.is_null());
        refused(sparsimd_ts(cpu, Arithmetic::Div as u32, x, 0.0, &mut y), Status::Argument, "0");
        refused(sparsimd_ts(cpu, 4, x, 1.0, &mut y), Status::Argument, "sparsimd_arithmetic");
        refused(sparsimd_tew(cpu, 0, x, null(), &mut y), Status::Handle, "tensor");
        refused(sparsimd_ts(cpu, 0, x, 1.0, null_mut()), Status::Argument, "null");
        let (mut coords, mut values) = (null(), null());
        refused(sparsimd_tensor_coords(x, 2, &mut coords), Status::Argument, "mode: 2 is not below 2");
        refused(sparsimd_tensor_values_f64(x, &mut values), Status::Handle, "f64");
        let (mut short, one) = (null_mut(), [2usize, 2]);
        good(sparsimd_tensor_create_f32(2, one.as_ptr(), 0, b.as_ptr(), null(), &mut short));
        refused(sparsimd_tew(cpu, 0, x, short, &mut y), Status::Shape, "");
        for tensor in [x, z, short] {
            good(sparsimd_tensor_destroy(tensor));
        }
        good(sparsimd_cpu_destroy(cpu));
    }
}

#[test]
fn tucker() {
    let (mut cpu, mut tensor) = (null_mut(), null_mut());
    // x(0, 1) = 2, x(2, 0) = 3: ranks of 2 hold all of it.
    let (dims, coords, values) = ([3usize, 2], [[0u32, 2], [1, 0]], [2.0f32, 3.0]);
    let lists = [coords[0].as_ptr(), coords[1].as_ptr()];
    // Rows of 2 columns, 3 elements apart.
    let (mut a, mut b, mut core) = ([9.0f64; 8], [9.0f64; 5], [9.0f64; 4]);
    let (mut fit, mut iterations) = (9.0, 0);
    let mut options = TuckerOptions { iterations: 0, tolerance: 0.0, start: TuckerStart::Svd as u32, seed: 3 };
    // SAFETY: all arrays are as long as they are said to be.
    unsafe {
        good(sparsimd_cpu_create(1, &mut cpu));
        good(sparsimd_tensor_create_f32(2, dims.as_ptr(), 2, lists.as_ptr(), values.as_ptr(), &mut tensor));
        let (places, strides, core_at) = ([a.as_mut_ptr(), b.as_mut_ptr()], [3usize, 3], core.as_mut_ptr());
        let (fit_at, iterations_at) = (&raw mut fit, &raw mut iterations);
        let run = |ranks: [usize; 2], places: [*mut f64; 2], options: &TuckerOptions, core: *mut f64| {
            let (p, s) = (places.as_ptr(), strides.as_ptr());
            sparsimd_tucker(cpu, tensor, ranks.as_ptr(), options, p, s, core, fit_at, iterations_at)
        };
        refused(run([2, 2], places, &options, core_at), Status::Argument, "iterations");
        options.iterations = 3;
        refused(run([2, 3], places, &options, core_at), Status::Argument, "");
        refused(run([2, 2], [places[0]; 2], &options, core_at), Status::Argument, "factors: overlaps");
        refused(run([2, 2], places, &options, places[1]), Status::Argument, "core: overlaps");
        refused(run([usize::MAX, 3], places, &options, core_at), Status::Argument, "");
        refused(run([2, 2], places, &TuckerOptions { start: 3, ..options }, core_at), Status::Argument, "tucker_start");
        for start in [TuckerStart::Svd, TuckerStart::Random, TuckerStart::Factors] {
            good(run([2, 2], places, &TuckerOptions { start: start as u32, ..options }, core_at));
            assert!((fit - 1.0).abs() < 1e-6 && iterations == 3, "{fit} after {iterations}");
            for (i, row) in a.chunks(3).enumerate() {
                for (j, other) in b.chunks(3).enumerate() {
                    let model: f64 = (0..4).map(|g| core[g] * row[g / 2] * other[g % 2]).sum();
                    let expected = f64::from((i, j) == (0, 1)) * 2.0 + f64::from((i, j) == (2, 0)) * 3.0;
                    assert!((model - expected).abs() < 1e-5, "({i}, {j}): {model} instead of {expected}");
                }
            }
        }
        good(sparsimd_tensor_destroy(tensor));
        good(sparsimd_cpu_destroy(cpu));
    }
    assert_eq!([a[2], a[5], b[2]], [9.0; 3], "elements between the rows are left alone");
}

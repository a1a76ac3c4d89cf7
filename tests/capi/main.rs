//! The C interface refuses what is wrong, with a status and a message, and computes what the reference does.

mod reductions;
mod tensors;

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use sparsimd::capi::*;
use sparsimd::{Csr, MatRef, Pattern, Stored, bf16, f16, reference};

fn message() -> String {
    // SAFETY: valid until this thread's next failure.
    unsafe { CStr::from_ptr(sparsimd_last_error()) }.to_str().expect("UTF-8").to_owned()
}

/// `call` is refused with `status` and a message that contains `words`.
fn refused(call: Status, status: Status, words: &str) {
    assert_eq!(call, status, "{}", message());
    assert!(message().contains(words), "{:?} does not contain {words:?}", message());
}

fn good(call: Status) {
    assert_eq!(call, Status::Ok, "{}", message());
}

struct Fixture {
    cpu: *mut CpuHandle,
    csr: *mut CsrHandle,
    plan: *mut PlanHandle,
}

const ROW_PTR: [usize; 3] = [0, 2, 3];
const COL_IDX: [u32; 3] = [0, 2, 1];
const VALUES: [f32; 3] = [1.0, 2.0, 3.0];

impl Fixture {
    fn new(op: Op) -> Self {
        let (mut cpu, mut csr, mut plan) = (null_mut(), null_mut(), null_mut());
        // SAFETY: all arrays are as long as they are said to be.
        unsafe {
            good(sparsimd_cpu_create(1, &mut cpu));
            good(sparsimd_csr_create_f32(2, 3, ROW_PTR.as_ptr(), COL_IDX.as_ptr(), VALUES.as_ptr(), &mut csr));
            good(sparsimd_plan_create(cpu, op as u32, csr, 2, Path::Panel as u32, 9, &mut plan));
        }
        Self { cpu, csr, plan }
    }

    fn spmm(&self, b: &[f32], ldb: usize, c: &mut [f32], ldc: usize) -> Status {
        // SAFETY: the arrays of these tests hold 3 and 2 rows of their strides.
        unsafe { sparsimd_spmm_f32(self.cpu, self.plan, 2, 1.0, b.as_ptr(), ldb, 0.0, c.as_mut_ptr(), ldc) }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        unsafe {
            good(sparsimd_plan_destroy(self.plan));
            good(sparsimd_csr_destroy(self.csr));
            good(sparsimd_cpu_destroy(self.cpu));
        }
    }
}

#[test]
fn spmm_with_strides_and_new_values() {
    let f = Fixture::new(Op::Spmm);
    let b: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let mut c = [7.0f32; 6];
    good(f.spmm(&b, 4, &mut c, 3));
    let a = Csr::new(Pattern::new(2, 3, ROW_PTR.to_vec(), COL_IDX.to_vec()).unwrap(), VALUES.to_vec()).unwrap();
    let (b_view, c_view) = (MatRef::new(&b, 3, 2, 4).unwrap(), MatRef::new(&c, 2, 2, 3).unwrap());
    let error = reference::spmm(1.0, &a, b_view, 0.0, c_view).unwrap().deviation(c_view).unwrap();
    assert!(error.error <= 1.0);
    assert_eq!([c[2], c[5]], [7.0, 7.0], "elements between the rows are left alone");
    // SAFETY: three values.
    unsafe { good(sparsimd_plan_set_values_f32(f.plan, [0.0, 0.0, 1.0].as_ptr(), 3)) };
    good(f.spmm(&b, 4, &mut c, 3));
    assert_eq!(c, [0.0, 0.0, 7.0, 4.0, 5.0, 7.0]);
}

#[test]
fn batches() {
    let f = Fixture::new(Op::Spmm);
    let (mut batch, mut other, mut none) = (null_mut(), null_mut(), null_mut());
    let (mut rows, mut cols, mut nnz) = (0, 0, 0);
    // SAFETY: all arrays are as long as they are said to be; handles are destroyed once.
    unsafe {
        good(sparsimd_csr_block_diagonal(2, [f.csr.cast_const(); 2].as_ptr(), &mut batch));
        good(sparsimd_csr_shape(batch, &mut rows, &mut cols, &mut nnz));
        assert_eq!((rows, cols, nnz), (4, 6, 6));
        let mut plan = null_mut();
        good(sparsimd_plan_create(f.cpu, Op::Spmm as u32, batch, 1, Path::Auto as u32, 9, &mut plan));
        let (b, mut c) = ([1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0f32; 4]);
        good(sparsimd_spmm_f32(f.cpu, plan, 1, 1.0, b.as_ptr(), 1, 0.0, c.as_mut_ptr(), 1));
        assert_eq!(c, [7.0, 6.0, 16.0, 15.0]);
        good(sparsimd_plan_destroy(plan));

        let values = VALUES.map(f64::from);
        good(sparsimd_csr_create_f64(2, 3, ROW_PTR.as_ptr(), COL_IDX.as_ptr(), values.as_ptr(), &mut other));
        let refuse = |count, blocks: [*const CsrHandle; 2], status, words: &str| {
            let mut made = null_mut();
            refused(sparsimd_csr_block_diagonal(count, blocks.as_ptr(), &mut made), status, words);
            assert!(made.is_null());
        };
        refuse(0, [f.csr, f.csr], Status::Argument, "0 blocks");
        refuse(2, [f.csr, other], Status::Handle, "f32");
        refuse(2, [f.csr, null()], Status::Handle, "null");
        good(sparsimd_csr_create_f32(2, 3, ROW_PTR.as_ptr(), COL_IDX.as_ptr(), null(), &mut none));
        refuse(2, [f.csr, none], Status::Argument, "some have values");
        for csr in [batch, other] {
            good(sparsimd_csr_destroy(csr));
        }
        // A pattern alone, and borrowed arrays.
        let mut borrowed = null_mut();
        let (pointers, columns) = (ROW_PTR.as_ptr().cast(), COL_IDX.as_ptr().cast());
        let (wide, narrow) = (Index::U64 as u32, Index::U32 as u32);
        good(sparsimd_csr_borrow_f32(2, 3, pointers, wide, columns, narrow, null(), &mut borrowed));
        good(sparsimd_csr_block_diagonal(2, [none.cast_const(), borrowed].as_ptr(), &mut batch));
        good(sparsimd_csr_shape(batch, &mut rows, &mut cols, &mut nnz));
        assert_eq!((rows, cols, nnz), (4, 6, 6));
        for csr in [batch, none, borrowed] {
            good(sparsimd_csr_destroy(csr));
        }
    }
}

#[test]
fn operands_of_halves() {
    /// The bits of `values`, and what bits are.
    fn check<D: Stored<Scalar = f32>>(half: Half, bits: fn(D) -> u16, from_bits: fn(u16) -> D) {
        let f = Fixture::new(Op::Spmm);
        let b: Vec<D> = (0..12).map(|i| D::narrow(i as f32 / 3.0)).collect();
        let b_bits: Vec<u16> = b.iter().map(|&x| bits(x)).collect();
        let mut c = [bits(D::narrow(7.0)); 6];
        let (half, n) = (half as u32, 2);
        // SAFETY: B holds 3 rows of 4, C 2 rows of 3 elements.
        unsafe {
            let (b, c) = (b_bits.as_ptr(), c.as_mut_ptr());
            good(sparsimd_spmm_half(f.cpu, f.plan, half, n, 1.0, b, 4, 0.0, c, 3));
            refused(sparsimd_spmm_half(f.cpu, f.plan, 2, n, 1.0, b, 4, 0.0, c, 3), Status::Argument, "sparsimd_half");
        }
        let c: Vec<D> = c.iter().map(|&x| from_bits(x)).collect();
        let a = Csr::new(Pattern::new(2, 3, ROW_PTR.to_vec(), COL_IDX.to_vec()).unwrap(), VALUES.to_vec()).unwrap();
        let (b_view, c_view) = (MatRef::new(&b, 3, 2, 4).unwrap(), MatRef::new(&c, 2, 2, 3).unwrap());
        let expected = reference::spmm(1.0, &a, b_view, 0.0, c_view).unwrap();
        assert!(expected.deviation(c_view).unwrap().error <= 1.0);
        assert_eq!([c[2], c[5]], [D::narrow(7.0); 2], "elements between the rows are left alone");
        let (f, mut out) = (Fixture::new(Op::Sddmm), [0.0f32; 3]);
        let expected = reference::sddmm(&a, true, b_view.row_range(0..2).unwrap(), b_view).unwrap();
        // SAFETY: C is the first 2 of B's 3 rows; one element for each nonzero.
        unsafe {
            let (b, out) = (b_bits.as_ptr(), out.as_mut_ptr());
            good(sparsimd_sddmm_scaled_half(f.cpu, f.plan, half, n, b, 4, b, 4, out));
        }
        assert!(expected.deviation_of_values(&out).unwrap().error <= 1.0);
        // Results of halves, too.
        let mut out = [0u16; 3];
        // SAFETY: as above.
        unsafe {
            let (b, at) = (b_bits.as_ptr(), out.as_mut_ptr());
            good(sparsimd_sddmm_scaled_all_half(f.cpu, f.plan, half, n, b, 4, b, 4, at));
            let out: Vec<D> = out.iter().map(|&x| from_bits(x)).collect();
            assert!(expected.stored_as::<D>().deviation_of_values(&out).unwrap().error <= 1.0);
            good(sparsimd_sddmm_all_half(f.cpu, f.plan, half, n, b, 4, b, 4, at));
        }
        let expected = reference::sddmm(&a, false, b_view.row_range(0..2).unwrap(), b_view).unwrap().stored_as::<D>();
        assert!(expected.deviation_of_values(&out.map(from_bits)).unwrap().error <= 1.0);
        let (f, mut e) = (Fixture::new(Op::Fusedmm), [0u16; 4]);
        let views = (b_view.row_range(0..2).unwrap(), b_view);
        let expected = reference::fusedmm(&a, reference::Edge::Scale, views.0, views.1, views.1).unwrap();
        // SAFETY: as above; E holds 2 rows of 2 elements.
        unsafe {
            let (b, e) = (b_bits.as_ptr(), e.as_mut_ptr());
            let scale = Edge::Scale as u32;
            good(sparsimd_fusedmm_half(f.cpu, f.plan, half, scale, 0.0, n, b, 4, b, 4, n, b, 4, e, 2));
        }
        let e: Vec<D> = e.iter().map(|&x| from_bits(x)).collect();
        assert!(expected.deviation(MatRef::new(&e, 2, 2, 2).unwrap()).unwrap().error <= 1.0);
    }
    check(Half::Bf16, bf16::to_bits, bf16::from_bits);
    check(Half::F16, f16::to_bits, f16::from_bits);
}

#[test]
fn values_of_halves() {
    fn check<D: Stored<Scalar = f32>>(half: Half, bits: fn(D) -> u16) {
        let values = [0.1f32, 2.0, -3.3].map(D::narrow);
        let (first, other) = (values.map(bits), [1.0f32, 0.7, 0.0].map(D::narrow));
        let (pointers, columns) = (ROW_PTR.as_ptr().cast(), COL_IDX.as_ptr().cast());
        let (wide, narrow, half) = (Index::U64 as u32, Index::U32 as u32, half as u32);
        let (f, mut csr, mut both) = (Fixture::new(Op::Spmm), null_mut(), null_mut());
        let b = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        // The sums that the values make, exact but for three roundings.
        let right = |values: [D; 3], c: [f32; 4]| {
            let v = values.map(D::widen);
            let wanted = [v[0] + 5.0 * v[1], 2.0 * v[0] + 6.0 * v[1], 3.0 * v[2], 4.0 * v[2]];
            assert!(c.iter().zip(wanted).all(|(x, y)| (x - y).abs() <= 8.0 * f32::EPSILON * 15.0), "{c:?} {wanted:?}");
        };
        // SAFETY: all arrays are as long as they are said to be, and outlive the handles.
        unsafe {
            let v = first.as_ptr();
            good(sparsimd_csr_borrow_half(2, 3, pointers, wide, columns, narrow, half, v, &mut csr));
            for path in [Path::Direct, Path::Panel] {
                let (mut plan, mut c) = (null_mut(), [7.0f32; 4]);
                good(sparsimd_plan_create(f.cpu, Op::Spmm as u32, csr, 2, path as u32, 9, &mut plan));
                good(sparsimd_spmm_f32(f.cpu, plan, 2, 1.0, b.as_ptr(), 2, 0.0, c.as_mut_ptr(), 2));
                right(values, c);
                good(sparsimd_plan_set_values_half(plan, half, other.map(bits).as_ptr(), 3));
                good(sparsimd_spmm_f32(f.cpu, plan, 2, 1.0, b.as_ptr(), 2, 0.0, c.as_mut_ptr(), 2));
                right(other, c);
                let call = sparsimd_plan_set_values_half(plan, half, first.as_ptr(), 2);
                refused(call, Status::Shape, "2 values");
                let call = sparsimd_plan_set_values_half(plan, 2, first.as_ptr(), 3);
                refused(call, Status::Argument, "sparsimd_half");
                good(sparsimd_plan_destroy(plan));
            }
            let call = sparsimd_csr_block_diagonal(2, [csr.cast_const(), f.csr].as_ptr(), &mut both);
            refused(call, Status::Argument, "values of 16 bits");
            good(sparsimd_csr_destroy(csr));
            let call = sparsimd_csr_borrow_half(2, 3, pointers, wide, columns, narrow, 2, v, &mut csr);
            refused(call, Status::Argument, "2 is not a sparsimd_half");
        }
    }
    check(Half::Bf16, bf16::to_bits);
    check(Half::F16, f16::to_bits);
}

#[test]
fn handles_are_checked() {
    let f = Fixture::new(Op::Spmm);
    let (b, mut c) = ([0.0f32; 6], [0.0f32; 4]);
    let mut n = 0;
    // SAFETY: what is refused is not used; everything else is as long as it is said to be.
    unsafe {
        refused(sparsimd_cpu_threads(null(), &mut n), Status::Handle, "cpu: the handle is null");
        refused(sparsimd_cpu_threads(f.csr.cast(), &mut n), Status::Handle, "another kind");
        refused(sparsimd_cpu_threads(f.cpu.byte_add(1), &mut n), Status::Handle, "another kind");
        refused(sparsimd_cpu_threads(f.cpu, null_mut()), Status::Argument, "threads: the pointer is null");
        refused(sparsimd_csr_destroy(f.cpu.cast()), Status::Handle, "csr");
        refused(sparsimd_cpu_create(1, null_mut()), Status::Argument, "cpu: the pointer is null");
        good(sparsimd_csr_destroy(null_mut()));
        let doubles = [0.0f64; 6];
        let call = sparsimd_spmm_f64(f.cpu, f.plan, 2, 1.0, doubles.as_ptr(), 2, 0.0, null_mut(), 2);
        refused(call, Status::Handle, "f64");
        let call = sparsimd_spmm_f32(f.cpu, f.csr.cast(), 2, 1.0, b.as_ptr(), 2, 0.0, c.as_mut_ptr(), 2);
        refused(call, Status::Handle, "plan");
        good(sparsimd_cpu_threads(f.cpu, &mut n));
    }
    assert_eq!(n, 1);
}

#[test]
fn operands_are_checked() {
    let f = Fixture::new(Op::Spmm);
    let (mut b, mut c) = ([0.0f32; 6], [0.0f32; 4]);
    refused(f.spmm(&b, 1, &mut c, 2), Status::Argument, "b: a row stride of 1");
    refused(f.spmm(&b, 2, &mut c, 1), Status::Argument, "c: a row stride of 1");
    refused(f.spmm(&b, usize::MAX, &mut c, 2), Status::Argument, "address space");
    // SAFETY: what is refused is not used; everything else is as long as it is said to be.
    unsafe {
        let null_b = sparsimd_spmm_f32(f.cpu, f.plan, 2, 1.0, null(), 2, 0.0, c.as_mut_ptr(), 2);
        refused(null_b, Status::Argument, "b: the pointer is null");
        let odd = sparsimd_spmm_f32(f.cpu, f.plan, 2, 1.0, b.as_ptr().byte_add(2), 2, 0.0, c.as_mut_ptr(), 2);
        refused(odd, Status::Argument, "aligned");
        let inside = b.as_mut_ptr().add(1);
        let over = sparsimd_spmm_f32(f.cpu, f.plan, 2, 1.0, b.as_ptr(), 2, 0.0, inside, 2);
        refused(over, Status::Argument, "c: overlaps another operand");
        let none = sparsimd_spmm_f32(f.cpu, f.plan, 0, 1.0, b.as_ptr(), 2, 0.0, c.as_mut_ptr(), 2);
        refused(none, Status::Shape, "0 columns");
        let other = sparsimd_spmm_t_f32(f.cpu, f.plan, 2, 1.0, c.as_ptr(), 2, 0.0, b.as_mut_ptr(), 2);
        refused(other, Status::Shape, "prepared for Spmm");
        refused(sparsimd_plan_set_values_f32(f.plan, b.as_ptr(), 2), Status::Shape, "2 values");

        let mut plan = f.plan;
        let call = sparsimd_plan_create(f.cpu, 4, f.csr, 2, 0, 1, &mut plan);
        refused(call, Status::Argument, "4 is not a sparsimd_op");
        assert!(plan.is_null(), "a call that fails leaves null");
        refused(sparsimd_plan_create(f.cpu, 0, f.csr, 2, 5, 1, &mut plan), Status::Argument, "sparsimd_path");
        let mut csr = null_mut();
        let falling = [0usize, 2, 1];
        let call = sparsimd_csr_create_f32(2, 3, falling.as_ptr(), COL_IDX.as_ptr(), VALUES.as_ptr(), &mut csr);
        refused(call, Status::Structure, "row 1: pointers decrease");
        let call = sparsimd_csr_create_f32(2, 2, ROW_PTR.as_ptr(), COL_IDX.as_ptr(), VALUES.as_ptr(), &mut csr);
        refused(call, Status::Structure, "column index 2");
    }
}

#[test]
fn a_pattern_alone_serves_what_needs_no_values() {
    let f = Fixture::new(Op::Sddmm);
    let (mut csr, mut plan) = (null_mut(), null_mut());
    let (c, b, mut out) = ([1.0f32, 2.0, 3.0, 4.0], [1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0], [0.0f32; 3]);
    // SAFETY: all arrays are as long as they are said to be.
    unsafe {
        good(sparsimd_csr_create_f32(2, 3, ROW_PTR.as_ptr(), COL_IDX.as_ptr(), null(), &mut csr));
        good(sparsimd_plan_create(f.cpu, Op::Sddmm as u32, csr, 2, Path::Direct as u32, 1, &mut plan));
        good(sparsimd_sddmm_f32(f.cpu, plan, 2, c.as_ptr(), 2, b.as_ptr(), 2, out.as_mut_ptr()));
        assert_eq!(out, [1.0, 3.0, 4.0]);
        let scaled = sparsimd_sddmm_scaled_f32(f.cpu, plan, 2, c.as_ptr(), 2, b.as_ptr(), 2, out.as_mut_ptr());
        refused(scaled, Status::Shape, "needs the values");
        good(sparsimd_plan_destroy(plan));
        good(sparsimd_csr_destroy(csr));
    }
}

/// Both rows of [`Fixture`]'s matrix as rows 1 and 2 of a larger one, in arrays of the index types named.
fn borrowed<P: TryFrom<u32>, C: TryFrom<u32>>(types: [Index; 2], path: Path) {
    fn converted<I: TryFrom<u32>>(numbers: &[u32]) -> Vec<I> {
        numbers.iter().map(|&i| I::try_from(i).unwrap_or_else(|_| panic!("{i}"))).collect()
    }
    let (row_ptr, col_idx) = (converted::<P>(&[1, 3, 4]), converted::<C>(&[9, 0, 2, 1]));
    let mut values = [f32::NAN, 1.0, 2.0, 3.0];
    let f = Fixture::new(Op::Spmm);
    let (mut csr, mut plan, mut sddmm) = (null_mut(), null_mut(), null_mut());
    let (mut rows, mut cols, mut nnz) = (0, 0, 0);
    let b = [0.0f32, 1.0, 10.0, 11.0, 20.0, 21.0];
    let (mut c, mut dots) = ([7.0f32; 4], [7.0f32; 3]);
    let [row_ptr_type, col_idx_type] = types.map(|index| index as u32);
    // SAFETY: all arrays are as long as they are said to be, and outlive the handles.
    unsafe {
        let (pointers, columns, weights) = (row_ptr.as_ptr().cast(), col_idx.as_ptr().cast(), values.as_mut_ptr());
        good(sparsimd_csr_borrow_f32(2, 3, pointers, row_ptr_type, columns, col_idx_type, weights, &mut csr));
        good(sparsimd_csr_shape(csr, &mut rows, &mut cols, &mut nnz));
        assert_eq!((rows, cols, nnz), (2, 3, 3));
        good(sparsimd_plan_create(f.cpu, Op::Spmm as u32, csr, 2, path as u32, 9, &mut plan));
        good(sparsimd_plan_create(f.cpu, Op::Sddmm as u32, csr, 2, path as u32, 9, &mut sddmm));
        good(sparsimd_csr_destroy(csr));
        let spmm = |plan, c| sparsimd_spmm_f32(f.cpu, plan, 2, 1.0, b.as_ptr(), 2, 0.0, c, 2);
        good(spmm(plan, c.as_mut_ptr()));
        assert_eq!(c, [40.0, 43.0, 30.0, 33.0]);
        refused(spmm(sddmm, c.as_mut_ptr()), Status::Shape, "prepared for Sddmm");
        let scaled = |out| sparsimd_sddmm_scaled_f32(f.cpu, sddmm, 2, b.as_ptr(), 2, b.as_ptr(), 2, out);
        good(scaled(dots.as_mut_ptr()));
        assert_eq!(dots, [1.0, 2.0 * 21.0, 3.0 * 221.0]);
        if let Path::Direct = path {
            refused(scaled(weights.add(1)), Status::Argument, "out: overlaps another operand");
            refused(spmm(plan, columns.cast_mut().cast()), Status::Argument, "c: overlaps another operand");
        }
        refused(sparsimd_plan_set_values_f32(plan, b.as_ptr(), 2), Status::Shape, "2 values");
        good(sparsimd_plan_set_values_f32(plan, [0.0, 0.0, 1.0].as_ptr(), 3));
        good(spmm(plan, c.as_mut_ptr()));
        assert_eq!(c, [0.0, 0.0, 10.0, 11.0]);
        good(sparsimd_plan_destroy(plan));
        good(sparsimd_plan_destroy(sddmm));
    }
}

#[test]
fn borrowed_matrices_of_every_index_type() {
    for path in [Path::Auto, Path::Direct, Path::Panel, Path::Measure] {
        borrowed::<u32, u32>([Index::U32, Index::U32], path);
        borrowed::<i32, i32>([Index::I32, Index::I32], path);
        borrowed::<u64, u32>([Index::U64, Index::U32], path);
        borrowed::<i64, i32>([Index::I64, Index::I32], path);
        borrowed::<i32, u32>([Index::I32, Index::U32], path);
        borrowed::<i64, u32>([Index::I64, Index::U32], path);
    }
}

#[test]
fn borrowed_matrices_are_checked() {
    let (pointers, columns, values) = ([0i32, 2, 3], [0i32, 2, 1], [1.0f64, 2.0, 3.0]);
    let borrow = |rows, cols, pointers: &[i32], (p_type, columns, c_type): (u32, &[i32], u32)| {
        let (p, c, mut csr) = (pointers.as_ptr().cast(), columns.as_ptr().cast(), null_mut());
        // SAFETY: what is refused is not used; everything else is as long as it is said to be.
        let status = unsafe { sparsimd_csr_borrow_f64(rows, cols, p, p_type, c, c_type, values.as_ptr(), &mut csr) };
        assert!(csr.is_null(), "a call that fails leaves null");
        status
    };
    let (structure, argument) = (Status::Structure, Status::Argument);
    refused(borrow(2, 3, &[0, -2, 3], (1, &columns, 1)), structure, "row pointer 1 is negative: -2");
    refused(borrow(2, 3, &[0, 2, -1], (1, &columns, 1)), structure, "row pointer 2 is negative: -1");
    refused(borrow(2, 3, &[0, 3, 2], (1, &columns, 1)), structure, "row 1: pointers decrease");
    refused(borrow(2, 3, &pointers, (1, &[0, -7, 1], 1)), structure, "row 0: column index -7 is negative");
    refused(borrow(2, 2, &pointers, (0, &columns, 0)), structure, "column index 2 is not below 2");
    refused(borrow(2, 3, &pointers, (4, &columns, 1)), argument, "row_ptr_type: 4 is not a sparsimd_index");
    refused(borrow(2, 3, &pointers, (1, &columns, 2)), argument, "col_idx_type: 2 is not");
    refused(borrow(usize::MAX, 3, &pointers, (1, &columns, 1)), argument, "rows: too many");
    let mut csr = null_mut();
    // SAFETY: what is refused is not used; everything else is as long as it is said to be.
    unsafe {
        let (p, c, v) = (pointers.as_ptr(), columns.as_ptr(), values.as_ptr());
        let call = sparsimd_csr_borrow_f64(2, 3, null(), 1, c.cast(), 1, v, &mut csr);
        refused(call, argument, "row_ptr: the pointer is null");
        let call = sparsimd_csr_borrow_f64(2, 3, p.cast(), 1, null(), 1, v, &mut csr);
        refused(call, argument, "col_idx: the pointer is null");
        let call = sparsimd_csr_borrow_f64(2, 3, p.byte_add(2).cast(), 1, c.cast(), 1, v, &mut csr);
        refused(call, argument, "row_ptr: the pointer is not aligned");
        let call = sparsimd_csr_borrow_f64(2, 3, p.cast(), 1, c.cast(), 1, v.byte_add(4), &mut csr);
        refused(call, argument, "values: the pointer is not aligned");
        let (mut cpu, mut plan, mut out) = (null_mut(), null_mut(), [0.0f64; 3]);
        good(sparsimd_cpu_create(1, &mut cpu));
        good(sparsimd_csr_borrow_f64(2, 3, p.cast(), 1, c.cast(), 1, null(), &mut csr));
        good(sparsimd_plan_create(cpu, Op::Sddmm as u32, csr, 1, Path::Direct as u32, 1, &mut plan));
        good(sparsimd_sddmm_f64(cpu, plan, 1, v, 1, v, 1, out.as_mut_ptr()));
        assert_eq!(out, [1.0, 3.0, 4.0]);
        let scaled = sparsimd_sddmm_scaled_f64(cpu, plan, 1, v, 1, v, 1, out.as_mut_ptr());
        refused(scaled, Status::Shape, "needs the values");
        good(sparsimd_plan_destroy(plan));
        good(sparsimd_csr_destroy(csr));
        good(sparsimd_cpu_destroy(cpu));
    }
}

/// FusedMM of two heads and its gradients are what the same calls give in Rust; wrong ones are refused.
#[test]
fn heads_and_gradients() {
    use sparsimd::ops::{EdgeWeighting, FusedGradient};
    use sparsimd::plan::PlanOptions;
    use sparsimd::{Cpu, Mat, edge, generate};
    let f = Fixture::new(Op::Fusedmm);
    let dense = |rows: usize, seed| generate::uniform_values::<f32>(rows * 4, seed);
    let (c, b, d, de) = (dense(2, 1), dense(3, 2), dense(3, 3), dense(2, 4));
    let bias = [0.5f32, -0.25, 0.125];
    let weighting = Weighting { edge: Edge::Softmax as u32, sums: 0, heads: 2, parameter: 0.5, dropout: 0.25, seed: 3 };
    let (mut e, mut lse) = ([0.0f32; 8], [0.0f32; 4]);
    let (mut dc, mut db, mut dd, mut dbias) = ([0.0f32; 8], [0.0f32; 12], [0.0f32; 12], [0.0f32; 3]);
    let mut a = null_mut();
    // SAFETY: all arrays are as long as they are said to be; what is refused is not used.
    unsafe {
        good(sparsimd_differentiable_create(f.cpu, f.csr, 4, Path::Auto as u32, 9, &mut a));
        let lse_at = lse.as_mut_ptr();
        let forward = |weighting: *const Weighting, e: *mut f32, lse: *mut f32| {
            let (c, b, d) = (c.as_ptr(), b.as_ptr(), d.as_ptr());
            sparsimd_fusedmm_heads_f32(f.cpu, a, weighting, 4, c, 4, b, 4, bias.as_ptr(), 4, d, 4, e, 4, lse)
        };
        good(forward(&weighting, e.as_mut_ptr(), lse_at));
        let results = [db.as_mut_ptr(), dd.as_mut_ptr(), dbias.as_mut_ptr()];
        let gradient = |dleft: *mut f32, dvalues: *mut f32| {
            let (c, b, d, de, lse) = (c.as_ptr(), b.as_ptr(), d.as_ptr(), de.as_ptr(), lse_at.cast_const());
            let [dright, dd, dbias] = results;
            sparsimd_fusedmm_gradient_f32(
                f.cpu,
                a,
                &raw const weighting,
                4,
                c,
                4,
                b,
                4,
                bias.as_ptr(),
                4,
                d,
                4,
                lse,
                de,
                4,
                dleft,
                4,
                dright,
                4,
                dd,
                4,
                dvalues,
                dbias,
            )
        };
        good(gradient(dc.as_mut_ptr(), null_mut()));
        refused(gradient(results[0], null_mut()), Status::Argument, "overlaps");
        refused(gradient(dc.as_mut_ptr(), lse_at), Status::Argument, "dvalues: overlaps");
        refused(forward(&weighting, c.as_ptr().cast_mut(), null_mut()), Status::Argument, "e: overlaps");
        refused(forward(null(), e.as_mut_ptr(), null_mut()), Status::Argument, "weighting: the pointer is null");
        let weighting = Weighting { edge: 9, ..weighting };
        refused(forward(&weighting, e.as_mut_ptr(), null_mut()), Status::Argument, "9 is not a sparsimd_edge");
        good(sparsimd_differentiable_destroy(a));
    }
    let cpu = Cpu::builder().threads(1).build().unwrap();
    let pattern = Pattern::new(2, 3, ROW_PTR.to_vec(), COL_IDX.to_vec()).unwrap();
    let prepared =
        cpu.prepare_differentiable::<f32>(&pattern, &PlanOptions::new(sparsimd::plan::Op::FusedMm, 4)).unwrap();
    let view = |x: &'static [f32], rows| MatRef::new(x, rows, 4, 4).unwrap();
    let leak = |x: Vec<f32>| -> &'static [f32] { Vec::leak(x) };
    let (c, b, d, de) = (view(leak(c), 2), view(leak(b), 3), view(leak(d), 3), view(leak(de), 2));
    let weights = EdgeWeighting::dots(edge::Softmax { scale: 0.5 }, c, b).heads(2).bias(&bias).dropout(0.25, 3);
    let mut wanted = Mat::zeros(2, 4).unwrap();
    let mut wanted_lse = Mat::zeros(2, 2).unwrap();
    cpu.fusedmm_heads(&prepared, &weights, d, wanted.as_mut(), Some(wanted_lse.as_mut())).unwrap();
    let (mut left, mut right, mut of_d) =
        (Mat::zeros(2, 4).unwrap(), Mat::zeros(3, 4).unwrap(), Mat::zeros(3, 4).unwrap());
    let mut of_bias = [0.0f32; 3];
    let out = FusedGradient {
        left: left.as_mut(),
        right: right.as_mut(),
        d: of_d.as_mut(),
        values: None,
        bias: Some(&mut of_bias),
    };
    cpu.fusedmm_gradient(&prepared, &weights, d, Some(wanted_lse.as_ref()), de, out).unwrap();
    let flat = |x: &Mat<f32>| x.iter_rows().flatten().copied().collect::<Vec<_>>();
    assert_eq!((flat(&wanted), flat(&wanted_lse)), (e.to_vec(), lse.to_vec()));
    assert_eq!((flat(&left), flat(&right), flat(&of_d)), (dc.to_vec(), db.to_vec(), dd.to_vec()));
    assert_eq!(of_bias, dbias);
}

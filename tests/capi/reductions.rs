//! SpMM with other reductions and over semirings.

use std::ptr::{null, null_mut};

use sparsimd::capi::*;

use crate::{COL_IDX, Fixture, good, refused};

#[test]
fn reductions_and_semirings() {
    let f = Fixture::new(Op::Spmm);
    // [ 1 . 2 ]       [ 0 1 ]
    // [ . 3 . ]  and  [ 2 3 ]
    //                 [ 4 5 ]
    let b: Vec<f32> = (0..6).map(|i| i as f32).collect();
    let mut c = [7.0f32; 4];
    let mut positions = [9; 4];
    let (none, some) = (null_mut(), positions.as_mut_ptr());
    // SAFETY: the arrays are as long as they are said to be.
    let mut reduce = |reduction: u32, positions| unsafe {
        let call = sparsimd_spmm_reduce_f32(f.cpu, f.plan, reduction, 2, b.as_ptr(), 2, c.as_mut_ptr(), 2, positions);
        (call, c)
    };
    assert_eq!(reduce(Reduction::Sum as u32, none), (Status::Ok, [8.0, 11.0, 6.0, 9.0]));
    assert_eq!(reduce(Reduction::Mean as u32, none), (Status::Ok, [4.0, 5.5, 6.0, 9.0]));
    assert_eq!(reduce(Reduction::Max as u32, some), (Status::Ok, [8.0, 10.0, 6.0, 9.0]));
    assert_eq!(reduce(Reduction::Min as u32, none), (Status::Ok, [0.0, 1.0, 6.0, 9.0]));
    refused(reduce(4, none).0, Status::Argument, "4 is not a sparsimd_reduction");
    refused(reduce(Reduction::Mean as u32, some).0, Status::Argument, "positions");
    assert_eq!(positions, [1, 1, 2, 2]);
    // SAFETY: as above.
    let mut semiring = |semiring: u32| unsafe {
        let call = sparsimd_spmm_semiring_f32(f.cpu, f.plan, semiring, 2, b.as_ptr(), 2, c.as_mut_ptr(), 2);
        (call, c)
    };
    assert_eq!(semiring(Semiring::MinPlus as u32), (Status::Ok, [1.0, 2.0, 5.0, 6.0]));
    assert_eq!(semiring(Semiring::MinSecond as u32), (Status::Ok, [0.0, 1.0, 2.0, 3.0]));
    refused(semiring(12).0, Status::Argument, "12 is not a sparsimd_semiring");
}

#[test]
fn reductions_and_semirings_of_integers() {
    let (mut cpu, mut csr) = (null_mut(), null_mut());
    // As above, with a row without nonzeros.
    let (row_ptr, values, b) = ([0usize, 2, 3, 3], [1i64 << 60, 2, 3], [0i64, -1, 2, 3, 4, 5]);
    let mut c = [7i64; 6];
    let (wide, narrow, columns) = (Index::U64 as u32, Index::U32 as u32, COL_IDX.as_ptr().cast());
    // SAFETY: the arrays are as long as they are said to be.
    unsafe {
        good(sparsimd_cpu_create(1, &mut cpu));
        good(sparsimd_csr_borrow_f32(3, 3, row_ptr.as_ptr().cast(), wide, columns, narrow, null(), &mut csr));
    }
    // SAFETY: as above.
    let mut reduce = |reduction: u32| unsafe {
        let (v, b, c) = (values.as_ptr(), b.as_ptr(), &mut c);
        (sparsimd_spmm_reduce_i64(cpu, csr, v, reduction, 2, b, 2, c.as_mut_ptr(), 2), *c)
    };
    let least = -(1 << 60);
    assert_eq!(reduce(Reduction::Sum as u32), (Status::Ok, [8, least + 10, 6, 9, 0, 0]));
    assert_eq!(reduce(Reduction::Max as u32), (Status::Ok, [8, 10, 6, 9, 0, 0]));
    assert_eq!(reduce(Reduction::Min as u32), (Status::Ok, [0, least, 6, 9, 0, 0]));
    refused(reduce(Reduction::Mean as u32).0, Status::Unavailable, "no mean of integers");
    refused(reduce(4).0, Status::Argument, "4 is not a sparsimd_reduction");
    let (values, b) = (values.map(|x| x as i32), b.map(|x| x as i32));
    let mut c = [7i32; 6];
    // SAFETY: as above.
    unsafe {
        let (v, b, out) = (values.as_ptr(), b.as_ptr(), c.as_mut_ptr());
        good(sparsimd_spmm_reduce_i32(cpu, csr, v, Reduction::Min as u32, 2, b, 2, out, 2));
        assert_eq!(c, [0, 0, 6, 9, 0, 0]);
        good(sparsimd_spmm_semiring_i32(cpu, csr, v, Semiring::MinPlus as u32, 2, b, 2, out, 2));
        assert_eq!(c, [0, -1, 5, 6, i32::MAX, i32::MAX]);
        good(sparsimd_spmm_semiring_i32(cpu, csr, null(), Semiring::MaxSecond as u32, 2, b, 2, out, 2));
        assert_eq!(c, [4, 5, 2, 3, i32::MIN, i32::MIN]);
        let call = sparsimd_spmm_semiring_i32(cpu, csr, null(), Semiring::MaxPlus as u32, 2, b, 2, out, 2);
        refused(call, Status::Shape, "needs the values");
        let call = sparsimd_spmm_semiring_i32(cpu, csr, v, 12, 2, b, 2, out, 2);
        refused(call, Status::Argument, "12 is not a sparsimd_semiring");
        let call = sparsimd_spmm_reduce_i32(cpu, csr, out, Reduction::Sum as u32, 2, b, 2, out, 2);
        refused(call, Status::Argument, "c: overlaps another operand");
        let columns = COL_IDX.as_ptr().cast_mut().cast();
        let call = sparsimd_spmm_reduce_i32(cpu, csr, v, Reduction::Sum as u32, 2, b, 2, columns, 2);
        refused(call, Status::Argument, "c: overlaps another operand");
        let (values, b, mut c) = ([1i64 << 60, 2, 3], [0i64, -1, 2, 3, 4, 5], [0i64; 6]);
        let call = |semiring: Semiring, c: &mut [i64; 6]| {
            sparsimd_spmm_semiring_i64(cpu, csr, values.as_ptr(), semiring as u32, 2, b.as_ptr(), 2, c.as_mut_ptr(), 2)
        };
        good(call(Semiring::MaxPlus, &mut c));
        assert_eq!(c, [1 << 60, (1 << 60) - 1, 5, 6, i64::MIN, i64::MIN]);
        good(sparsimd_csr_destroy(csr));
        good(sparsimd_cpu_destroy(cpu));
    }
}

//! The C interface's checks: arbitrary matrices and tensors, operations, sizes and null pointers. The arrays are always as long as they
//! are said to be, which is what the interface asks of its caller; all else must end in a status.
#![no_main]

use std::ptr::{null, null_mut};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sparsimd::capi::*;

/// Elements of the dense arrays.
const ROOM: usize = 1 << 16;

#[derive(Arbitrary, Debug)]
struct Input {
    row_ptr: Vec<u16>,
    col_idx: Vec<u32>,
    cols: u32,
    borrowed: bool,
    pattern_only: bool,
    calls: Vec<Call>,
    dims: Vec<u16>,
    coords: Vec<[u32; 4]>,
    mode: u32,
}

#[derive(Arbitrary, Debug)]
struct Call {
    /// What the plan is for, how, and the operation that is run with it.
    plan: (u8, u8),
    run: u8,
    n: u16,
    width: u16,
    /// Rows' distances.
    ld: [u16; 4],
    /// Arguments that are null, as bits.
    nulls: u8,
    new_values: Option<u8>,
}

fuzz_target!(|input: Input| {
    let row_ptr: Vec<usize> = input.row_ptr.iter().map(|&p| usize::from(p)).collect();
    let Some((&nnz, rows)) = row_ptr.last().zip(row_ptr.len().checked_sub(1)) else { return };
    if nnz > input.col_idx.len() {
        return;
    }
    let values = vec![0.5f32; nnz];
    let (mut cpu, mut csr) = (null_mut(), null_mut());
    // SAFETY: all arrays are as long as they are said to be, here and below, and outlive what borrows them.
    unsafe {
        assert_eq!(sparsimd_cpu_create(1, &mut cpu), Status::Ok);
        let values = if input.pattern_only { null() } else { values.as_ptr() };
        let (cols, columns) = (input.cols as usize, input.col_idx.as_ptr());
        let made = match input.borrowed {
            false => sparsimd_csr_create_f32(rows, cols, row_ptr.as_ptr(), columns, values, &mut csr),
            true => borrow(rows, cols, &row_ptr, columns, values, &mut csr),
        };
        if made == Status::Ok {
            input.calls.iter().take(8).for_each(|call| run(call, cpu, csr, (rows, cols, nnz)));
            sparsimd_csr_destroy(csr);
        }
        tensors(&input, cpu);
        sparsimd_cpu_destroy(cpu);
    }
});

/// # Safety
/// As the constructor's.
unsafe fn borrow(
    rows: usize,
    cols: usize,
    row_ptr: &[usize],
    columns: *const u32,
    values: *const f32,
    csr: &mut *mut CsrHandle,
) -> Status {
    let kind = Index::U64 as u32;
    // SAFETY: the caller's promise; usize is 64 bits wide here.
    unsafe {
        sparsimd_csr_borrow_f32(
            rows,
            cols,
            row_ptr.as_ptr().cast(),
            kind,
            columns.cast(),
            Index::U32 as u32,
            values,
            csr,
        )
    }
}

/// # Safety
/// The handles are alive, and of a matrix of this shape and number of nonzeros.
unsafe fn run(call: &Call, cpu: *mut CpuHandle, csr: *mut CsrHandle, (rows, cols, nnz): (usize, usize, usize)) {
    let null_if = |bit: u8| call.nulls >> bit & 1 == 1;
    let (n, width) = (usize::from(call.n % 80), usize::from(call.width % 80));
    // A row's distance that the array has room for.
    let ld = |at: usize, rows: usize| usize::from(call.ld[at]) % (ROOM / rows.max(1) + 1);
    let input = vec![0.25f32; ROOM];
    let mut out = vec![0.0f32; ROOM];
    let mut plan = null_mut();
    let (from, to) = if null_if(0) { (null(), null_mut()) } else { (input.as_ptr(), out.as_mut_ptr()) };
    // The largest arrays that an operation may reach must fit.
    if rows.max(cols).saturating_mul(n.max(width)) > ROOM || nnz > ROOM {
        return;
    }
    // SAFETY: the arrays have room for every row at the distances; the library checks distances against n.
    unsafe {
        let cpu = if null_if(1) { null_mut() } else { cpu };
        let made = sparsimd_plan_create(cpu, call.plan.0.into(), csr, n, call.plan.1.into(), 10, &mut plan);
        if made != Status::Ok {
            return;
        }
        if let Some(wrong) = call.new_values {
            let count = if wrong == 0 { nnz } else { usize::from(wrong) };
            sparsimd_plan_set_values_f32(plan, input.as_ptr(), count);
        }
        let used = if null_if(2) { null_mut() } else { plan };
        match call.run % 4 {
            0 => sparsimd_spmm_f32(cpu, used, n, 1.0, from, ld(0, cols), 0.5, to, ld(1, rows)),
            1 => sparsimd_spmm_t_f32(cpu, used, n, 1.0, from, ld(0, rows), 0.5, to, ld(1, cols)),
            2 => sparsimd_sddmm_f32(cpu, used, n, from, ld(0, rows), from, ld(1, cols), to),
            _ => sparsimd_spmm_f64(cpu, used, n, 1.0, null(), 1, 0.0, null_mut(), 1),
        };
        sparsimd_plan_destroy(plan);
    }
}

/// A tensor of arbitrary places, and its fibers in an arbitrary mode.
///
/// # Safety
/// The handle is alive.
unsafe fn tensors(input: &Input, cpu: *mut CpuHandle) {
    let dims: Vec<usize> = input.dims.iter().take(4).map(|&dim| usize::from(dim)).collect();
    let nnz = input.coords.len();
    let coords: Vec<Vec<u32>> =
        (0..dims.len()).map(|mode| input.coords.iter().map(|place| place[mode]).collect()).collect();
    let pointers: Vec<*const u32> = coords.iter().map(|indices| indices.as_ptr()).collect();
    let values = vec![1.0f64; nnz];
    let mut tensor = null_mut();
    // SAFETY: one array of nnz coordinates for each mode, and nnz values.
    unsafe {
        let made =
            sparsimd_tensor_create_f64(dims.len(), dims.as_ptr(), nnz, pointers.as_ptr(), values.as_ptr(), &mut tensor);
        if made == Status::Ok {
            let mut fibers = null_mut();
            if sparsimd_fibers_create(cpu, tensor, input.mode as usize, &mut fibers) == Status::Ok {
                let mut count = 0;
                assert_eq!(sparsimd_fibers_count(fibers, &mut count), Status::Ok);
                assert!(count <= nnz);
                sparsimd_fibers_destroy(fibers);
            }
            sparsimd_tensor_destroy(tensor);
        }
    }
}

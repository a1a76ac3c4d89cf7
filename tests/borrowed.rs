//! Matrices in arrays of the caller: every index type, operation and edge shape, alone and inside a larger matrix.

mod common;

use std::fmt::Debug;
use std::ops::Range;

use common::matrices::{STRATEGIES, Strided, assert_dense, bits, executors, shapes};
use sparsimd::formats::{ColumnIndex, PointerIndex};
use sparsimd::ops::SparseOperand;
use sparsimd::plan::{Op, PlanOptions};
use sparsimd::{Coo, CooRef, Cpu, Csr, CsrRef, Mat, Pattern, PatternRef, Scalar, edge, generate, reference};

/// Nonzeros of other rows, before and after those of a matrix that is part of a larger one.
const OTHERS: usize = 5;

/// The arrays of a matrix as callers hold them.
struct Arrays<P, C, T> {
    row_ptr: Vec<P>,
    col_idx: Vec<C>,
    values: Vec<T>,
}

impl<P, C, T: Scalar> Arrays<P, C, T>
where
    P: PointerIndex + TryFrom<usize, Error: Debug>,
    C: ColumnIndex + TryFrom<u32, Error: Debug>,
{
    /// Those of `a`, with `others` nonzeros around them that belong to no row: outside the matrix, and NaN.
    fn of(a: &Csr<T>, others: usize) -> Self {
        let pattern = a.pattern();
        let outside = || std::iter::repeat_n(i32::MAX as u32, others);
        let nan = || std::iter::repeat_n(T::from_f64(f64::NAN), others);
        let columns = outside().chain(pattern.col_idx().iter().copied()).chain(outside());
        Self {
            row_ptr: pattern.row_ptr().iter().map(|&p| P::try_from(p + others).unwrap()).collect(),
            col_idx: columns.map(|j| C::try_from(j).unwrap()).collect(),
            values: nan().chain(a.values().iter().copied()).chain(nan()).collect(),
        }
    }

    fn matrix(&self, cols: usize) -> CsrRef<'_, T> {
        CsrRef::new(self.row_ptr.len() - 1, cols, &self.row_ptr, &self.col_idx, &self.values).unwrap()
    }
}

/// Every operation on `a` as `operand` gives it for the operation.
fn check_operations<'a, T: Scalar>(
    cpu: &Cpu,
    a: &Csr<T>,
    n: usize,
    how: &str,
    operand: impl Fn(Op) -> SparseOperand<'a, T>,
) {
    let case = || format!("{how}, {} x {}, N = {n}, {}", a.rows(), a.cols(), cpu.arch().name());
    let (c, b) = (Strided::<T>::random(a.rows(), n, 1), Strided::<T>::random(a.cols(), n, 2));
    let (alpha, beta) = (T::from_f64(0.5), T::from_f64(-2.0));

    let expected = reference::spmm(alpha, a, b.view(), beta, c.view()).unwrap();
    let mut out = Strided::<T>::random(a.rows(), n, 1);
    cpu.spmm(alpha, operand(Op::Spmm), b.view(), beta, out.view_mut()).unwrap();
    assert_dense(&expected, &out, case);

    let expected = reference::spmm_t(alpha, a, c.view(), beta, b.view()).unwrap();
    let mut out = Strided::<T>::random(a.cols(), n, 2);
    cpu.spmm_t(alpha, operand(Op::SpmmTransposed), c.view(), beta, out.view_mut()).unwrap();
    assert_dense(&expected, &out, case);

    for scaled in [false, true] {
        let expected = reference::sddmm(a, scaled, c.view(), b.view()).unwrap();
        let mut out = vec![T::from_f64(f64::NAN); a.nnz()];
        match scaled {
            false => cpu.sddmm(operand(Op::Sddmm), c.view(), b.view(), &mut out),
            true => cpu.sddmm_scaled(operand(Op::Sddmm), c.view(), b.view(), &mut out),
        }
        .unwrap();
        let worst = expected.deviation_of_values(&out).unwrap();
        assert!(worst.error <= 1.0, "{}: {worst:?}", case());
    }

    for softmax in [false, true] {
        let wanted = if softmax { reference::Edge::Softmax { scale: 0.25 } } else { reference::Edge::Scale };
        let expected = reference::fusedmm(a, wanted, c.view(), b.view(), b.view()).unwrap();
        let (mut out, a) = (Strided::<T>::nan(a.rows(), n), operand(Op::FusedMm));
        match softmax {
            true => {
                cpu.fusedmm(a, edge::Softmax { scale: T::from_f64(0.25) }, c.view(), b.view(), b.view(), out.view_mut())
            }
            false => cpu.fusedmm(a, edge::Scale, c.view(), b.view(), b.view(), out.view_mut()),
        }
        .unwrap();
        assert_dense(&expected, &out, case);
    }
}

/// Every shape, as it is and prepared for each path.
fn check<P, C, T: Scalar>(cpus: &[Cpu], how: &str)
where
    P: PointerIndex + TryFrom<usize, Error: Debug>,
    C: ColumnIndex + TryFrom<u32, Error: Debug>,
{
    for (at, (_, a)) in shapes::<T>().iter().enumerate() {
        for others in [0, OTHERS] {
            let arrays = Arrays::<P, C, T>::of(a, others);
            let borrowed = arrays.matrix(a.cols());
            let n = [17, 1, 40][at % 3];
            for cpu in cpus {
                check_operations(cpu, a, n, how, |_| borrowed.into());
                for path in STRATEGIES {
                    let prepared = [Op::Spmm, Op::SpmmTransposed, Op::Sddmm, Op::FusedMm].map(|op| {
                        (op, cpu.prepare(borrowed, &PlanOptions::new(op, n).strategy(path).reuse(1000)).unwrap())
                    });
                    let of = |op| prepared.iter().find(|(of, _)| *of == op).unwrap();
                    check_operations(cpu, a, n, &format!("{how}, {path:?}"), |op| (&of(op).1).into());
                }
            }
        }
    }
}

macro_rules! every_index_type {
    ($($name:ident: $pointer:ty, $column:ty;)*) => {$(
        #[test]
        fn $name() {
            check::<$pointer, $column, f32>(&executors(), concat!(stringify!($name), " f32"));
            check::<$pointer, $column, f64>(&executors(), concat!(stringify!($name), " f64"));
        }
    )*};
}
every_index_type! {
    u32_and_u32: u32, u32;
    i32_and_i32: i32, i32;
    u64_and_u32: u64, u32;
    i64_and_i32: i64, i32;
    usize_and_u32: usize, u32;
    u32_and_i32: u32, i32;
    i32_and_u32: i32, u32;
    u64_and_i32: u64, i32;
    i64_and_u32: i64, u32;
    usize_and_i32: usize, i32;
}

/// Borrowed and owned take the same way: the same bits. The owned one's pattern is shared by what is prepared from it.
#[test]
fn borrowed_and_owned_give_the_same_bits() {
    let a = generate::random_matrix::<f32>(300, 200, 0.9, 3).unwrap();
    let arrays = Arrays::<i32, i32, f32>::of(&a, OTHERS);
    let b = generate::uniform_dense::<f32>(200, 33, 1).unwrap();
    for cpu in executors() {
        let mut out = [Mat::zeros(300, 33).unwrap(), Mat::zeros(300, 33).unwrap()];
        cpu.spmm(1.0, &a, b.as_ref(), 0.0, out[0].as_mut()).unwrap();
        cpu.spmm(1.0, arrays.matrix(200), b.as_ref(), 0.0, out[1].as_mut()).unwrap();
        assert_eq!(bits(out[0].as_ref()), bits(out[1].as_ref()));
    }
    let owned = CsrRef::from(&a).to_csr();
    assert!(std::sync::Arc::ptr_eq(owned.pattern(), a.pattern()));
    assert_eq!(arrays.matrix(200).to_csr(), a);
}

#[test]
fn rows_of_a_borrowed_matrix() {
    let a = generate::random_matrix::<f64>(90, 70, 0.8, 3).unwrap();
    let arrays = Arrays::<i64, i32, f64>::of(&a, OTHERS);
    let b = generate::uniform_dense(70, 20, 1).unwrap();
    let all = reference::spmm(1.0, &a, b.as_ref(), 0.0, Mat::zeros(90, 20).unwrap().as_ref()).unwrap();
    let cpu = Cpu::builder().threads(2).build().unwrap();
    let mut c = Mat::<f64>::zeros(90, 20).unwrap();
    for rows in [0..0usize, 0..31, 31..32, 32..90, 90..90] {
        let part = arrays.matrix(70).row_range(10..90).and_then(|later| {
            // Rows of rows: the first pointer counts from the start of the arrays.
            later.row_range(rows.start.saturating_sub(10)..rows.end.saturating_sub(10))
        });
        let part = if rows.start >= 10 { part.unwrap() } else { arrays.matrix(70).row_range(rows.clone()).unwrap() };
        assert_eq!((part.rows(), part.pattern().row_ptr().at(0)), (rows.len(), 0));
        let copied = part.to_csr();
        assert_eq!(copied.pattern().row_ptr()[rows.len()], part.nnz());
        let own = sparsimd::MatMut::new(&mut c.as_mut().into_data()[rows.start * 24..], rows.len(), 20, 24).unwrap();
        cpu.spmm(1.0, part, b.as_ref(), 0.0, own).unwrap();
    }
    assert!(all.deviation(c.as_ref()).unwrap().error <= 1.0);
    let words = |rows: std::ops::Range<usize>| arrays.matrix(70).row_range(rows).unwrap_err().to_string();
    assert_eq!(words(3..91), "rows: 3 to 91 of a matrix of 90");
    #[expect(clippy::reversed_empty_ranges, reason = "it is refused")]
    let backwards = words(5..4);
    assert_eq!(backwards, "rows: 5 to 4 of a matrix of 90");
}

#[test]
fn what_is_wrong_is_refused_with_its_place() {
    fn words<P: PointerIndex, C: ColumnIndex>(rows: usize, cols: usize, row_ptr: &[P], col_idx: &[C]) -> String {
        PatternRef::new(rows, cols, row_ptr, col_idx).unwrap_err().to_string()
    }
    let columns = [0i32, 2, 1];
    assert_eq!(words(2, 3, &[0i32, 2], &columns), "CSR: 2 row pointers for 2 rows");
    assert_eq!(words(0, 3, &[0u32; 0], &columns), "CSR: 0 row pointers for 0 rows");
    assert_eq!(words(2, 3, &[0i32, -1, 3], &columns), "CSR: row pointer 1 is negative: -1");
    assert_eq!(words(2, 3, &[-4i64, 2, 3], &columns), "CSR: row pointer 0 is negative: -4");
    assert_eq!(words(2, 3, &[0u64, 3, 2], &columns), "CSR: row 1: pointers decrease from 3 to 2");
    assert_eq!(words(2, 3, &[4u32, 3, 3], &columns), "CSR: row 0: pointers decrease from 4 to 3");
    assert_eq!(words(2, 3, &[0usize, 2, 4], &columns), "CSR: the last row pointer is 4 for 3 column indices");
    let beyond = "CSR: the last row pointer is 18446744073709551615 for 3 column indices";
    assert_eq!(words(2, 3, &[0, 2, u64::MAX], &columns), beyond);
    assert_eq!(words(2, 2, &[0u32, 2, 3], &columns), "CSR: row 0: column index 2 is not below 2");
    assert_eq!(words(2, 3, &[0u32, 2, 3], &[0, 2, -1]), "CSR: row 1: column index -1 is negative");
    // As u32, the smallest i32 is a column of so wide a matrix.
    let wide = u32::MAX as usize;
    assert_eq!(words(1, wide, &[0u32, 1], &[i32::MIN]), "CSR: row 0: column index -2147483648 is negative");
    assert!(PatternRef::new(1, wide, &[0u32, 1], &[1u32 << 31]).is_ok());
    assert_eq!(words(2, 3, &[0u32, 2, 3], &[1u32, 1, 0]), "CSR: row 0: column 1 occurs twice");
    assert!(words(1 << 40, 3, &[0u32], &columns).contains("dimension 1099511627776"));
    assert!(words(usize::MAX, 3, &[0u32], &columns).contains("dimension"));

    let values = |values: &[f32]| CsrRef::new(2, 3, &[0u32, 2, 3], &columns, values).unwrap_err().to_string();
    assert_eq!(values(&[1.0; 2]), "CSR: 2 values for 3 column indices");
    assert_eq!(values(&[1.0; 4]), "CSR: 4 values for 3 column indices");
    let pattern = PatternRef::new(2, 3, &[0u32, 2, 3], &columns).unwrap();
    let error = CsrRef::on(pattern, &[1.0f32; 2]).unwrap_err().to_string();
    assert_eq!(error, "CSR: 2 values for a pattern of 3 nonzeros");
}

/// `len` elements, of which element p is that of `elements` at p modulo their number: the pages of one file, mapped again and again.
#[cfg(target_os = "linux")]
fn repeated<E: bytemuck::Pod>(elements: &[E], len: usize) -> &'static [E] {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytemuck::cast_slice(elements)).unwrap();
    let (period, bytes) = (size_of_val(elements), len * size_of::<E>());
    let map = |at, bytes, flags, fd| {
        // SAFETY: a new mapping, or one in place of a part of that which this function made.
        let at = unsafe { libc::mmap(at, bytes, libc::PROT_READ, flags | libc::MAP_NORESERVE, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        at
    };
    let start = map(std::ptr::null_mut(), bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    for at in (0..bytes).step_by(period) {
        let part = start.wrapping_byte_add(at);
        map(part, period.min(bytes - at), libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd());
    }
    // SAFETY: mapped for as long as the program runs, and nobody writes to the file; every bit pattern is an element.
    unsafe { std::slice::from_raw_parts(start.cast(), len) }
}

/// All rows have all columns; the values repeat after a number of them that no row has, so that each row has others.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "a minute"]
fn more_nonzeros_than_32_bits_count() {
    const COLS: usize = 1 << 20;
    const ROWS: usize = (1 << 12) + 3;
    const PERIOD: usize = COLS + (1 << 14);
    let columns: Vec<u32> = (0..COLS as u32).collect();
    let random = |rows: usize, seed| generate::uniform_dense::<f64>(rows, 1, seed).unwrap();
    let values: Vec<f64> = generate::uniform_dense(1, PERIOD, 1).unwrap().row(0).to_vec();
    let row_ptr: Vec<u64> = (0..=ROWS).map(|i| (i * COLS) as u64).collect();
    let nnz = ROWS * COLS;
    let (all_columns, all_values) = (repeated(&columns, nnz), repeated(&values, nnz));
    let a = CsrRef::new(ROWS, COLS, &row_ptr, all_columns, all_values).unwrap();

    let cpu = Cpu::builder().build().unwrap();
    let (c, b, d) = (random(ROWS, 2), random(COLS, 3), random(COLS, 4));
    let (mut product, mut fused) = (Mat::zeros(ROWS, 1).unwrap(), Mat::zeros(ROWS, 1).unwrap());
    cpu.spmm(1.0, a, b.as_ref(), 0.0, product.as_mut()).unwrap();
    cpu.fusedmm(a, edge::Scale, c.as_ref(), b.as_ref(), d.as_ref(), fused.as_mut()).unwrap();

    // The rows beyond 2^32 nonzeros, and those whose positions have the same low 32 bits.
    let (last, first) = (1 << 12..ROWS, 0..ROWS - (1 << 12));
    let part = |rows: &Range<usize>| {
        let row_ptr = (0..=rows.len()).map(|i| i * COLS).collect();
        let pattern = Pattern::new(rows.len(), COLS, row_ptr, columns.repeat(rows.len())).unwrap();
        Csr::new(pattern, (rows.start * COLS..rows.end * COLS).map(|p| values[p % PERIOD]).collect()).unwrap()
    };
    let of =
        |all: &Mat<f64>, rows: &Range<usize>| Mat::from_fn(rows.len(), 1, |i, _| all.row(rows.start + i)[0]).unwrap();
    for (rows, others) in [(&first, &last), (&last, &first)] {
        let (part, zeros) = (part(rows), Mat::zeros(rows.len(), 1).unwrap());
        let of_product = reference::spmm(1.0, &part, b.as_ref(), 0.0, zeros.as_ref()).unwrap();
        let scale = reference::Edge::Scale;
        let of_fused = reference::fusedmm(&part, scale, of(&c, rows).as_ref(), b.as_ref(), d.as_ref()).unwrap();
        for (op, expected, all) in [("SpMM", of_product, &product), ("FusedMM", of_fused, &fused)] {
            let error = |rows| expected.deviation(of(all, rows).as_ref()).unwrap().error;
            assert!(error(rows) <= 1.0 && error(others) > 1.0, "{op}, rows {rows:?}: {} of the bound", error(rows));
        }
    }
}

#[test]
fn lists_of_entries() {
    let (rows, cols, values) = ([2i32, 0, 0], [1i32, 3, 0], [1.0f32, 2.0, 3.0]);
    let owned = Coo::new(3, 4, vec![2, 0, 0], vec![1, 3, 0], values.to_vec()).unwrap();
    let a = CooRef::new(3, 4, &rows, &cols, &values).unwrap().to_csr().unwrap();
    assert_eq!((a.pattern().row_ptr(), a.pattern().col_idx()), (&[0, 2, 2, 3][..], &[0, 3, 1][..]));
    assert_eq!(a, owned.to_csr().unwrap());
    let words = |m, n, rows: &[i32], cols: &[i32]| CooRef::new(m, n, rows, cols, &values).unwrap_err().to_string();
    assert_eq!(words(3, 4, &[2, 0, -5], &cols), "COO: entry 2: row index -5 is negative");
    assert_eq!(
        words(3, u32::MAX as usize, &rows, &[0, i32::MIN, 0]),
        "COO: entry 1: column index -2147483648 is negative"
    );
    assert_eq!(words(2, 4, &rows, &cols), "COO: entry 0: row index 2 is not below 2");
    assert_eq!(words(3, 4, &rows[1..], &cols), "COO: 2 row indices, 3 column indices and 3 values");
}

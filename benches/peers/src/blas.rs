//! Dense products by the C interface of BLAS.

use std::ffi::{CStr, c_char, c_int};

use crate::element::{Both, Element, GemmFn};
use crate::error::{Error, Result};
use crate::find::OPENBLAS;
use crate::library::Library;

/// `CblasRowMajor`.
const ROW_MAJOR: c_int = 101;
/// `CblasNoTrans`.
const AS_IS: c_int = 111;
/// `CblasTrans`.
const TRANSPOSED: c_int = 112;

/// A BLAS that has been opened.
#[derive(Clone, Debug)]
pub struct Blas {
    /// Version, file and path taken.
    pub(crate) detail: String,
    gemms: Both<GemmFn<f32>, GemmFn<f64>>,
}

/// Shapes and strides of C = A B or C = A B^T: A is m x k, C m x n, all row-major.
#[derive(Clone, Copy, Debug)]
pub struct Gemm {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Columns of A.
    pub k: usize,
    /// Elements from row to row of A.
    pub lda: usize,
    /// Elements from row to row of B.
    pub ldb: usize,
    /// Elements from row to row of C.
    pub ldc: usize,
    /// Whether B is given as n x k.
    pub b_transposed: bool,
}

impl Gemm {
    /// Checks that the operands hold what the shapes say, and returns all sizes as the peer takes them.
    pub(crate) fn check<I: TryFrom<usize>, T>(&self, a: &[T], b: &[T], c: &[T]) -> Result<[I; 6]> {
        let &Self { m, n, k, lda, ldb, ldc, b_transposed } = self;
        let (b_rows, b_cols) = if b_transposed { (n, k) } else { (k, n) };
        for (name, rows, cols, stride, length) in
            [("A", m, k, lda, a.len()), ("B", b_rows, b_cols, ldb, b.len()), ("C", m, n, ldc, c.len())]
        {
            // Without overflow: `length` elements are in memory, the products below are of that order.
            let needed = rows.saturating_sub(1).saturating_mul(stride).saturating_add(cols);
            if stride < cols.max(1) || rows > 0 && cols > 0 && length < needed {
                let detail = format!("{name} of {rows} x {cols}, stride {stride}, in {length} elements");
                return Err(Error::Operands(detail));
            }
        }
        let fits = |value: usize| {
            I::try_from(value).map_err(|_| Error::Operands(format!("{value} exceeds the peer's integers")))
        };
        Ok([fits(m)?, fits(n)?, fits(k)?, fits(lda)?, fits(ldb)?, fits(ldc)?])
    }
}

impl Blas {
    /// Finds and opens OpenBLAS.
    pub(crate) fn openblas(threads: usize) -> Result<Self> {
        let library = Library::open_first(&OPENBLAS.places()?, || OPENBLAS.absent())?;
        // SAFETY: the types are those of OpenBLAS's own header, with 32-bit integers; builds with 64-bit ones have a
        // suffix to their names.
        let (set_threads, config, core): (
            unsafe extern "C" fn(c_int),
            unsafe extern "C" fn() -> *const c_char,
            unsafe extern "C" fn() -> *const c_char,
        ) = unsafe {
            (
                library.function(&["scipy_openblas_set_num_threads", "openblas_set_num_threads"])?,
                library.function(&["scipy_openblas_get_config", "openblas_get_config"])?,
                library.function(&["scipy_openblas_get_corename", "openblas_get_corename"])?,
            )
        };
        let threads = c_int::try_from(threads).map_err(|_| Error::Operands(format!("{threads} threads")))?;
        // SAFETY: plain calls; the strings are static and end in 0.
        let (config, core) = unsafe {
            set_threads(threads);
            (CStr::from_ptr(config()).to_string_lossy(), CStr::from_ptr(core()).to_string_lossy())
        };
        let version: Vec<_> = config.split_whitespace().take(2).collect();
        let detail = format!("{}, {core} kernels, {}", version.join(" "), library.path().display());
        Self::of(&library, detail)
    }

    /// The products of an opened library.
    pub(crate) fn of(library: &Library, detail: String) -> Result<Self> {
        // SAFETY: `GemmFn` is the type of these functions.
        let gemms = unsafe {
            Both {
                single: library.function(&["scipy_cblas_sgemm", "cblas_sgemm"])?,
                double: library.function(&["scipy_cblas_dgemm", "cblas_dgemm"])?,
            }
        };
        Ok(Self { detail, gemms })
    }

    /// Its version, the kernels it chose for this processor, and its file.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// C = A B, or C = A B^T.
    ///
    /// # Errors
    /// [`Error::Operands`] when a slice is too short for its shape, or a size exceeds 2^31 - 1.
    pub fn gemm<T: Element>(&self, shape: Gemm, a: &[T], b: &[T], c: &mut [T]) -> Result<()> {
        let [m, n, k, lda, ldb, ldc] = shape.check::<c_int, T>(a, b, c)?;
        let b_is = if shape.b_transposed { TRANSPOSED } else { AS_IS };
        let gemm = T::gemm_of(&self.gemms);
        // SAFETY: the slices hold what the sizes say, checked above; C is exclusive.
        unsafe {
            gemm(
                ROW_MAJOR,
                AS_IS,
                b_is,
                m,
                n,
                k,
                T::ONE,
                a.as_ptr(),
                lda,
                b.as_ptr(),
                ldb,
                T::default(),
                c.as_mut_ptr(),
                ldc,
            );
        }
        Ok(())
    }
}

//! MKL's inspector-executor products of a CSR matrix with a dense one and with a vector, beside its BLAS.

use std::ffi::{c_char, c_int};
use std::marker::PhantomData;
use std::path::Path;

use crate::blas::Blas;
use crate::element::{Both, Description, Element, Handle, SparseFns};
use crate::error::{Error, Result};
use crate::find::MKL;
use crate::library::Library;

// Of mkl_spblas.h and mkl_service.h.
const SUCCESS: c_int = 0;
const NON_TRANSPOSE: c_int = 10;
const INDEX_BASE_ZERO: c_int = 0;
const LAYOUT_ROW_MAJOR: c_int = 101;
const GENERAL: Description = Description { kind: 20, fill: 40, diagonal: 50 };
const MEMORY_AGGRESSIVE: c_int = 81;
/// Products that it may count on.
const CALLS: c_int = 1000;
const INTERFACE_LP64: c_int = 0;
const THREADING_INTEL: c_int = 0;

/// MKL, opened.
#[derive(Clone, Debug)]
pub struct Mkl {
    blas: Blas,
    sparse: Both<SparseFns<f32>, SparseFns<f64>>,
    hint: unsafe extern "C" fn(Handle, c_int, Description, c_int, c_int, c_int) -> c_int,
    vector_hint: unsafe extern "C" fn(Handle, c_int, Description, c_int) -> c_int,
    memory: unsafe extern "C" fn(Handle, c_int) -> c_int,
    optimise: unsafe extern "C" fn(Handle) -> c_int,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
}

impl Mkl {
    /// Finds and opens MKL, with 32-bit integers, Intel's threading layer and `threads` threads.
    ///
    /// # Errors
    /// [`Error::Absent`] when it is nowhere, [`Error::Load`] when it does not open or lacks a function.
    pub fn load(threads: usize) -> Result<Self> {
        let places = MKL.places()?;
        // MKL looks for its OpenMP by name alone: it must be there already, for all to see.
        for folder in places.iter().filter_map(|path| path.parent()).filter(|folder| folder.is_dir()) {
            if ["libiomp5.so", "libiomp5.dylib"].iter().any(|name| Library::open_for_all(&folder.join(name))) {
                break;
            }
        }
        let library = Library::open_first(&places, || MKL.absent())?;
        // SAFETY: the types are those of MKL's headers.
        let (set, interface, layer, version): (
            unsafe extern "C" fn(c_int),
            unsafe extern "C" fn(c_int) -> c_int,
            unsafe extern "C" fn(c_int) -> c_int,
            unsafe extern "C" fn(*mut c_char, c_int),
        ) = unsafe {
            (
                library.function(&["MKL_Set_Num_Threads"])?,
                library.function(&["MKL_Set_Interface_Layer"])?,
                library.function(&["MKL_Set_Threading_Layer"])?,
                library.function(&["MKL_Get_Version_String"])?,
            )
        };
        let threads = c_int::try_from(threads).map_err(|_| Error::Operands(format!("{threads} threads")))?;
        let mut text = [0u8; 256];
        // SAFETY: plain calls in the order that MKL asks for, layers first; the version is cut to the buffer's length.
        unsafe {
            interface(INTERFACE_LP64);
            layer(THREADING_INTEL);
            set(threads);
            version(text.as_mut_ptr().cast(), text.len() as c_int);
        }
        let version = String::from_utf8_lossy(text.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned();
        let mut blas = Blas::of(&library, String::new())?;
        // SAFETY: the types are those of MKL's headers.
        let mkl = unsafe {
            Self {
                sparse: Both {
                    single: SparseFns {
                        create: library.function(&["mkl_sparse_s_create_csr"])?,
                        product: library.function(&["mkl_sparse_s_mm"])?,
                        vector: library.function(&["mkl_sparse_s_mv"])?,
                    },
                    double: SparseFns {
                        create: library.function(&["mkl_sparse_d_create_csr"])?,
                        product: library.function(&["mkl_sparse_d_mm"])?,
                        vector: library.function(&["mkl_sparse_d_mv"])?,
                    },
                },
                hint: library.function(&["mkl_sparse_set_mm_hint"])?,
                vector_hint: library.function(&["mkl_sparse_set_mv_hint"])?,
                memory: library.function(&["mkl_sparse_set_memory_hint"])?,
                optimise: library.function(&["mkl_sparse_optimize"])?,
                destroy: library.function(&["mkl_sparse_destroy"])?,
                blas: blas.clone(),
            }
        };
        // It opens the kernels for the processor at the first call that needs them; which, the process's map then tells.
        let one = crate::Gemm { m: 1, n: 1, k: 1, lda: 1, ldb: 1, ldc: 1, b_transposed: false };
        blas.gemm(one, &[1.0f32], &[1.0], &mut [0.0])?;
        let version = version.trim().trim_start_matches("Intel(R) oneAPI Math Kernel Library ");
        let version = version.split(" for ").next().unwrap_or(version);
        blas.detail = format!("{version}, {}, {}", kernels(), library.path().display());
        Ok(Self { blas, ..mkl })
    }

    /// Its dense products.
    pub fn blas(&self) -> &Blas {
        &self.blas
    }
}

/// Which of MKL's kernels have been opened: the path it takes on this processor.
fn kernels() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let names = maps.lines().filter_map(|line| Path::new(line.split_whitespace().nth(5)?).file_name()?.to_str());
    for (file, words) in [
        ("libmkl_avx10", "AVX10 kernels"),
        ("libmkl_avx512", "AVX-512 kernels"),
        ("libmkl_avx2", "AVX2 kernels"),
        ("libmkl_mc3", "SSE4.2 kernels"),
        ("libmkl_def", "generic kernels (its path for other vendors' processors)"),
    ] {
        if names.clone().any(|name| name.starts_with(file)) {
            return words.to_owned();
        }
    }
    "kernels unknown".to_owned()
}

/// A CSR matrix that MKL has inspected for products with dense matrices. The column indices and values stay the caller's.
#[derive(Debug)]
pub struct MklCsr<'a, T: Element> {
    mkl: &'a Mkl,
    handle: Handle,
    rows: usize,
    cols: usize,
    n: usize,
    // MKL keeps pointers to all of them.
    _starts: Vec<c_int>,
    _arrays: PhantomData<(&'a [u32], &'a [T])>,
}

impl<'a, T: Element> MklCsr<'a, T> {
    /// Creates the handle and has it optimised for many products with dense matrices of `n` columns. The arrays must be
    /// those of a valid CSR matrix.
    ///
    /// # Errors
    /// [`Error::Operands`] when the arrays' lengths do not fit or a size exceeds 2^31 - 1; [`Error::Status`].
    pub fn new(
        mkl: &'a Mkl,
        (rows, cols, n): (usize, usize, usize),
        row_ptr: &[usize],
        columns: &'a [u32],
        values: &'a [T],
    ) -> Result<Self> {
        let valid = row_ptr.len() == rows + 1
            && row_ptr.windows(2).all(|pair| pair[0] <= pair[1])
            && row_ptr.last() == Some(&columns.len())
            && columns.len() == values.len()
            && columns.iter().all(|&j| (j as usize) < cols);
        if !valid {
            return Err(Error::Operands("the arrays do not form a CSR matrix".to_owned()));
        }
        let fits = |value: usize| {
            c_int::try_from(value).map_err(|_| Error::Operands(format!("{value} exceeds MKL's 32-bit integers")))
        };
        let starts = row_ptr.iter().map(|&p| fits(p)).collect::<Result<Vec<_>>>()?;
        let (m, k, columns_of_b) = (fits(rows)?, fits(cols)?, fits(n)?);
        let mut handle = std::ptr::null_mut();
        let begin = starts.as_ptr();
        // SAFETY: row i is starts[i]..starts[i + 1], valid as checked; indices below 2^31 are the same as i32; all arrays
        // outlive the handle, which `drop` destroys.
        let status = unsafe {
            (T::sparse_of(&mkl.sparse).create)(
                &raw mut handle,
                INDEX_BASE_ZERO,
                m,
                k,
                begin,
                begin.wrapping_add(1),
                columns.as_ptr().cast(),
                values.as_ptr(),
            )
        };
        expect("mkl_sparse_create_csr", status)?;
        let matrix = Self { mkl, handle, rows, cols, n, _starts: starts, _arrays: PhantomData };
        // SAFETY: the handle is valid. Hints may be refused without harm; only the inspection must succeed.
        let status = unsafe {
            match n {
                1 => (mkl.vector_hint)(handle, NON_TRANSPOSE, GENERAL, CALLS),
                _ => (mkl.hint)(handle, NON_TRANSPOSE, GENERAL, LAYOUT_ROW_MAJOR, columns_of_b, CALLS),
            };
            (mkl.memory)(handle, MEMORY_AGGRESSIVE);
            (mkl.optimise)(handle)
        };
        expect("mkl_sparse_optimize", status)?;
        Ok(matrix)
    }

    /// C = A B, of the number of columns that was announced; by the product with a vector where it is one and lies together.
    ///
    /// # Errors
    /// [`Error::Operands`] when a slice is too short for its shape; [`Error::Status`].
    pub fn multiply(&self, b: &[T], ldb: usize, c: &mut [T], ldc: usize) -> Result<()> {
        let &Self { rows, cols, n, .. } = self;
        let long = |slice: &[T], rows: usize, stride: usize| {
            stride >= n && c_int::try_from(stride).is_ok() && slice.len() >= rows.saturating_sub(1) * stride + n
        };
        if !long(b, cols, ldb) || !long(c, rows, ldc) {
            let detail = format!("B has {} elements at stride {ldb}, C {} at {ldc}", b.len(), c.len());
            return Err(Error::Operands(detail));
        }
        let functions = T::sparse_of(&self.mkl.sparse);
        if (n, ldb, ldc) == (1, 1, 1) {
            let (b, c) = (b.as_ptr(), c.as_mut_ptr());
            // SAFETY: b has an element for each column and c one for each row, checked above; c is exclusive.
            let status = unsafe { (functions.vector)(NON_TRANSPOSE, T::ONE, self.handle, GENERAL, b, T::default(), c) };
            return expect("mkl_sparse_mv", status);
        }
        let (n, ldb, ldc) = (n as c_int, ldb as c_int, ldc as c_int);
        // SAFETY: B and C hold rows of n elements at their strides, checked above; C is exclusive.
        let status = unsafe {
            (functions.product)(
                NON_TRANSPOSE,
                T::ONE,
                self.handle,
                GENERAL,
                LAYOUT_ROW_MAJOR,
                b.as_ptr(),
                n,
                ldb,
                T::default(),
                c.as_mut_ptr(),
                ldc,
            )
        };
        expect("mkl_sparse_mm", status)
    }
}

impl<T: Element> Drop for MklCsr<'_, T> {
    fn drop(&mut self) {
        // SAFETY: the handle is valid and used nowhere else.
        unsafe { (self.mkl.destroy)(self.handle) };
    }
}

fn expect(function: &'static str, status: c_int) -> Result<()> {
    if status == SUCCESS { Ok(()) } else { Err(Error::Status { function, status }) }
}

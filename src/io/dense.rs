//! A dense matrix from a file of any format, and to one.

use std::path::Path;

use sparsimd_kernels::Scalar;

use super::mtx::mtx_shape;
use super::npy::npy_header;
use super::txt::{read_txt, write_txt};
use super::{ReadOptions, read_mtx_dense, read_npy, write_mtx_dense, write_npy};
use crate::dense::{Mat, MatRef};
use crate::error::{Error, Result};

/// A file format of dense matrices, by the ending of the name, with or without `.gz` behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DenseFormat {
    /// numpy's binary format, `.npy`.
    Npy,
    /// Matrix Market's format `array`, `.mtx`.
    Mtx,
    /// One row a line, as numpy.loadtxt and numpy.savetxt have it, `.txt`.
    Txt,
}

impl DenseFormat {
    /// The format that the name of `path` ends in.
    ///
    /// # Errors
    /// [`Error::Argument`] for any other ending.
    pub fn of(path: &Path) -> Result<Self> {
        let name = path.file_name().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        match name.strip_suffix(".gz").unwrap_or(&name).rsplit_once('.') {
            Some((_, "npy")) => Ok(Self::Npy),
            Some((_, "mtx")) => Ok(Self::Mtx),
            Some((_, "txt")) => Ok(Self::Txt),
            _ => Err(Error::argument(
                "file",
                format!("{}: the name ends neither in .npy, .mtx nor in .txt (.gz may follow)", path.display()),
            )),
        }
    }
}

/// What is known of a dense matrix before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DenseHeader {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Bytes of an element of a binary file: 2 (f16 or bf16), 4 (f32) or 8 (f64); text has none.
    pub element: Option<usize>,
}

/// The shape of the matrix in the file `path`, as its header has it; a `.txt` file has none and is read.
///
/// # Errors
/// As [`read_dense`], as far as the file is read.
pub fn dense_header(path: &Path) -> Result<DenseHeader> {
    match DenseFormat::of(path)? {
        DenseFormat::Npy => npy_header(path),
        DenseFormat::Mtx => mtx_shape(path).map(|(rows, cols)| DenseHeader { rows, cols, element: None }),
        DenseFormat::Txt => {
            let a: Mat<f64> = read_txt(path, ReadOptions::default())?;
            Ok(DenseHeader { rows: a.rows(), cols: a.cols(), element: None })
        }
    }
}

/// The matrix in the file `path`, whose name tells the format; elements are rounded to `T`. A vector of an `.npy` file is one column.
///
/// # Errors
/// [`Error::Argument`] for a name of no known format, [`Error::Io`]; [`Error::Parse`] with the line of the first mistake, 0 in a
/// binary file; [`Error::Memory`].
#[inline(never)]
pub fn read_dense<T: Scalar>(path: &Path, options: ReadOptions<'_>) -> Result<Mat<T>> {
    match DenseFormat::of(path)? {
        DenseFormat::Npy => read_npy(path, options),
        DenseFormat::Mtx => read_mtx_dense(path, options),
        DenseFormat::Txt => read_txt(path, options),
    }
}

/// Writes `a` to the file `path`, whose name tells the format. Text has the shortest digits that read back as the same numbers.
///
/// # Errors
/// [`Error::Argument`] for a name of no known format; [`Error::Io`], and nothing is left behind.
#[inline(never)]
pub fn write_dense<T: Scalar>(path: &Path, a: MatRef<'_, T>) -> Result<()> {
    match DenseFormat::of(path)? {
        DenseFormat::Npy => write_npy(path, &[a.rows(), a.cols()], a),
        DenseFormat::Mtx => write_mtx_dense(path, a),
        DenseFormat::Txt => write_txt(path, a),
    }
}

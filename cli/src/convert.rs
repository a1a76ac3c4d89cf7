//! `sparsimd convert IN OUT`.

use std::path::{Path, PathBuf};

use sparsimd::io::{
    DenseFormat, Format, Matrix, ReadOptions, TensorFormat, read_dense, read_matrix, write_dense, write_matrix,
    write_npy, write_tensor, write_tnsb_as,
};
use sparsimd::reorder::permute_modes;
use sparsimd::{Coo, CooTensor, Cpu, Csr, Error, Mat, Number, Result, Scalar, Stored, bf16, f16};

use super::progress::Progress;
use super::reorder::Order;
use super::tensor::read_file;
use super::timing::StoredDtype;
use super::{Verdict, output};

/// Arguments of `convert`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File to read: a matrix, .mtx or .smtx, .gz may follow; a tensor, .tns, .tns.gz or .tnsb; a dense matrix, .npy or .txt, .gz
    /// may follow, or an .mtx array that becomes one of these
    input: PathBuf,
    /// File to write: likewise (an .smtx file drops the values); a tensor of two modes is a matrix, too
    output: PathBuf,
    /// New numbers for rows and columns, the same ones for both of a square matrix, or for the indices of each mode
    #[arg(long, value_enum, default_value_t = Order::None)]
    reorder: Order,
    /// Element type of a binary file, .npy or .tnsb, each number rounded to the nearest; programs read bf16 and f16 as f32 [default: f64]
    #[arg(long, value_enum)]
    dtype: Option<StoredDtype>,
}

impl Args {
    /// The operand as the user named it.
    pub fn operand(&self) -> String {
        self.input.display().to_string()
    }
}

/// What a file holds.
enum Held {
    Matrix(Matrix<f64>),
    Tensor(CooTensor<f64>),
    Dense(Mat<f64>),
}

/// Reads one file and writes the other.
pub fn run(args: &Args) -> Result<Verdict> {
    // Before the work of reading: is there anything that could be written?
    let binary_or_text = |path: &Path| matches!(DenseFormat::of(path), Ok(DenseFormat::Npy | DenseFormat::Txt));
    let dense = binary_or_text(&args.input) || binary_or_text(&args.output);
    let to_tensor = TensorFormat::of(&args.output).is_ok();
    if dense {
        DenseFormat::of(&args.output)?;
        if args.reorder != Order::None {
            let detail = "the rows of a dense matrix stay where they are".to_owned();
            return Err(Error::Argument { name: "reorder", detail });
        }
    } else if !to_tensor {
        Format::of(&args.output)?;
    }
    let binary = match dense {
        true => DenseFormat::of(&args.output)? == DenseFormat::Npy,
        false => matches!(TensorFormat::of(&args.output), Ok(TensorFormat::Tnsb)),
    };
    if args.dtype.is_some() && !binary {
        let detail = format!("{} is text: .npy and .tnsb have an element type", args.output.display());
        return Err(Error::Argument { name: "dtype", detail });
    }
    let text = Cpu::new()?.install(|| -> Result<String> {
        match read(args, dense)? {
            Held::Dense(a) => {
                match args.dtype {
                    Some(dtype) => write_npy_as(&args.output, &a, dtype)?,
                    None => write_dense(&args.output, a.as_ref())?,
                }
                Ok(format!("{} x {}, dense", a.rows(), a.cols()))
            }
            Held::Matrix(matrix) => {
                let pattern = matrix.pattern();
                let text = format!("{} x {}, {} nonzeros", pattern.rows(), pattern.cols(), pattern.nnz());
                match to_tensor {
                    true => write_tensor_as(&args.output, &of_matrix(&matrix.into_csr()?)?, args.dtype)?,
                    false => write_matrix(&args.output, &matrix)?,
                }
                Ok(text)
            }
            Held::Tensor(x) => {
                let dims = x.dims().iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
                let text = format!("{dims}, {} nonzeros", x.nnz());
                match to_tensor {
                    true => write_tensor_as(&args.output, &x, args.dtype)?,
                    false => write_matrix(&args.output, &Matrix::Values(as_matrix("out", &args.operand(), x)?))?,
                }
                Ok(text)
            }
        }
    })?;
    output::line(&format!("{}: {text}", args.output.display()))?;
    Ok(Verdict::Good)
}

/// Writes the tensor, a `.tnsb` file as `dtype` if one is asked for.
fn write_tensor_as(path: &Path, x: &CooTensor<f64>, dtype: Option<StoredDtype>) -> Result<()> {
    match dtype {
        None => write_tensor(path, x),
        Some(StoredDtype::F32) => write_tnsb_as::<f32, f64>(path, x),
        Some(StoredDtype::F64) => write_tnsb_as::<f64, f64>(path, x),
        Some(StoredDtype::Bf16) => write_tnsb_as::<bf16, f64>(path, x),
        Some(StoredDtype::F16) => write_tnsb_as::<f16, f64>(path, x),
    }
}

/// Writes the matrix to an `.npy` file as `dtype`.
fn write_npy_as(path: &Path, a: &Mat<f64>, dtype: StoredDtype) -> Result<()> {
    fn write<D: Stored>(path: &Path, a: &Mat<f64>) -> Result<()> {
        let to = |i, j| D::narrow(D::Scalar::from_f64(a[(i, j)]));
        write_npy(path, &[a.rows(), a.cols()], Mat::from_fn(a.rows(), a.cols(), to)?.as_ref())
    }
    match dtype {
        StoredDtype::F32 => write::<f32>(path, a),
        StoredDtype::F64 => write::<f64>(path, a),
        StoredDtype::Bf16 => write::<bf16>(path, a),
        StoredDtype::F16 => write::<f16>(path, a),
    }
}

/// Reads the file, and puts what it holds into the order asked for.
fn read(args: &Args, dense: bool) -> Result<Held> {
    let progress = Progress::of(&args.input);
    let update = |done, total| progress.update(done, total);
    let options = ReadOptions::default().progress(&update);
    if dense {
        return read_dense(&args.input, options).map(Held::Dense);
    }
    if TensorFormat::of(&args.input).is_ok() {
        let mut x = read_file(&args.input, false, false)?;
        if let Some(orders) = args.reorder.of_tensor(&x)? {
            x = permute_modes(&x, &orders)?;
            x.sort(&(0..x.order()).collect::<Vec<_>>())?;
        }
        return Ok(Held::Tensor(x));
    }
    let mut matrix = read_matrix(&args.input, options)?;
    if let Some(reordering) = args.reorder.of_matrix(matrix.pattern().into())? {
        matrix = match matrix {
            Matrix::Pattern(pattern) => Matrix::Pattern(reordering.pattern(&pattern)?.0),
            Matrix::Values(csr) => Matrix::Values(reordering.matrix(&csr)?),
        };
    }
    Ok(Held::Matrix(matrix))
}

/// The tensor `x`, called `name`, as a matrix, if it has two modes; else what `argument` asks for cannot be.
pub fn as_matrix<T: Scalar>(argument: &'static str, name: &str, x: CooTensor<T>) -> Result<Csr<T>> {
    let (dims, mut coords, values) = x.into_parts();
    let ([rows, cols], Some(j), Some(i)) = (&dims[..], coords.pop(), coords.pop()) else {
        let what = if argument == "out" { "for .tns, .tns.gz or .tnsb" } else { "a matrix has 2" };
        let detail = format!("{name} has {} modes: {what}", dims.len());
        return Err(Error::Argument { name: argument, detail });
    };
    Coo::new(*rows, *cols, i, j, values)?.to_csr()
}

/// The matrix `a` as a tensor of order 2.
fn of_matrix<T: Scalar>(a: &Csr<T>) -> Result<CooTensor<T>> {
    let rows = (0..a.rows()).flat_map(|i| std::iter::repeat_n(i as u32, a.pattern().row(i).len())).collect();
    CooTensor::new(vec![a.rows(), a.cols()], vec![rows, a.pattern().col_idx().to_vec()], a.values().to_vec())
}

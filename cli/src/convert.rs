//! `sparsimd convert IN OUT`.

use std::path::PathBuf;

use sparsimd::io::{Format, Matrix, ReadOptions, TensorFormat, read_matrix, write_matrix, write_tensor};
use sparsimd::reorder::permute_modes;
use sparsimd::{CooTensor, Cpu, Result};

use super::progress::Progress;
use super::reorder::Order;
use super::tensor::read_file;
use super::{Verdict, output};

/// Arguments of `convert`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File to read: .mtx or .smtx, .gz may follow; or .tns, .tns.gz or .tnsb
    input: PathBuf,
    /// File to write: .mtx or .smtx, .gz may follow, for a matrix (an .smtx file drops the values); .tns, .tns.gz or .tnsb for a
    /// tensor
    output: PathBuf,
    /// New numbers for rows and columns, the same ones for both of a square matrix, or for the indices of each mode
    #[arg(long, value_enum, default_value_t = Order::None)]
    reorder: Order,
}

impl Args {
    /// The operand as the user named it.
    pub fn operand(&self) -> String {
        self.input.display().to_string()
    }
}

/// Reads one file and writes the other.
pub fn run(args: &Args) -> Result<Verdict> {
    let text = match TensorFormat::of(&args.input) {
        Ok(_) => tensor(args)?,
        Err(_) => matrix(args)?,
    };
    output::line(&format!("{}: {text}", args.output.display()))?;
    Ok(Verdict::Good)
}

fn matrix(args: &Args) -> Result<String> {
    // Before the work of reading: is there anything that could be written?
    Format::of(&args.output)?;
    let matrix: Matrix<f64> = Cpu::new()?.install(|| -> Result<_> {
        let progress = Progress::of(&args.input);
        let update = |done, total| progress.update(done, total);
        let mut matrix = read_matrix(&args.input, ReadOptions::default().progress(&update))?;
        if let Some(reordering) = args.reorder.of_matrix(matrix.pattern().into())? {
            matrix = match matrix {
                Matrix::Pattern(pattern) => Matrix::Pattern(reordering.pattern(&pattern)?.0),
                Matrix::Values(csr) => Matrix::Values(reordering.matrix(&csr)?),
            };
        }
        write_matrix(&args.output, &matrix)?;
        Ok(matrix)
    })?;
    let pattern = matrix.pattern();
    Ok(format!("{} x {}, {} nonzeros", pattern.rows(), pattern.cols(), pattern.nnz()))
}

fn tensor(args: &Args) -> Result<String> {
    TensorFormat::of(&args.output)?;
    let x: CooTensor<f64> = Cpu::new()?.install(|| -> Result<_> {
        let mut x = read_file(&args.input, false, false)?;
        if let Some(orders) = args.reorder.of_tensor(&x)? {
            x = permute_modes(&x, &orders)?;
            x.sort(&(0..x.order()).collect::<Vec<_>>())?;
        }
        write_tensor(&args.output, &x)?;
        Ok(x)
    })?;
    let dims = x.dims().iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
    Ok(format!("{dims}, {} nonzeros", x.nnz()))
}

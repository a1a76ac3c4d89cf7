//! `sparsimd convert IN OUT`.

use std::path::PathBuf;

use sparsimd::io::{Format, Matrix, ReadOptions, read_matrix, write_matrix};
use sparsimd::{Cpu, Result};

use super::progress::Progress;
use super::{Verdict, output};

/// Arguments of `convert`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File to read: .mtx or .smtx, .gz may follow
    input: PathBuf,
    /// File to write: .mtx or .smtx, .gz may follow; an .smtx file drops the values
    output: PathBuf,
}

impl Args {
    /// The operand as the user named it.
    pub fn operand(&self) -> String {
        self.input.display().to_string()
    }
}

/// Reads one file and writes the other.
pub fn run(args: &Args) -> Result<Verdict> {
    // Before the work of reading: is there anything that could be written?
    Format::of(&args.output)?;
    let matrix: Matrix<f64> = Cpu::new()?.install(|| -> Result<_> {
        let progress = Progress::of(&args.input);
        let update = |done, total| progress.update(done, total);
        let matrix = read_matrix(&args.input, ReadOptions::default().progress(&update))?;
        write_matrix(&args.output, &matrix)?;
        Ok(matrix)
    })?;
    let pattern = matrix.pattern();
    let (rows, cols, nnz) = (pattern.rows(), pattern.cols(), pattern.nnz());
    output::line(&format!("{}: {rows} x {cols}, {nnz} nonzeros", args.output.display()))?;
    Ok(Verdict::Good)
}

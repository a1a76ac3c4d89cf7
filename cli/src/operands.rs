//! `--b`, `--c` and `--d`: dense operands of the matrix operations from files.

use std::path::{Path, PathBuf};

use sparsimd::io::{DenseFormat, DenseHeader, NpyStream, ReadOptions, dense_header, read_dense};
use sparsimd::{Error, Mat, Result, Scalar};

use super::progress::Progress;

/// Files of the dense operands: all of an operation's, or none, and then they are random.
#[derive(Debug, clap::Args)]
pub struct Operands {
    /// Dense matrix B, a row for each column of A: .npy, .mtx (array) or .txt, .gz may follow [default: random]
    #[arg(long, value_name = "FILE")]
    b: Option<PathBuf>,
    /// Dense matrix C of sddmm and fusedmm, a row for each row of A: likewise
    #[arg(long, value_name = "FILE")]
    c: Option<PathBuf>,
    /// Dense matrix D of fusedmm, a row for each column of A: likewise; it may have more or fewer columns than B and C
    #[arg(long, value_name = "FILE")]
    d: Option<PathBuf>,
}

/// What the files say before they are read.
pub struct Settled {
    /// N: columns of B and C.
    pub n: usize,
    /// Bytes of the widest element of a binary file.
    pub element: Option<usize>,
}

fn argument(name: &'static str, detail: String) -> Error {
    Error::Argument { name, detail }
}

/// Whether operand `name` has as many rows as A asks for.
fn check_rows(name: &'static str, path: &Path, found: usize, rows: usize) -> Result<()> {
    let of_a = if name == "c" { "rows" } else { "columns" };
    match found == rows {
        true => Ok(()),
        false => Err(argument(name, format!("{} has {found} rows where A has {rows} {of_a}", path.display()))),
    }
}

impl Operands {
    fn file(&self, name: &str) -> Option<&Path> {
        match name {
            "b" => &self.b,
            "c" => &self.c,
            _ => &self.d,
        }
        .as_deref()
    }

    /// N and the element type by the files' headers, for the operation `op` on the dense operands `needed`; `None` where there are no
    /// files.
    pub fn settle(&self, op: &str, needed: &[&'static str], n: Option<usize>) -> Result<Option<Settled>> {
        if let Some(name) = ["b", "c", "d"].into_iter().find(|name| self.file(name).is_some() && !needed.contains(name))
        {
            return Err(argument(name, format!("{op} has no dense operand {}", name.to_uppercase())));
        }
        let Some(given) = needed.iter().find(|name| self.file(name).is_some()) else { return Ok(None) };
        let mut known = n.map(|n| (n, "-n".to_owned()));
        let mut element = None;
        for &name in needed {
            let Some(path) = self.file(name) else {
                let detail = format!(
                    "no file is given where --{given} has one: {op} takes all of its operands from files or none"
                );
                return Err(argument(name, detail));
            };
            let DenseHeader { cols, element: bytes, .. } = dense_header(path)?;
            element = element.max(bytes);
            match &known {
                _ if name == "d" => {}
                None => known = Some((cols, format!("{}", path.display()))),
                Some((n, who)) if *n != cols => {
                    return Err(argument(name, format!("{} has {cols} columns where {who} has {n}", path.display())));
                }
                Some(_) => {}
            }
        }
        let n = known.map_or(0, |(n, _)| n);
        Ok(Some(Settled { n, element }))
    }

    /// Operand `name` in its .npy file, to be read by rows; `None` where there is no file.
    pub fn stream(&self, name: &'static str, rows: usize) -> Result<Option<NpyStream>> {
        let Some(path) = self.file(name) else { return Ok(None) };
        if !matches!(DenseFormat::of(path), Ok(DenseFormat::Npy)) {
            let detail = format!("{}: operands that are read in passes are .npy files", path.display());
            return Err(argument(name, detail));
        }
        let stream = NpyStream::open(path)?;
        check_rows(name, path, stream.rows(), rows)?;
        Ok(Some(stream))
    }

    /// Operand `name` from its file, which must have `rows` rows; `None` where there is no file.
    pub fn read<T: Scalar>(&self, name: &'static str, rows: usize) -> Result<Option<Mat<T>>> {
        let Some(path) = self.file(name) else { return Ok(None) };
        // Before the file is read: a long one takes long.
        check_rows(name, path, dense_header(path)?.rows, rows)?;
        let progress = Progress::of(path);
        let update = |done, total| progress.update(done, total);
        let operand: Mat<T> = read_dense(path, ReadOptions::default().progress(&update))?;
        check_rows(name, path, operand.rows(), rows)?;
        Ok(Some(operand))
    }
}

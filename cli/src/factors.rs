//! Factor matrices in a folder: `mode0.npy`, `mode1.npy`, ..., or `.txt`.

use std::path::{Path, PathBuf};

use sparsimd::formats::MAX_ORDER;
use sparsimd::io::{ReadOptions, dense_header, read_dense, write_dense};
use sparsimd::{Error, Mat, MatRef, Result, Scalar, Stored};

use super::matrix::narrowed;

/// `--factors` and `--out` of an operation on a tensor.
#[derive(Debug, clap::Args)]
pub struct Folders {
    /// Take the dense operands from this folder: mode0.npy, mode1.npy, ..., or .txt, a row for each index of the mode; --rank is
    /// then that of the files [default: random]
    #[arg(long, value_name = "DIR", conflicts_with = "rank")]
    factors: Option<PathBuf>,
    /// Folder for the products: mode0.npy, mode1.npy, ... of mttkrp, the sparse tensors mode0.tns, mode1.tns, ... of ttm and ttv
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The factor of `mode` in the folder `dir`: an .npy file if there is one, else text.
pub fn file(dir: &Path, mode: usize) -> PathBuf {
    let binary = dir.join(format!("mode{mode}.npy"));
    if binary.exists() { binary } else { dir.join(format!("mode{mode}.txt")) }
}

impl Folders {
    /// Columns of the files that there are; `None` where no folder is given. Makes the folder of the results.
    pub fn settle(&self) -> Result<Option<usize>> {
        if let Some(dir) = &self.out {
            std::fs::create_dir_all(dir).map_err(|source| Error::Io { path: dir.clone(), source })?;
        }
        let Some(dir) = &self.factors else { return Ok(None) };
        match (0..MAX_ORDER).map(|mode| file(dir, mode)).find(|file| file.exists()) {
            Some(file) => dense_header(&file).map(|header| Some(header.cols)),
            None => Err(Error::Argument { name: "factors", detail: format!("{} has no mode0.npy", dir.display()) }),
        }
    }

    /// The dense operand of `mode`, `dim` x `cols`, from its file, or as `random` makes it.
    pub fn operand<D: Stored>(
        &self,
        mode: usize,
        dim: usize,
        cols: usize,
        random: impl FnOnce() -> Result<Mat<D>>,
    ) -> Result<Mat<D>> {
        let Some(dir) = &self.factors else { return random() };
        let file = file(dir, mode);
        let a: Mat<D::Scalar> = read_dense(&file, ReadOptions::default())?;
        if (a.rows(), a.cols()) != (dim, cols) {
            let (rows, has) = (a.rows(), a.cols());
            let detail = format!("{} is {rows} x {has} where mode {mode} asks for {dim} x {cols}", file.display());
            return Err(Error::Argument { name: "factors", detail });
        }
        narrowed(a)
    }

    /// Writes the dense product of `mode`, if that is asked for.
    pub fn write<T: Scalar>(&self, mode: usize, product: MatRef<'_, T>) -> Result<()> {
        match &self.out {
            Some(dir) => write_dense(&dir.join(format!("mode{mode}.npy")), product),
            None => Ok(()),
        }
    }

    /// The file of the sparse product of `mode`, if it is asked for.
    pub fn sparse(&self, mode: usize) -> Option<PathBuf> {
        self.out.as_ref().map(|dir| dir.join(format!("mode{mode}.tns")))
    }
}

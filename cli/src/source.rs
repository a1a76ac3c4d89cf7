//! Where the sparse matrix of a command comes from.

use std::path::PathBuf;
use std::str::FromStr;

use sparsimd::io::{ReadOptions, TensorFormat, read_matrix};
use sparsimd::{Csr, Error, Result, Scalar, generate};

use super::convert::as_matrix;
use super::progress::Progress;
use super::tensor::read_file;

/// `--matrix FILE | --random MxK@SPARSITY`, and `--seed`.
#[derive(Debug, clap::Args)]
pub struct Source {
    #[command(flatten)]
    origin: Origin,
    /// Seed of everything random: the matrix, and dense operands uniform in [-0.5, 0.5)
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Origin {
    /// Sparse matrix A from a file: .mtx or .smtx, .gz may follow (a file without values: all are 1), or a tensor of two modes, .tns or .tnsb
    #[arg(long, value_name = "FILE")]
    matrix: Option<PathBuf>,
    /// Random A of M rows and K columns, each place zero with probability SPARSITY
    #[arg(long, value_name = "MxK@SPARSITY")]
    random: Option<RandomSpec>,
}

/// `MxK@SPARSITY`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomSpec {
    /// M.
    pub rows: usize,
    /// K.
    pub cols: usize,
    /// Probability that a place is zero.
    pub sparsity: f64,
}

impl FromStr for RandomSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (dims, sparsity) = text.split_once('@')?;
            let (rows, cols) = dims.split_once('x')?;
            Some(Self { rows: rows.parse().ok()?, cols: cols.parse().ok()?, sparsity: sparsity.parse().ok()? })
        };
        parse().ok_or_else(|| "not of the form MxK@SPARSITY, such as 4096x4096@0.7".to_owned())
    }
}

impl Source {
    /// The file, if it comes from one.
    pub fn file(&self) -> Option<&std::path::Path> {
        self.origin.matrix.as_deref()
    }

    /// The matrix as the user named it.
    pub fn operand(&self) -> Option<String> {
        let random = |spec: RandomSpec| format!("--random {}x{}@{}", spec.rows, spec.cols, spec.sparsity);
        self.origin.matrix.as_ref().map(|path| path.display().to_string()).or(self.origin.random.map(random))
    }

    /// Reads or makes the matrix.
    pub fn load<T: Scalar>(&self) -> Result<Csr<T>> {
        match (&self.origin.matrix, self.origin.random) {
            (Some(path), _) if TensorFormat::of(path).is_ok() => {
                as_matrix("matrix", &path.display().to_string(), read_file(path, false, false)?)
            }
            (Some(path), _) => {
                let progress = Progress::of(path);
                let update = |done, total| progress.update(done, total);
                read_matrix(path, ReadOptions::default().progress(&update))?.into_csr()
            }
            (None, Some(RandomSpec { rows, cols, sparsity })) => {
                generate::random_matrix(rows, cols, sparsity, self.seed)
            }
            (None, None) => {
                Err(Error::Argument { name: "matrix", detail: "neither a file nor a random one is given".to_owned() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RandomSpec;

    #[test]
    fn random_specs() {
        let spec = |text: &str| text.parse::<RandomSpec>().ok().map(|s| (s.rows, s.cols, s.sparsity));
        assert_eq!(spec("4096x512@0.7"), Some((4096, 512, 0.7)));
        assert_eq!(spec("0x1@1"), Some((0, 1, 1.0)));
        for bad in ["", "4096", "4096x4096", "4096@0.7", "x@", "-1x2@0.5", "1.5x2@0.5", "2x2@half", "2x2x2@0.5"] {
            assert_eq!(spec(bad), None, "{bad}");
        }
    }
}

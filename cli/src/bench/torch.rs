//! cuSPARSE through PyTorch: the peer of the operations on an NVIDIA device.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sparsimd::{Csr, Pattern};

use super::python::Python;

/// The measuring program.
const SCRIPT: &str = sparsimd_peers::TORCH_SCRIPT;

/// A case for it; the sparse matrix is in files of numbers.
#[derive(Serialize)]
struct Request<'a> {
    op: &'a str,
    m: usize,
    k: usize,
    n: usize,
    nnz: usize,
    folder: &'a std::path::Path,
    seconds: f64,
}

/// What it measured, in seconds of the device's clock.
#[derive(Deserialize)]
pub struct Answer {
    /// Why there is nothing.
    failed: Option<String>,
    #[serde(default)]
    pub min_s: f64,
    #[serde(default)]
    pub median_s: f64,
    #[serde(default)]
    pub cold_s: f64,
    #[serde(default)]
    pub runs: usize,
}

/// The process.
pub struct Torch {
    python: Python,
    /// The matrix in the folder's files.
    written: Option<(Arc<Pattern>, usize)>,
}

impl Torch {
    /// Starts it; or why there is none.
    pub fn start() -> Result<Self, String> {
        Ok(Self { python: Python::start(SCRIPT, &[])?, written: None })
    }

    /// Versions and the device, in words.
    pub fn detail(&self) -> &str {
        &self.python.detail
    }

    /// Times `op` ("sddmm", "spmm" or "fusedmm") with `n` dense columns for about so many seconds, verified.
    pub fn measure(&mut self, op: &str, a: &Csr<f32>, n: usize, seconds: f64) -> Result<Answer, String> {
        let values = a.values().as_ptr() as usize;
        let same = |(pattern, at): &(Arc<Pattern>, usize)| Arc::ptr_eq(pattern, a.pattern()) && *at == values;
        if !self.written.as_ref().is_some_and(same) {
            self.written = None;
            self.write(a).map_err(|e| e.to_string())?;
            self.written = Some((a.pattern().clone(), values));
        }
        let folder = self.python.folder().to_owned();
        let request = Request { op, m: a.rows(), k: a.cols(), n, nnz: a.nnz(), folder: &folder, seconds };
        let answer: Answer = self.python.ask(&request)?;
        match answer.failed {
            Some(why) => Err(why),
            None if answer.min_s > 0.0 => Ok(answer),
            None => Err("it measured nothing".to_owned()),
        }
    }

    /// The arrays of CSR, 32 bits an element.
    fn write(&self, a: &Csr<f32>) -> std::io::Result<()> {
        let pointers = a.pattern().row_ptr();
        if i32::try_from(a.nnz()).is_err() {
            return Err(std::io::Error::other("more nonzeros than 32 bits count"));
        }
        self.python.save("crow", pointers.iter().map(|&p| (p as i32).to_le_bytes()))?;
        self.python.save("col", a.pattern().col_idx().iter().map(|k| k.to_le_bytes()))?;
        self.python.save("val", a.values().iter().map(|x| x.to_le_bytes()))
    }
}

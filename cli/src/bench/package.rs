//! MTTKRP by Python packages, pyttb and tensorly: peers of the suite mttkrp.

use std::path::Path;

use serde::{Deserialize, Serialize};
use sparsimd::{CooTensor, Mat};
use sparsimd_peers::{QUIET, find};

use super::python::Python;

/// The measuring program, and the variable that tells it whose MTTKRP.
const SCRIPT: &str = sparsimd_peers::MTTKRP_SCRIPT;
const WHOSE: &str = "SPARSIMD_PACKAGE";

/// A tensor and its factors in files of `folder`.
#[derive(Serialize)]
pub struct Problem<'a> {
    pub folder: &'a Path,
    pub dims: &'a [usize],
    pub rank: usize,
}

/// What it is told.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Request<'a> {
    Load(Problem<'a>),
    Check(usize),
    Sweeps(usize),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Answer {
    /// Why there is nothing.
    failed: Option<String>,
    /// Each sweep.
    seconds: Vec<f64>,
}

/// The process.
pub struct Package {
    /// As the report calls it.
    pub name: &'static str,
    python: Python,
}

/// What a Python package needs in its environment: where packages are, and so many threads that do not spin for long.
pub fn variables(threads: usize) -> Result<Vec<(&'static str, String)>, String> {
    let mut folders = find::packages();
    folders.extend(std::env::var_os("PYTHONPATH").iter().flat_map(std::env::split_paths));
    let path = std::env::join_paths(folders).map_err(|e| e.to_string())?.to_string_lossy().into_owned();
    let mut variables = vec![("PYTHONPATH", path)];
    variables.extend(
        ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"].map(|name| (name, threads.to_string())),
    );
    // Threads of the process that wait must not run into what is timed next.
    variables.push(("OMP_WAIT_POLICY", "passive".to_owned()));
    variables.extend(QUIET.map(|setting| (setting.name, setting.value.to_owned())));
    Ok(variables)
}

/// Writes the tensor and its factors into the files that the measuring programs read.
pub fn write(python: &Python, x: &CooTensor<f64>, factors: &[Mat<f64>]) -> std::io::Result<()> {
    let coordinates = (0..x.nnz()).flat_map(|p| (0..x.order()).map(move |mode| x.coords(mode)[p].to_le_bytes()));
    python.save("subs", coordinates)?;
    python.save("vals", x.values().iter().map(|v| v.to_le_bytes()))?;
    for (mode, factor) in factors.iter().enumerate() {
        let rows = (0..factor.rows()).flat_map(|i| factor.row(i).iter().map(|v| v.to_le_bytes()));
        python.save(&format!("factor{mode}"), rows)?;
    }
    Ok(())
}

impl Package {
    /// Starts that of the package `name` with so many threads; or why there is none.
    pub fn start(name: &'static str, threads: usize) -> Result<Self, String> {
        let mut variables = variables(threads)?;
        variables.push((WHOSE, name.to_owned()));
        Ok(Self { name, python: Python::start(SCRIPT, &variables)? })
    }

    /// Versions, in words.
    pub fn detail(&self) -> &str {
        &self.python.detail
    }

    /// Gives it a tensor and factors.
    pub fn load(&mut self, x: &CooTensor<f64>, factors: &[Mat<f64>], rank: usize) -> Result<(), String> {
        write(&self.python, x, factors).map_err(|e| e.to_string())?;
        let folder = self.python.folder().to_owned();
        self.send(&Request::Load(Problem { folder: &folder, dims: x.dims(), rank })).map(drop)
    }

    /// Its product of `mode`, `rows` x `rank`.
    pub fn product(&mut self, mode: usize, rows: usize, rank: usize) -> Result<Mat<f64>, String> {
        self.send(&Request::Check(mode))?;
        let bytes = std::fs::read(self.python.folder().join("out")).map_err(|e| e.to_string())?;
        let values = bytes.as_chunks::<8>().0;
        if values.len() != rows * rank {
            return Err(format!("{} numbers where {rows} x {rank} are due", values.len()));
        }
        Mat::from_fn(rows, rank, |i, r| f64::from_le_bytes(values[i * rank + r])).map_err(|e| e.to_string())
    }

    /// Seconds of each of `n` sweeps over all modes.
    pub fn sweeps(&mut self, n: usize) -> Result<Vec<f64>, String> {
        self.send(&Request::Sweeps(n)).map(|answer| answer.seconds)
    }

    fn send(&mut self, request: &Request<'_>) -> Result<Answer, String> {
        let answer: Answer = self.python.ask(request)?;
        answer.failed.clone().map_or(Ok(answer), Err)
    }
}

//! GenTen through its Python package: the peer of CP-ALS.

use serde::{Deserialize, Serialize};
use sparsimd::{CooTensor, Mat};

use super::package::{Problem, variables, write};
use super::python::Python;

/// The measuring program.
const SCRIPT: &str = sparsimd_peers::GENTEN_SCRIPT;
/// Its ways of MTTKRP that more than one thread can take.
pub const METHODS: [&str; 3] = ["Atomic", "Duplicated", "Perm"];

/// What it is told.
#[derive(Serialize)]
#[serde(untagged)]
enum Request<'a> {
    Load { load: Problem<'a> },
    Run { method: &'a str, iterations: usize },
}

/// What some iterations took, in seconds of its own clock, and reached.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// Why there is nothing.
    failed: Option<String>,
    /// Each iteration.
    pub seconds: Vec<f64>,
    /// MTTKRP in each.
    pub mttkrp: Vec<f64>,
    /// After the last.
    pub fit: f64,
}

/// The process.
pub struct GenTen(Python);

impl GenTen {
    /// Starts it with so many threads; or why there is none.
    pub fn start(threads: usize) -> Result<Self, String> {
        let mut variables = variables(threads)?;
        // As its own messages advise.
        variables.extend([("OMP_PROC_BIND", "spread"), ("OMP_PLACES", "threads")].map(|(n, v)| (n, v.to_owned())));
        Python::start(SCRIPT, &variables).map(Self)
    }

    /// Versions, in words.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Gives it a tensor and a first guess.
    pub fn load(&mut self, x: &CooTensor<f64>, guess: &[Mat<f64>], rank: usize) -> Result<(), String> {
        write(&self.0, x, guess).map_err(|e| e.to_string())?;
        let folder = self.0.folder().to_owned();
        self.send(&Request::Load { load: Problem { folder: &folder, dims: x.dims(), rank } }).map(drop)
    }

    /// `iterations` from the first guess, MTTKRP by `method`.
    pub fn run(&mut self, method: &str, iterations: usize) -> Result<Answer, String> {
        self.send(&Request::Run { method, iterations })
    }

    fn send(&mut self, request: &Request<'_>) -> Result<Answer, String> {
        let answer: Answer = self.0.ask(request)?;
        answer.failed.clone().map_or(Ok(answer), Err)
    }
}

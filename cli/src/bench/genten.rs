//! GenTen through its Python package: the peer of CP-ALS.

use std::path::Path;

use serde::{Deserialize, Serialize};
use sparsimd::{CooTensor, Mat};
use sparsimd_peers::{QUIET, find};

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

#[derive(Serialize)]
struct Problem<'a> {
    folder: &'a Path,
    dims: &'a [usize],
    rank: usize,
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
        let mut folders = find::packages();
        folders.extend(std::env::var_os("PYTHONPATH").iter().flat_map(std::env::split_paths));
        let path = std::env::join_paths(folders).map_err(|e| e.to_string())?.to_string_lossy().into_owned();
        let mut variables = vec![("PYTHONPATH", path), ("OMP_NUM_THREADS", threads.to_string())];
        // As its own messages advise.
        variables.extend([("OMP_PROC_BIND", "spread"), ("OMP_PLACES", "threads")].map(|(n, v)| (n, v.to_owned())));
        // Threads of the process that wait must not run into what is timed next.
        variables.push(("OMP_WAIT_POLICY", "passive".to_owned()));
        variables.extend(QUIET.map(|setting| (setting.name, setting.value.to_owned())));
        Python::start(SCRIPT, &variables).map(Self)
    }

    /// Versions, in words.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Gives it a tensor and a first guess.
    pub fn load(&mut self, x: &CooTensor<f64>, guess: &[Mat<f64>], rank: usize) -> Result<(), String> {
        self.write(x, guess).map_err(|e| e.to_string())?;
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

    fn write(&self, x: &CooTensor<f64>, guess: &[Mat<f64>]) -> std::io::Result<()> {
        let coordinates = (0..x.nnz()).flat_map(|p| (0..x.order()).map(move |mode| x.coords(mode)[p].to_le_bytes()));
        self.0.save("subs", coordinates)?;
        self.0.save("vals", x.values().iter().map(|v| v.to_le_bytes()))?;
        for (mode, factor) in guess.iter().enumerate() {
            let rows = (0..factor.rows()).flat_map(|i| factor.row(i).iter().map(|v| v.to_le_bytes()));
            self.0.save(&format!("factor{mode}"), rows)?;
        }
        Ok(())
    }
}

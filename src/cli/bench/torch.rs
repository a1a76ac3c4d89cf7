//! cuSPARSE through PyTorch, in a process of its own: the peer of the operations on an NVIDIA device.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sparsimd::{Csr, Pattern};

/// The measuring program.
const SCRIPT: &str = include_str!("../../../benches/peers/torch_gpu.py");
/// Names the interpreter, where `python3` is not the one that has PyTorch.
const INTERPRETER: &str = "SPARSIMD_PYTHON";

/// What the process says when it has started.
#[derive(Deserialize)]
struct Greeting {
    /// Why it cannot measure.
    absent: Option<String>,
    /// Versions and the device.
    detail: Option<String>,
}

/// A case for it; the sparse matrix is in files of numbers.
#[derive(Serialize)]
struct Request<'a> {
    op: &'a str,
    m: usize,
    k: usize,
    n: usize,
    nnz: usize,
    folder: &'a str,
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
    child: Child,
    /// Closed to end it.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
    /// The matrix in the folder's files.
    written: Option<(Arc<Pattern>, usize)>,
    /// Versions and the device, in words.
    pub detail: String,
}

impl Torch {
    /// Starts it; or why there is none.
    pub fn start() -> Result<Self, String> {
        let interpreter = std::env::var_os(INTERPRETER).map_or_else(|| PathBuf::from("python3"), PathBuf::from);
        let mut command = Command::new(&interpreter);
        command.args(["-c", SCRIPT, "--serve"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|e| format!("{}: {e}", interpreter.display()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no pipes to the interpreter".to_owned());
        };
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let output = BufReader::new(output);
        let mut made = Self { child, input: Some(input), output, folder, written: None, detail: String::new() };
        let greeting: Greeting = made.read()?;
        match (greeting.absent, greeting.detail) {
            (None, Some(detail)) => made.detail = detail,
            (why, _) => return Err(why.unwrap_or_else(|| "it says nothing of its device".to_owned())),
        }
        Ok(made)
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
        let folder = self.folder.path().to_string_lossy().into_owned();
        let request = Request { op, m: a.rows(), k: a.cols(), n, nnz: a.nnz(), folder: &folder, seconds };
        let line = serde_json::to_string(&request).map_err(|e| e.to_string())?;
        let input = self.input.as_mut().ok_or("it has ended")?;
        writeln!(input, "{line}").and_then(|()| input.flush()).map_err(|e| e.to_string())?;
        let answer: Answer = self.read()?;
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
        self.save("crow", pointers.iter().map(|&p| (p as i32).to_le_bytes()))?;
        self.save("col", a.pattern().col_idx().iter().map(|k| k.to_le_bytes()))?;
        self.save("val", a.values().iter().map(|x| x.to_le_bytes()))
    }

    /// Writes a file of the folder.
    fn save(&self, name: &str, words: impl Iterator<Item = [u8; 4]>) -> std::io::Result<()> {
        let mut file = std::io::BufWriter::new(std::fs::File::create(self.folder.path().join(name))?);
        for word in words {
            file.write_all(&word)?;
        }
        file.flush()
    }

    fn read<T: for<'de> Deserialize<'de>>(&mut self) -> Result<T, String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) => Err("the interpreter ended without a word".to_owned()),
            Ok(_) => serde_json::from_str(&line).map_err(|e| format!("it says {line:?} ({e})")),
            Err(e) => Err(e.to_string()),
        }
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        // Its input ends, and so does it; killing makes sure, and failing to kill what has ended is no matter.
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! A peer that is a Python package: a process of its own, which answers a line of JSON with a line of JSON.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Names the interpreter, where `python3` is not the one that has the package.
const INTERPRETER: &str = "SPARSIMD_PYTHON";

/// What the process says when it has started.
#[derive(Deserialize)]
struct Greeting {
    /// Why it cannot measure.
    absent: Option<String>,
    /// Versions, and what it runs on.
    detail: Option<String>,
}

/// The process.
pub struct Python {
    child: Child,
    /// Closed to end it.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
    /// Versions, and what it runs on, in words.
    pub detail: String,
}

impl Python {
    /// Starts `script` with these variables in its environment; or why there is none.
    pub fn start(script: &str, variables: &[(&str, String)]) -> Result<Self, String> {
        let interpreter = std::env::var_os(INTERPRETER).map_or_else(|| PathBuf::from("python3"), PathBuf::from);
        let mut command = Command::new(&interpreter);
        command.args(["-c", script, "--serve"]).envs(variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|e| format!("{}: {e}", interpreter.display()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no pipes to the interpreter".to_owned());
        };
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let output = BufReader::new(output);
        let mut made = Self { child, input: Some(input), output, folder, detail: String::new() };
        let greeting: Greeting = made.read()?;
        match (greeting.absent, greeting.detail) {
            (None, Some(detail)) => made.detail = detail,
            (why, _) => return Err(why.unwrap_or_else(|| "it does not say what it is".to_owned())),
        }
        Ok(made)
    }

    /// Where operands lie in files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file of the folder.
    pub fn save<const BYTES: usize>(
        &self,
        name: &str,
        words: impl Iterator<Item = [u8; BYTES]>,
    ) -> std::io::Result<()> {
        let mut file = std::io::BufWriter::new(std::fs::File::create(self.folder().join(name))?);
        for word in words {
            file.write_all(&word)?;
        }
        file.flush()
    }

    /// Its answer to `request`.
    pub fn ask<A: DeserializeOwned>(&mut self, request: &impl Serialize) -> Result<A, String> {
        let line = serde_json::to_string(request).map_err(|e| e.to_string())?;
        let input = self.input.as_mut().ok_or("it has ended")?;
        writeln!(input, "{line}").and_then(|()| input.flush()).map_err(|e| e.to_string())?;
        self.read()
    }

    fn read<A: DeserializeOwned>(&mut self) -> Result<A, String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) => Err("the interpreter ended without a word".to_owned()),
            Ok(_) => serde_json::from_str(&line).map_err(|e| format!("it says {line:?} ({e})")),
            Err(e) => Err(e.to_string()),
        }
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // Its input ends, and so does it; killing makes sure, and failing to kill what has ended is no matter.
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

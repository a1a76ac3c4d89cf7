//! Writes the manifest of compiled modules: `spv-manifest MODULE_DIR COMPILER SOURCE...` prints it as JSON.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sparsimd_gpu_host::{Manifest, describe, sha256};

fn main() -> ExitCode {
    match manifest(std::env::args().skip(1).collect()) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("spv-manifest: {e}");
            ExitCode::FAILURE
        }
    }
}

fn manifest(args: Vec<String>) -> Result<String, String> {
    let [dir, compiler, sources @ ..] = args.as_slice() else {
        return Err("usage: spv-manifest MODULE_DIR COMPILER SOURCE...".into());
    };
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .map_err(|e| format!("{dir}: {e}"))?
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "spv"))
        .collect();
    files.sort();
    let mut modules = Vec::new();
    for file in &files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        modules.push(describe(&name, &read(file)?).map_err(|e| e.to_string())?);
    }
    // Each source is framed by its length, so that text cannot move between files unseen.
    let mut all = Vec::new();
    for source in sources {
        let text = read(Path::new(source))?;
        all.extend_from_slice(&(text.len() as u64).to_le_bytes());
        all.extend_from_slice(&text);
    }
    let manifest = Manifest { compiler: compiler.clone(), source_sha256: sha256(&all), modules };
    serde_json::to_string_pretty(&manifest).map_err(|e| e.to_string())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

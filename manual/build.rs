//! Writes the manual pages and the completions: into the folder that `SPARSIMD_MANUAL_DIR` names, else into cargo's.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use sparsimd_cli::manual;

const VARIABLE: &str = "SPARSIMD_MANUAL_DIR";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let dir = match env::var_os(VARIABLE) {
        Some(named) => PathBuf::from(named),
        None => PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?),
    };
    // Build scripts run in the folder of their package, not where cargo was called.
    if !dir.is_absolute() {
        return Err(format!("{VARIABLE}: {} is not an absolute path", dir.display()).into());
    }
    fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    manual::write_pages(&dir)?;
    manual::write_completions(&dir)?;
    // What was removed since is written again.
    println!("cargo::rerun-if-changed={}", dir.display());
    println!("cargo::rustc-env={VARIABLE}={}", dir.display());
    Ok(())
}

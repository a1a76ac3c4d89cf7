//! What the tests share.
#![allow(dead_code, reason = "each test program uses its own part")]

pub mod device;
pub mod matrices;
pub mod skip;
pub mod turn;

use std::path::PathBuf;

use skip::{Missing, skip};

/// The folder of real matrices and tensors: `SPARSIMD_DATA`, else `../shared/data` beside the project. Notes that a
/// test on real data is skipped when it is absent.
pub fn data_dir() -> Option<PathBuf> {
    let dir = std::env::var_os("SPARSIMD_DATA")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data")), PathBuf::from);
    if dir.is_dir() {
        return Some(dir);
    }
    skip(Missing::Data, format_args!("no folder of real data at {} (set SPARSIMD_DATA)", dir.display()));
    None
}

/// The small matrix that ships with the project.
pub fn shipped_matrix() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/pyfr_p6hex_m460.mtx"))
}

/// The names of the real matrices in `dir`, sorted.
pub fn matrix_files(dir: &std::path::Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .expect("a readable folder")
        .map(|entry| entry.expect("a readable entry").path())
        .filter(|path| sparsimd::io::Format::of(path).is_ok())
        .collect();
    files.sort();
    files
}

/// The names of the real tensors in `dir`, sorted.
pub fn tensor_files(dir: &std::path::Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .expect("a readable folder")
        .map(|entry| entry.expect("a readable entry").path())
        .filter(|path| sparsimd::io::TensorFormat::of(path).is_ok())
        .collect();
    files.sort();
    files
}

/// The ranks that a real tensor of `nnz` nonzeros is tested at: all that registers and tails make different, but few on
/// large tensors, where the naive loops would take minutes. `SPARSIMD_VERIFY=all` wants all on all.
pub fn real_ranks(nnz: usize) -> &'static [usize] {
    let all = std::env::var("SPARSIMD_VERIFY").is_ok_and(|value| value == "all");
    if all || nnz < 50_000 { &[1, 5, 8, 16, 32, 33, 64] } else { &[16, 33] }
}

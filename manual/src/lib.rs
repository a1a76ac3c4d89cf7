//! The folder with the manual pages and the completions of the program `sparsimd`, which the build of this package writes.

/// The folder: `sparsimd.1`, a page for each command, and a script for each shell.
pub const DIR: &str = env!("SPARSIMD_MANUAL_DIR");

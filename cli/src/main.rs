//! The program `sparsimd`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: sparsimd_cli::Checked = sparsimd_cli::Checked;

fn main() -> ExitCode {
    sparsimd_cli::run()
}

//! The command line of sparsimd.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}

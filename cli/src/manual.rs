//! Manual pages and completions, from the command line's own description: `sparsimd completions SHELL`, `sparsimd man DIR`, and all
//! of them in a folder, as packages want them.

use std::path::{Path, PathBuf};

use clap::{CommandFactory, ValueEnum};
use clap_complete::{Generator, Shell};
use sparsimd::io::write_atomically;
use sparsimd::{Error, Result};

use super::{Cli, Verdict, output};

/// The program, as shells know it.
const PROGRAM: &str = "sparsimd";

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Folder for sparsimd.1 and a page for each command
    dir: PathBuf,
}

/// Writes sparsimd.1 and a page for each command that `--help` shows; tells how many pages.
///
/// # Errors
///
/// A page cannot be written into `dir`.
pub fn write_pages(dir: &Path) -> Result<usize> {
    let mut all = Cli::command().disable_help_subcommand(true);
    // Which gives every command its whole name.
    all.build();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set());
    let mut pages = 0;
    for command in shown.chain([&all]) {
        let page = clap_mangen::Man::new(command.clone());
        write_atomically(&dir.join(page.get_filename()), |out| page.render(out))?;
        pages += 1;
    }
    Ok(pages)
}

/// Writes the script of every shell, by the name under which the shell looks for it: `sparsimd.bash`, `_sparsimd` (zsh), ...
///
/// # Errors
///
/// A script cannot be written into `dir`.
pub fn write_completions(dir: &Path) -> Result<()> {
    Shell::value_variants().iter().try_for_each(|&shell| {
        write_atomically(&dir.join(shell.file_name(PROGRAM)), |out| out.write_all(&script(shell)))
    })
}

/// The script with which `shell` completes the command line.
fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), PROGRAM, &mut script);
    script
}

/// Prints the shell's script.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Verdict> {
    output::line(String::from_utf8_lossy(&script(args.shell)).trim_end())?;
    Ok(Verdict::Good)
}

/// Writes the pages.
pub(crate) fn man(args: &ManArgs) -> Result<Verdict> {
    std::fs::create_dir_all(&args.dir).map_err(|source| Error::Io { path: args.dir.clone(), source })?;
    let pages = write_pages(&args.dir)?;
    output::line(&format!("{}: {pages} pages", args.dir.display()))?;
    Ok(Verdict::Good)
}

//! Manual pages and completions, from the command line's own description: `sparsimd completions SHELL`, `sparsimd man DIR`.

use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::Shell;
use sparsimd::io::write_atomically;
use sparsimd::{Error, Result};

use super::{Cli, Verdict, output};

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

/// Prints the script with which the shell completes the command line.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Verdict> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "sparsimd", &mut script);
    output::line(String::from_utf8_lossy(&script).trim_end())?;
    Ok(Verdict::Good)
}

/// Writes sparsimd.1 and a page for each command that `--help` shows.
pub(crate) fn man(args: &ManArgs) -> Result<Verdict> {
    std::fs::create_dir_all(&args.dir).map_err(|source| Error::Io { path: args.dir.clone(), source })?;
    let mut all = Cli::command().disable_help_subcommand(true);
    // Which gives every command its whole name.
    all.build();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set());
    let mut pages = 0;
    for command in shown.chain([&all]) {
        let page = clap_mangen::Man::new(command.clone());
        write_atomically(&args.dir.join(page.get_filename()), |out| page.render(out))?;
        pages += 1;
    }
    output::line(&format!("{}: {pages} pages", args.dir.display()))?;
    Ok(Verdict::Good)
}

//! Files that are there whole or not at all.

#[cfg(target_os = "linux")]
use std::fs::File;
use std::fs::{self, OpenOptions};
use std::io::{BufWriter, Write};
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
#[cfg(target_os = "linux")]
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::error::{Error, Result};

/// Writes `path` by `fill`: into a temporary file beside it that is renamed once it is complete; on Linux, where the file system has
/// it, one without a name, so that nothing is left of it either when the process is killed. A name that ends in
/// `.gz` is compressed. What is no regular file (a pipe, `/dev/null`) is written directly.
///
/// # Errors
/// [`Error::Io`] with `path`; no trace of the attempt is left.
pub fn write_atomically(path: &Path, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let mut fill = Some(fill);
    // One writer is compiled, whatever is written.
    let once = &mut |out: &mut dyn Write| fill.take().map_or(Ok(()), |fill| fill(out));
    write(path, once).map_err(|source| Error::Io { path: path.to_owned(), source })
}

/// [`write_atomically`], by a `fill` that may fail for other reasons than the file; those of the file are [`Error::Io`] of `path`.
pub(super) fn write_pieces(path: &Path, fill: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let mut failed = None;
    let written = write_atomically(path, |out| {
        fill(out).map_err(|error| {
            failed = Some(error);
            std::io::Error::other("the contents could not be made")
        })
    });
    failed.map_or(written, Err)
}

fn write(path: &Path, fill: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>) -> std::io::Result<()> {
    let compressed = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gz"));
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return fill_file(OpenOptions::new().write(true).open(path)?, compressed, fill);
    }
    // A link stays a link: its target is replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    #[cfg(target_os = "linux")]
    if let Some(file) = unnamed(folder) {
        fill_file(&file, compressed, fill)?;
        return name(&file, folder, &target);
    }
    // Opened by ourselves: readable by whom the umask says, as any new file, where the default of a temporary file is
    // private; and errors come in the system's words, without the temporary name.
    let open = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
    let file = tempfile::Builder::new().prefix(".sparsimd-").suffix(".tmp").make_in(folder, open)?;
    fill_file(file.as_file(), compressed, fill)?;
    file.persist(&target).map(drop).map_err(|e| e.error)
}

/// A file in `folder` that has no name: it goes with the process, however that ends. `None` where the file system has no such files.
#[cfg(target_os = "linux")]
fn unnamed(folder: &Path) -> Option<File> {
    // The name is given to it through this folder.
    let nameable = Path::new(DESCRIPTORS).is_dir();
    nameable.then(|| OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(folder).ok()).flatten()
}

/// Gives `file`, which has no name in `folder`, the name `target`, whatever had it before.
#[cfg(target_os = "linux")]
fn name(file: &File, folder: &Path, target: &Path) -> std::io::Result<()> {
    use rustix::fs::{AtFlags, CWD, linkat};
    let descriptor = Path::new(DESCRIPTORS).join(file.as_raw_fd().to_string());
    let link = |path: &Path| {
        linkat(CWD, descriptor.as_path(), CWD, path, AtFlags::SYMLINK_FOLLOW).map_err(std::io::Error::from)
    };
    match link(target) {
        // A link does not replace a file, a renaming does.
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            let named = tempfile::Builder::new().prefix(".sparsimd-").suffix(".tmp").make_in(folder, link)?;
            named.persist(target).map_err(|e| e.error)
        }
        done => done,
    }
}

/// Links to the open files of the process.
#[cfg(target_os = "linux")]
const DESCRIPTORS: &str = "/proc/self/fd";

fn fill_file(
    file: impl Write,
    compressed: bool,
    fill: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    if compressed {
        let mut encoder = GzEncoder::new(&mut out, Compression::default());
        fill(&mut encoder)?;
        encoder.finish()?;
    } else {
        fill(&mut out)?;
    }
    out.flush()
}

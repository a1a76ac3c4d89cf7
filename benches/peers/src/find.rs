//! Where peers are: a variable of the environment, `target/peers`, the loader's path, Python's packages, in this order.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// How deep below a folder of packages a library is looked for.
const DEPTH: usize = 5;

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The variable that names the file, or a folder above it.
    pub variable: &'static str,
    /// File names, the best first; one that ends in `*` stands for all that begin so.
    pub files: &'static [&'static str],
    /// Names for the loader to look up in its own path.
    pub sonames: &'static [&'static str],
}

/// MKL's single dynamic library.
pub const MKL: Wanted = Wanted {
    variable: "SPARSIMD_MKL",
    files: &["libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so.1", "libmkl_rt.so", "libmkl_rt.2.dylib"],
    sonames: &["libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so"],
};

/// OpenBLAS with 32-bit integers. SciPy's own copy has such too; NumPy's has 64-bit ones, under other names.
pub const OPENBLAS: Wanted = Wanted {
    variable: "SPARSIMD_OPENBLAS",
    files: &["libscipy_openblas.so", "libopenblas.so.0", "libopenblas.so", "libscipy_openblas-*", "libopenblas.dylib"],
    sonames: &["libopenblas.so.0", "libopenblas.so", "libopenblas.dylib"],
};

impl Wanted {
    /// Paths to try, in order: files that exist, and bare names for the loader. When the variable is set, only what it
    /// names.
    ///
    /// # Errors
    /// [`Error::Absent`] when the variable names nothing of the kind.
    pub fn places(&self) -> Result<Vec<PathBuf>> {
        if let Some(named) = env::var_os(self.variable).filter(|value| !value.is_empty()) {
            let named = PathBuf::from(named);
            if named.is_file() {
                return Ok(vec![named]);
            }
            let found = self.below(&named, DEPTH);
            let lacking = || {
                let what = if named.is_dir() { "has none of the files" } else { "is neither a file nor a folder;" };
                Error::Absent(format!("{} = {} {what} {}", self.variable, named.display(), self.files.join(", ")))
            };
            return found.map(|path| vec![path]).ok_or_else(lacking);
        }
        let own = own_folders().into_iter().filter_map(|folder| self.below(&folder, DEPTH));
        let loader = self.sonames.iter().map(PathBuf::from);
        let python = python_folders().into_iter().filter_map(|folder| self.below(&folder, 3));
        Ok(own.chain(loader).chain(python).collect())
    }

    /// Words for nothing found.
    pub fn absent(&self) -> Error {
        Error::Absent(format!(
            "no {} in {}, target/peers, the loader's path or Python's packages (benches/peers/install fetches it)",
            self.files[0], self.variable
        ))
    }

    /// The best file at most `depth` folders below `folder`.
    fn below(&self, folder: &Path, depth: usize) -> Option<PathBuf> {
        let mut level = vec![folder.to_owned()];
        let mut best: Option<(usize, PathBuf)> = None;
        for _ in 0..=depth {
            let mut next = Vec::new();
            for entry in level.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten() {
                let name = entry.file_name();
                let Some(name) = name.to_str() else { continue };
                let path = entry.path();
                if path.is_dir() {
                    next.push(path);
                    continue;
                }
                let rank = self.files.iter().position(|file| match file.strip_suffix('*') {
                    Some(start) => name.starts_with(start),
                    None => name == *file,
                });
                if let Some(rank) = rank
                    && best.as_ref().is_none_or(|(known, _)| rank < *known)
                {
                    best = Some((rank, path));
                }
            }
            if best.is_some() {
                break;
            }
            level = next;
        }
        best.map(|(_, path)| path)
    }
}

/// `target/peers` beside the program (which cargo puts below `target`) and in the source tree that it was built from.
fn own_folders() -> Vec<PathBuf> {
    let program = env::current_exe().unwrap_or_default();
    let beside = program.ancestors().filter(|folder| folder.file_name().is_some_and(|name| name == "target"));
    let mut folders: Vec<_> = beside.map(|target| target.join("peers")).collect();
    folders.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers"));
    // Those that exist, without detours in their names.
    folders.into_iter().filter_map(|folder| folder.canonicalize().ok()).collect()
}

/// The folders of Python packages below `target/peers`.
pub fn packages() -> Vec<PathBuf> {
    let below = own_folders().into_iter().filter_map(|folder| fs::read_dir(folder.join("lib")).ok());
    below
        .flatten()
        .flatten()
        .map(|python| python.path().join("site-packages"))
        .filter(|folder| folder.is_dir())
        .collect()
}

/// The folder of packages and the folder of libraries of the Python that `python3` starts.
fn python_folders() -> Vec<PathBuf> {
    const ASK: &str = "import sys, sysconfig; print(sysconfig.get_path('platlib')); print(sys.prefix + '/lib')";
    let asked = Command::new("python3").args(["-c", ASK]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let Ok(answer) = asked else { return Vec::new() };
    String::from_utf8_lossy(&answer.stdout).lines().map(PathBuf::from).filter(|folder| folder.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_name_nearest_to_the_folder() {
        let root = env::temp_dir().join(format!("sparsimd-find-{}", std::process::id()));
        let deep = root.join("a/b");
        fs::create_dir_all(&deep).unwrap();
        assert_eq!(OPENBLAS.below(&root, DEPTH), None);
        fs::write(deep.join("libscipy_openblas.so"), "").unwrap();
        fs::write(root.join("libscipy_openblas64_.so"), "").unwrap();
        assert_eq!(OPENBLAS.below(&root, DEPTH), Some(deep.join("libscipy_openblas.so")));
        assert_eq!(OPENBLAS.below(&root, 1), None);
        fs::write(root.join("a/libscipy_openblas-c128ec02.so"), "").unwrap();
        fs::write(root.join("a/libopenblas.so.0"), "").unwrap();
        assert_eq!(OPENBLAS.below(&root, DEPTH), Some(root.join("a/libopenblas.so.0")));
        fs::remove_dir_all(&root).unwrap();
    }
}

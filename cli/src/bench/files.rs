//! Every matrix file below a folder: patterns of pruned networks (`dlmc`), graphs and other sparse matrices (`graphs`).

use std::path::{Path, PathBuf};

use sparsimd::io::{ReadOptions, read_matrix};
use sparsimd::{Csr, Error, Result};

use super::matrix::{Kernel, Task};
use super::picture::speeds;
use super::report::{self, Section};
use super::results::{Case, Results};
use super::{Bench, Job, Suite};

/// Files of the short form: the smallest ones.
const QUICK_FILES: usize = 4;
/// Bytes of a nonzero in a file, about.
const BYTES_PER_NONZERO: f64 = 8.0;

/// The suite over the files of one kind.
pub struct Files {
    files: Vec<PathBuf>,
    /// Where their names start.
    root: PathBuf,
    /// File, dense columns and operation of each job.
    specs: Vec<(usize, usize, Kernel)>,
    /// The last file read, which several jobs share.
    last: Option<(usize, Csr<f32>)>,
}

impl Files {
    /// All files below `folder` that end in one of `endings`, compressed or not, with dense operands of `columns`.
    ///
    /// # Errors
    /// [`Error::Argument`] when there is none, [`Error::Io`] when a folder cannot be read.
    pub fn new(folder: &Path, ending: &str, columns: &[usize], quick: bool) -> Result<Self> {
        let mut files = below(folder, &[ending])?;
        // The smallest first: what goes wrong shows early, and time left is overestimated rather than under.
        files.sort_by_key(|(size, path)| (*size, path.clone()));
        if quick {
            files.truncate(QUICK_FILES);
        }
        let columns = if quick { &columns[columns.len() - 1..] } else { columns };
        // One column is SpMV, which is an operation of its own in other libraries; the others are none there.
        let kernels = |n| if n == 1 { &[Kernel::Spmm][..] } else { &Kernel::OF_FILES };
        let of_file = |file| columns.iter().flat_map(move |&n| kernels(n).iter().map(move |&kernel| (file, n, kernel)));
        let specs = (0..files.len()).flat_map(of_file).collect();
        let files = files.into_iter().map(|(_, path)| path).collect();
        Ok(Self { files, root: folder.to_owned(), specs, last: None })
    }

    /// The file's name below the folder.
    fn name(&self, file: usize) -> String {
        let path = &self.files[file];
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }

    fn load(&mut self, bench: &Bench, file: usize) -> Result<&Csr<f32>> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != file) {
            self.last = None;
            let path = &self.files[file];
            let a = bench.cpu.install(|| {
                read_matrix(path, ReadOptions::default())?
                    .into_csr_with(|nnz| sparsimd::generate::uniform_values(nnz, 0))
            })?;
            self.last = Some((file, a));
        }
        match &self.last {
            Some((_, a)) => Ok(a),
            None => unreachable!("just read"),
        }
    }
}

/// The files below `folder` that end in one of `endings` or that and `.gz`, with their sizes.
///
/// # Errors
/// [`Error::Argument`] when there is none, [`Error::Io`] when a folder cannot be read.
pub fn below(folder: &Path, endings: &[&str]) -> Result<Vec<(u64, PathBuf)>> {
    let mut folders = vec![folder.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let fail = |source| Error::Io { path: folder.clone(), source };
        for entry in std::fs::read_dir(&folder).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            let Ok(meta) = std::fs::metadata(&path) else { continue };
            let name = path.to_string_lossy().to_lowercase();
            let name = name.strip_suffix(".gz").unwrap_or(&name);
            if meta.is_dir() {
                folders.push(path);
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                files.push((meta.len(), path));
            }
        }
    }
    if files.is_empty() {
        let detail = format!("no {} file below {}", endings.join(" or "), folder.display());
        return Err(Error::Argument { name: "data", detail });
    }
    Ok(files)
}

impl Suite for Files {
    fn jobs(&self) -> Vec<Job> {
        let job = |&(file, n, kernel): &(usize, usize, Kernel)| {
            let bytes = std::fs::metadata(&self.files[file]).map_or(0.0, |meta| meta.len() as f64);
            Job {
                id: format!("{} {} N={n}", kernel.name(), self.name(file)),
                weight: 1.5 + 1e-9 * bytes / BYTES_PER_NONZERO * n as f64,
            }
        };
        self.specs.iter().map(job).collect()
    }

    fn run(&mut self, bench: &Bench, job: usize) -> Result<Case> {
        let (file, n, kernel) = self.specs[job];
        let name = self.name(file);
        let id = format!("{} {name} N={n}", kernel.name());
        match self.load(bench, file) {
            Ok(a) => Task { bench, a, n, kernel, unfused: true }.case(&id, &name),
            // One bad file among many is a line in the report, not the end.
            Err(why) => {
                let op = kernel.name().to_owned();
                Ok(Case { id, op, input: name, n, notes: vec![why.to_string()], ..Case::default() })
            }
        }
    }

    fn sections(&self, _: &Bench, results: &Results, folder: &Path) -> Result<Vec<Section>> {
        let mut sections = vec![report::summary(results)];
        let mut columns: Vec<usize> = results.cases.iter().map(|case| case.n).collect();
        columns.sort_unstable();
        columns.dedup();
        for kernel in Kernel::OF_FILES {
            for &n in &columns {
                let wanted = |case: &&Case| case.op == kernel.name() && case.n == n && case.ours().is_some();
                let cases: Vec<_> = results.cases.iter().filter(wanted).collect();
                let title = format!("{}, N = {n}: GFLOP/s on the nonzeros", kernel.name());
                let name = format!("{}-n{n}", kernel.name().to_lowercase());
                sections.extend(speeds(folder, &name, title, "matrix", &cases)?);
            }
        }
        sections.push(report::table("All cases", results));
        Ok(sections)
    }
}

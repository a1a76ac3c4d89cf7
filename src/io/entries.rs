//! The entries of a text file, gathered from those of its blocks.
//!
//! ```text
//! parse, in parallel:   block -> lists of its own, in memory that is used again and stays in the cache
//! push, in file order:  the lists of some blocks -> the lists of the file, copied in parallel
//! ```
//! So the only memory that grows with the file is that of the result.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use sparsimd_kernels::Scalar;

use crate::error::Result;
use crate::{memory, parallel};

/// Entries of a stretch of a file: their indices, a list for each mode (of a matrix: rows, columns), and their values.
pub(super) struct Entries<T> {
    pub indices: Vec<Vec<u32>>,
    pub values: Vec<T>,
}

/// Lists that blocks are parsed to, again and again.
pub(super) struct Lists<T>(Mutex<Vec<Entries<T>>>);

/// The entries of a file so far, and those of the last blocks, which are still to be copied.
pub(super) struct Gathered<'a, T> {
    path: PathBuf,
    all: Entries<T>,
    last: Vec<Entries<T>>,
    lists: &'a Lists<T>,
}

impl<T: Scalar> Entries<T> {
    fn new(modes: usize) -> Self {
        Self { indices: vec![Vec::new(); modes], values: Vec::new() }
    }
}

impl<T: Scalar> Lists<T> {
    /// None yet.
    pub fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Empty lists for `modes` modes with room for `len` entries.
    pub fn take(&self, modes: usize, len: usize) -> Entries<T> {
        let free = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
        let mut lists = free.unwrap_or_else(|| Entries::new(modes));
        lists.indices.iter_mut().for_each(|indices| {
            indices.clear();
            indices.reserve(len);
        });
        lists.values.clear();
        lists.values.reserve(len);
        lists
    }
}

impl<'a, T: Scalar> Gathered<'a, T> {
    /// No entries yet of the file `path`, whose blocks are parsed to those of `lists`; room for `expected` ones.
    pub fn new(path: &Path, modes: usize, expected: usize, lists: &'a Lists<T>) -> Result<Self> {
        let lists_of = [(modes, size_of::<u32>()), (1, size_of::<T>())];
        memory::ensure(path.display(), expected.saturating_mul(memory::total(&lists_of)))?;
        let mut all = Entries::new(modes);
        all.indices.iter_mut().try_for_each(|indices| memory::grow(path.display(), indices, expected))?;
        memory::grow(path.display(), &mut all.values, expected)?;
        Ok(Self { path: path.to_owned(), all, last: Vec::new(), lists })
    }

    /// Appends the entries of the next block.
    pub fn push(&mut self, entries: Entries<T>) -> Result<()> {
        self.last.push(entries);
        // A copy by each thread, of lists that are still in the cache.
        if self.last.len() < 2 * parallel::threads() { Ok(()) } else { self.copy() }
    }

    /// All entries.
    pub fn finish(mut self) -> Result<Entries<T>> {
        self.copy()?;
        self.all.indices.iter_mut().for_each(Vec::shrink_to_fit);
        self.all.values.shrink_to_fit();
        Ok(self.all)
    }

    fn copy(&mut self) -> Result<()> {
        let Self { path, all, last, lists } = self;
        let more = last.iter().map(|entries| entries.values.len()).sum();
        for (mode, indices) in all.indices.iter_mut().enumerate() {
            memory::grow(path.display(), indices, more)?;
            parallel::extend_from_parts(indices, last.len(), |k| &last[k].indices[mode]);
        }
        memory::grow(path.display(), &mut all.values, more)?;
        parallel::extend_from_parts(&mut all.values, last.len(), |k| &last[k].values);
        lists.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).append(last);
        Ok(())
    }
}

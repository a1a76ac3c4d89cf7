//! The state of a decomposition in a file that all ranks write and read, each the rows that are its own.
//!
//! ```text
//! all     checksums of own sections, gathered
//! first   a temporary file beside the target: the head, which says where each section is
//! all     own sections, each at its place
//! first   once all agree that theirs are written: renamed
//! ```
//! The ranks share the file system.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sparsimd::decomp::{CpSection, CpState};

use crate::comm::Comm;
use crate::dense::Element;
use crate::error::{Error, Result};
use crate::tensor::DistTensor;

impl<T: Element> DistTensor<T> {
    /// Writes `state`, of which every rank has its rows, to `path`: whole or not at all. [`DistTensor::load`] reads it on any number of
    /// ranks, and [`CpState::load`] on one machine.
    ///
    /// # Errors
    /// Of the lowest rank that failed: [`sparsimd::Error::Io`]; [`sparsimd::Error::Argument`] when the state has fewer factors than the tensor has
    /// modes. As [`Comm::exchange`].
    #[inline(never)]
    pub fn save(&self, comm: &dyn Comm, state: &CpState<T>, path: &Path) -> Result<()> {
        let sections = || -> Result<_> {
            let (mut own, mut bytes) = (Vec::new(), Vec::new());
            for (mode, rows) in self.rows().iter().enumerate() {
                let (section, content) = state.section(mode, rows.start)?;
                own.extend([mode as u64, section.rows.start as u64, section.rows.len() as u64, section.checksum]);
                bytes.extend(content);
            }
            Ok((own, bytes))
        };
        let (own, bytes) = comm.agree(sections())?;
        let all = comm.all_gather(&own, &vec![own.len(); comm.size()])?;
        let lens = comm.all_gather(&[bytes.len() as u64], &vec![1; comm.size()])?;
        let sections: Vec<CpSection> = all
            .as_chunks()
            .0
            .iter()
            .map(|&[mode, first, rows, checksum]| CpSection {
                mode: mode as usize,
                rows: first as usize..(first + rows) as usize,
                checksum,
            })
            .collect();
        let head = state.sections_head(self.dims(), &sections, self.checksum());
        let at = head.len() as u64 + lens[..comm.rank()].iter().sum::<u64>();
        // A link stays a link: its target is replaced.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let unfinished = unfinished(&target);
        let io = |source| Error::from(sparsimd::Error::Io { path: path.to_owned(), source });
        let first = |act: &dyn Fn() -> std::io::Result<()>| {
            comm.agree(if comm.rank() == 0 { act().map_err(io) } else { Ok(()) })
        };
        let written = || -> std::io::Result<()> {
            let mut file = OpenOptions::new().write(true).open(&unfinished)?;
            file.seek(SeekFrom::Start(at))?;
            file.write_all(&bytes)
        };
        let done = first(&|| File::create(&unfinished)?.write_all(&head))
            .and_then(|()| comm.agree(written().map_err(io)))
            .and_then(|()| first(&|| fs::rename(&unfinished, &target)));
        if done.is_err() && comm.rank() == 0 {
            // What it is removed for is the error that is reported.
            let _ = fs::remove_file(&unfinished);
        }
        done
    }

    /// This rank's rows of the state in `path`: of [`DistTensor::save`] on any number of ranks, or [`CpState::save`]. [`DistTensor::cp_als`]
    /// goes on from it.
    ///
    /// # Errors
    /// Of the lowest rank that failed: as [`CpState::load_rows_of`], also for the state of a tensor with other entries.
    #[inline(never)]
    pub fn load(&self, comm: &dyn Comm, path: &Path) -> Result<CpState<T>> {
        comm.agree(CpState::load_rows_of(path, self.dims(), &self.rows(), self.checksum()).map_err(Error::from))
    }
}

/// The temporary file beside `target`.
fn unfinished(target: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".sparsimd-");
    name.push(target.file_name().unwrap_or_default());
    name.push(".tmp");
    target.with_file_name(name)
}

//! The state of a CP decomposition in sections, each some rows of a factor with a checksum of their own: for several writers, of which each
//! has its rows, and as many readers, or others.
//!
//! ```text
//! 8 bytes   kind and version
//! words     number of words of the head; order, rank, number of fits, dims; fits, lambda; the tensor's checksum, 0 where it is not known;
//!           number of sections; mode, first row, rows and XXH3 checksum of each
//! word      XXH3 checksum of all before it
//! sections  one after the other: rows x rank numbers of double precision
//! ```
//! Words are little-endian.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use sparsimd_kernels::Scalar;
use xxhash_rust::xxh3::xxh3_64;

use super::CpState;
use super::checkpoint::KIND;
use crate::decomp::words::{Reader, Writer};
use crate::dense::Mat;
use crate::error::{Error, Result};

/// The version of states in sections.
const VERSION: u8 = b'3';
/// Kind, version and the first word.
const START: usize = 16;

/// Rows of one factor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpSection {
    /// The factor's mode.
    pub mode: usize,
    /// Which of its rows.
    pub rows: Range<usize>,
    /// XXH3 of the section's bytes.
    pub checksum: u64,
}

impl<T: Scalar> CpState<T> {
    /// The section of the factor of `mode`, of which this state has the rows from `first` on, and its bytes.
    ///
    /// # Errors
    /// [`Error::Argument`] when the state has no factor of that mode.
    #[inline(never)]
    pub fn section(&self, mode: usize, first: usize) -> Result<(CpSection, Vec<u8>)> {
        let Some(factor) = self.factors.get(mode) else {
            return Err(Error::argument("mode", format!("{mode} of a state of {} factors", self.factors.len())));
        };
        let bytes: Vec<u8> = factor.iter_rows().flatten().flat_map(|x| x.to_f64().to_le_bytes()).collect();
        let rows = first..first.saturating_add(factor.rows());
        Ok((CpSection { mode, rows, checksum: xxh3_64(&bytes) }, bytes))
    }

    /// What the file begins with, in front of `sections`, which come one after the other: all rows of every factor. The tensor has
    /// these `dims` and the checksum `tensor`, 0 for any.
    #[inline(never)]
    pub fn sections_head(&self, dims: &[usize], sections: &[CpSection], tensor: u64) -> Vec<u8> {
        let mut words = Writer::of(KIND, VERSION);
        let fixed = 6 + dims.len() + self.fits.len() + self.lambda.len();
        words.numbers([fixed + 4 * sections.len()]);
        words.numbers([dims.len(), self.lambda.len(), self.fits.len()]);
        words.numbers(dims.iter().copied());
        words.floats(&self.fits);
        words.floats(&self.lambda);
        words.tensor(tensor);
        words.numbers([sections.len()]);
        for section in sections {
            words.numbers([section.mode, section.rows.start, section.rows.len()]);
            words.tensor(section.checksum);
        }
        words.finish()
    }

    /// Of a state in a file, whether in sections or not, the `rows` of each factor, if it is of a tensor of these `dims` and with the
    /// checksum `tensor`; 0 for any. Reads the sections that have such rows.
    ///
    /// # Errors
    /// As [`CpState::load_of`]; [`Error::Parse`] for other dims; [`Error::Argument`] when `rows` are not within them.
    #[inline(never)]
    pub fn load_rows_of(path: &Path, dims: &[usize], rows: &[Range<usize>], tensor: u64) -> Result<Self> {
        let within = |(&dim, rows): (&usize, &Range<usize>)| rows.start <= rows.end && rows.end <= dim;
        if rows.len() != dims.len() || !dims.iter().zip(rows).all(within) {
            return Err(Error::argument("rows", format!("{rows:?} of dims {dims:?}")));
        }
        let other = |found: &[usize]| {
            let detail = format!("the checkpoint is of dims {found:?}, the tensor has {dims:?}");
            Error::Parse { path: path.into(), line: 0, detail }
        };
        match Head::read(path)? {
            Some(head) if head.dims == dims => head.state(path, rows, tensor),
            Some(head) => Err(other(&head.dims)),
            None => {
                let whole = Self::load_of(path, tensor)?;
                let found: Vec<usize> = whole.factors.iter().map(Mat::rows).collect();
                if found != dims {
                    return Err(other(&found));
                }
                let some = |(factor, rows): (&Mat<T>, &Range<usize>)| factor.as_ref().row_range(rows.clone())?.to_mat();
                let factors = whole.factors.iter().zip(rows).map(some).collect::<Result<_>>()?;
                Ok(Self { factors, ..whole })
            }
        }
    }
}

/// What a file says before its sections, verified.
pub(super) struct Head {
    pub dims: Vec<usize>,
    lambda: Vec<f64>,
    fits: Vec<f64>,
    tensor: u64,
    sections: Vec<CpSection>,
    /// Where the sections start.
    start: usize,
}

fn io(path: &Path, source: std::io::Error) -> Error {
    Error::Io { path: path.into(), source }
}

fn fail(path: &Path, detail: impl Into<String>) -> Error {
    Error::Parse { path: path.into(), line: 0, detail: detail.into() }
}

impl Head {
    /// That of the file `path`; none where its state is not in sections.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let mut file = File::open(path).map_err(|e| io(path, e))?;
        let len = file.metadata().map_err(|e| io(path, e))?.len();
        let mut start = [0; START];
        if len < START as u64 || file.read_exact(&mut start).is_err() || start[..8] != [&KIND[..], &[VERSION]].concat()
        {
            return Ok(None);
        }
        let words = start.last_chunk().map_or(0, |&claimed| u64::from_le_bytes(claimed));
        // Refused before anything of a claimed length is reserved.
        let bytes = words.checked_mul(8).filter(|bytes| *bytes <= len - START as u64);
        let Some(bytes) = bytes else { return Err(fail(path, "the file ends early")) };
        let mut head = start.to_vec();
        head.resize(START + bytes as usize, 0);
        file.read_exact(&mut head[START..]).map_err(|e| io(path, e))?;
        let Some((body, sum)) = head.split_last_chunk::<8>() else { return Err(fail(path, "the file ends early")) };
        if xxh3_64(body) != u64::from_le_bytes(*sum) {
            return Err(fail(path, "the checksum of the head does not match: the file is damaged"));
        }
        let mut words = Reader::of(path, &body[START.min(body.len())..]);
        let (order, rank, fits) = (words.order()?, words.number()?, words.number()?);
        let dims = words.numbers(order)?;
        let (fits, lambda, tensor) = (words.floats(fits)?, words.floats(rank)?, words.number()? as u64);
        let mut sections = Vec::new();
        for _ in 0..words.number()? {
            let (mode, first, rows, checksum) = (words.number()?, words.number()?, words.number()?, words.number()?);
            sections.push(CpSection { mode, rows: first..first.saturating_add(rows), checksum: checksum as u64 });
        }
        let head = Self { dims, lambda, fits, tensor, sections, start: START + bytes as usize };
        head.check(path, len)?;
        Ok(Some(head))
    }

    /// Whether the sections have every row of every factor once, and the file has the sections.
    fn check(&self, path: &Path, len: u64) -> Result<()> {
        let order = self.dims.len();
        if let Some(section) = self.sections.iter().find(|section| section.mode >= order) {
            return Err(fail(path, format!("a section of mode {} of a tensor of order {order}", section.mode)));
        }
        for (mode, &dim) in self.dims.iter().enumerate() {
            let mut rows: Vec<_> = self.sections.iter().filter(|s| s.mode == mode).map(|s| s.rows.clone()).collect();
            rows.sort_by_key(|rows| (rows.start, rows.end));
            let end = rows.iter().try_fold(0, |end, rows| (rows.start == end).then_some(rows.end));
            if end != Some(dim) {
                return Err(fail(path, format!("the sections of mode {mode} do not have its {dim} rows once each")));
            }
        }
        let rows = self.sections.iter().try_fold(0usize, |all, s| all.checked_add(s.rows.len()));
        let bytes = rows.and_then(|rows| rows.checked_mul(8 * self.lambda.len())?.checked_add(self.start));
        match bytes {
            Some(bytes) if bytes as u64 == len => Ok(()),
            _ => Err(fail(path, "the file is not as long as its sections")),
        }
    }

    /// The state with these `rows` of each factor.
    pub fn state<T: Scalar>(self, path: &Path, rows: &[Range<usize>], tensor: u64) -> Result<CpState<T>> {
        if self.tensor != tensor && self.tensor != 0 && tensor != 0 {
            return Err(fail(path, "the checkpoint is of a tensor with other entries, or of another element type"));
        }
        let rank = self.lambda.len();
        let mut factors: Vec<Mat<T>> = rows.iter().map(|rows| Mat::zeros(rows.len(), rank)).collect::<Result<_>>()?;
        let (mut file, mut at) = (File::open(path).map_err(|e| io(path, e))?, self.start);
        for (number, section) in self.sections.iter().enumerate() {
            let (start, len) = (at, section.rows.len() * rank * 8);
            at += len;
            let wanted = section.rows.start.max(rows[section.mode].start)..section.rows.end.min(rows[section.mode].end);
            if wanted.is_empty() {
                continue;
            }
            let mut bytes = crate::memory::zeros(path.display(), len)?;
            let read = file.seek(SeekFrom::Start(start as u64)).and_then(|_| file.read_exact(&mut bytes));
            read.map_err(|e| io(path, e))?;
            if xxh3_64(&bytes) != section.checksum {
                return Err(fail(
                    path,
                    format!("the checksum of section {number} does not match: the file is damaged"),
                ));
            }
            for i in wanted {
                let row = &bytes[(i - section.rows.start) * rank * 8..][..rank * 8];
                let to = factors[section.mode].row_mut(i - rows[section.mode].start);
                to.iter_mut()
                    .zip(row.as_chunks().0)
                    .for_each(|(x, &bytes)| *x = T::from_f64(f64::from_le_bytes(bytes)));
            }
        }
        Ok(CpState { factors, lambda: self.lambda, fits: self.fits, memory: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_of_modes_that_do_not_exist_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let factors = vec![Mat::from_fn(3, 2, |i, r| (i + r) as f64).unwrap()];
        let state = CpState { factors, lambda: vec![1.0, 2.0], fits: vec![0.5], memory: vec![] };
        let (section, bytes) = state.section(0, 0).unwrap();
        assert!(state.section(1, 0).unwrap_err().to_string().contains("mode: 1 of a state of 1 factors"));
        let load = |sections: &[CpSection]| {
            let body = bytes.repeat(sections.len());
            std::fs::write(&path, [state.sections_head(&[3], sections, 0), body].concat()).unwrap();
            CpState::<f64>::load_rows_of(&path, &[3], std::slice::from_ref(&(0..3)), 0)
        };
        assert!(load(std::slice::from_ref(&section)).unwrap().factors[0].iter_rows().eq(state.factors[0].iter_rows()));
        let refused = load(&[section.clone(), CpSection { mode: 1, ..section }]).unwrap_err().to_string();
        assert!(refused.contains("a section of mode 1 of a tensor of order 1"), "{refused}");
    }
}

//! A part of a `.tnsb` file, for one of several readers.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use sparsimd_kernels::Scalar;
use xxhash_rust::xxh3::xxh3_64;

use super::tnsb::{Header, chunks_before};
use crate::error::{Error, Result};
use crate::formats::CooTensor;
use crate::memory;

/// Part number `part` of `parts` of the tensor in the `.tnsb` file `path`: about as many entries in each, cut where the file's chunks end.
/// Every entry is in one part; the parts' entries, one part after the other, are those of [`read_tnsb`](super::read_tnsb). The
/// checksums of what is read are verified.
///
/// # Errors
/// As [`TnsbFile::open`](super::TnsbFile::open); [`Error::Argument`] when there is no such part; [`Error::Parse`] for several parts of a file
/// of the format's first version, whose checksums are those of whole sections.
#[inline(never)]
pub fn read_tnsb_part<T: Scalar>(path: &Path, part: usize, parts: usize) -> Result<CooTensor<T>> {
    if part >= parts {
        return Err(Error::argument("part", format!("number {part} of {parts} parts; they count from 0")));
    }
    if parts == 1 {
        return super::read_tnsb(path);
    }
    let header = Header::read(path)?;
    if header.chunk == 0 {
        let detail = "has no checksums of its parts: `sparsimd convert` writes it anew".to_owned();
        return Err(Error::Parse { path: path.to_owned(), line: 0, detail });
    }
    let each = header.value_type.bytes();
    // Whole chunks of the smallest, coordinates of 4 bytes or values of 2, which are whole chunks of the larger.
    let unit = header.chunk / each.min(size_of::<u32>());
    let units = header.nnz.div_ceil(unit) as u128;
    let first = |part: usize| (units * part as u128 / parts as u128) as usize * unit;
    let entries = first(part).min(header.nnz)..first(part + 1).min(header.nnz);

    let mut reader = Reader { path, file: File::open(path).map_err(|e| io(path, e))?, header: &header };
    let order = header.dims.len();
    let mut coords = Vec::with_capacity(order);
    for mode in 0..order {
        let mut all = memory::reserve(path.display(), entries.len())?;
        reader.section(mode, entries.start * 4, entries.end * 4, &mut |bytes| {
            all.extend(bytes.as_chunks().0.iter().map(|&i| u32::from_le_bytes(i)));
        })?;
        coords.push(all);
    }
    let mut values = memory::reserve(path.display(), entries.len())?;
    let value_type = header.value_type;
    reader.section(order, entries.start * each, entries.end * each, &mut |bytes| match each {
        2 => values.extend(bytes.as_chunks().0.iter().map(|&x| T::from_f64(value_type.of_half(u16::from_le_bytes(x))))),
        4 => values.extend(bytes.as_chunks().0.iter().map(|&x| T::from_f64(f32::from_le_bytes(x).into()))),
        _ => values.extend(bytes.as_chunks().0.iter().map(|&x| T::from_f64(f64::from_le_bytes(x)))),
    })?;
    CooTensor::new(header.dims, coords, values).map_err(|e| super::matrix::whole_file(path, e))
}

fn io(path: &Path, source: std::io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}

struct Reader<'a> {
    path: &'a Path,
    file: File,
    header: &'a Header,
}

impl Reader<'_> {
    fn read(&mut self, at: usize, bytes: &mut [u8]) -> Result<()> {
        let read = self.file.seek(SeekFrom::Start(at as u64)).and_then(|_| self.file.read_exact(bytes));
        read.map_err(|e| io(self.path, e))
    }

    /// Calls `take` with the bytes `first` to `end` of a section, chunk by chunk, verified; `first` is where one starts.
    fn section(&mut self, section: usize, first: usize, end: usize, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let Header { chunk, table, sections, .. } = self.header;
        let number = chunks_before(sections, section, *chunk) + first / chunk;
        let mut sums = memory::zeros(self.path.display(), 8 * (end - first).div_ceil(*chunk))?;
        self.read(table + 8 * number, &mut sums)?;
        let mut room = memory::zeros(self.path.display(), *chunk)?;
        for (k, sum) in sums.as_chunks().0.iter().enumerate() {
            let at = first + k * chunk;
            let bytes = &mut room[..(end - at).min(*chunk)];
            self.read(sections[section].0 + at, bytes)?;
            if xxh3_64(bytes) != u64::from_le_bytes(*sum) {
                let detail =
                    format!("the checksum of bytes {at} to {} of section {section} is wrong", at + bytes.len());
                return Err(Error::Parse { path: self.path.to_owned(), line: 0, detail });
            }
            take(bytes);
        }
        Ok(())
    }
}

//! A `.tnsb` file read in chunks, the next one while the last is worked on: for tensors larger than memory.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, sync_channel};

use sparsimd_kernels::Scalar;
use xxhash_rust::xxh3::Xxh3;

use super::tnsb::{Header, PIECE, check_sum};
use crate::error::{Error, Result};
use crate::formats::CooTensor;
use crate::{machine, memory};

/// Chunks that are in memory: one is read, one is worked on.
pub(crate) const CHUNKS: usize = 2;

/// A `.tnsb` file whose header has been verified; its checksums are, in every pass.
#[derive(Debug)]
pub struct TnsbStream {
    path: PathBuf,
    header: Header,
}

/// The arrays of a chunk: coordinates of each mode, values.
type Arrays<T> = (Vec<Vec<u32>>, Vec<T>);

impl TnsbStream {
    /// Reads the header of `path`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Parse`] when the file is no `.tnsb` file, of an unknown version, or cut short;
    /// [`Error::Unavailable`] on a big-endian machine.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), header: Header::read(path)? })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length of each mode.
    pub fn dims(&self) -> &[usize] {
        &self.header.dims
    }

    /// Number of stored entries.
    pub fn nnz(&self) -> usize {
        self.header.nnz
    }

    /// Bytes that a pass with values as `T` has in memory for each nonzero of a chunk.
    pub(crate) fn entry_bytes<T>(&self) -> usize {
        CHUNKS * (self.dims().len() * size_of::<u32>() + size_of::<T>())
    }

    /// Calls `consume(first, chunk)` with the nonzeros from `first` on, `len` (at least one) at a time and the rest, in the order of
    /// the file; it gives the chunk back. Meanwhile a thread reads the next one. Two chunks are in memory at a time.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Memory`]; [`Error::Unavailable`] without a thread that reads; [`Error::Parse`] when a coordinate is out of
    /// range, or, at the end of the pass, when a checksum is wrong: what was computed is of no use then. What `consume` returns.
    pub fn pass<T: Scalar>(
        &self,
        len: usize,
        mut consume: impl FnMut(usize, CooTensor<T>) -> Result<CooTensor<T>>,
    ) -> Result<()> {
        self.pass_by_reference(len, &mut consume)
    }

    #[inline(never)]
    fn pass_by_reference<T: Scalar>(
        &self,
        len: usize,
        consume: &mut dyn FnMut(usize, CooTensor<T>) -> Result<CooTensor<T>>,
    ) -> Result<()> {
        let Header { dims, nnz, .. } = &self.header;
        let (len, order) = (len.clamp(1, (*nnz).max(1)), dims.len());
        std::thread::scope(|scope| {
            let (to_reader, emptied) = channel::<Arrays<T>>();
            // The second chunk is read without waiting for a place to put it.
            let (to_consumer, filled) = sync_channel::<Result<Arrays<T>>>(1);
            for _ in 0..CHUNKS.min(nnz.div_ceil(len)) {
                let what = self.path.display();
                let coords = (0..order).map(|_| memory::reserve(&what, len)).collect::<Result<_>>()?;
                let values = memory::reserve(&what, len)?;
                // The reader is there as long as this side of the channel is.
                let _ = to_reader.send((coords, values));
            }
            let read = move || {
                let mut sections = match Sections::open(self) {
                    Ok(sections) => sections,
                    Err(error) => return drop(to_consumer.send(Err(error))),
                };
                for first in (0..*nnz).step_by(len) {
                    // No more arrays come when the consumer has failed.
                    let Ok(mut arrays) = emptied.recv() else { return };
                    let last = first + len >= *nnz;
                    let read = sections.fill(first, len.min(nnz - first), &mut arrays);
                    let read = read.and_then(|()| if last { sections.check() } else { Ok(()) });
                    let failed = read.is_err();
                    if to_consumer.send(read.map(|()| arrays)).is_err() || failed {
                        return;
                    }
                }
            };
            machine::start_reader(scope, read)?;
            for first in (0..*nnz).step_by(len) {
                let Ok(read) = filled.recv() else { break };
                let (coords, values) = read?;
                let chunk = CooTensor::new(dims.clone(), coords, values)
                    .map_err(|e| super::matrix::whole_file(&self.path, e))?;
                let (_, mut coords, values) = consume(first, chunk)?.into_parts();
                // Whatever comes back serves as room for the next chunk of this tensor.
                coords.resize_with(dims.len(), Vec::new);
                let _ = to_reader.send((coords, values));
            }
            Ok(())
        })
    }

    /// The sum of the squares of all values, and [`CooTensor::checksum`] of the tensor with values as `T`: in a pass.
    ///
    /// # Errors
    /// As [`TnsbStream::pass`].
    pub fn norm_and_checksum<T: Scalar>(&self) -> Result<(f64, u64)> {
        let (mut norm_squared, mut hash_sum) = (0.0, 0u64);
        self.pass::<T>(PIECE / size_of::<f64>(), |_, chunk| {
            norm_squared = chunk.values().iter().fold(norm_squared, |sum, x| sum + x.to_f64() * x.to_f64());
            hash_sum = hash_sum.wrapping_add(chunk.hash_sum());
            Ok(chunk)
        })?;
        Ok((norm_squared, CooTensor::<T>::checksum_of(self.dims(), hash_sum)))
    }
}

/// Asks the system to read these bytes of `file` into its cache meanwhile: by itself it reads some pages ahead alone, and the disk waits
/// for whoever works on what was read. A hint: nothing depends on it.
pub(super) fn read_ahead(file: &File, start: usize, len: usize) {
    #[cfg(target_os = "linux")]
    if let Some(len) = std::num::NonZeroU64::new(len as u64) {
        let _ = rustix::fs::fadvise(file, start as u64, Some(len), rustix::fs::Advice::WillNeed);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, start, len);
}

/// A pass over a file: a handle for each section, and its checksum so far.
struct Sections<'a> {
    stream: &'a TnsbStream,
    files: Vec<File>,
    sums: Vec<Xxh3>,
    piece: Vec<u8>,
}

impl<'a> Sections<'a> {
    fn open(stream: &'a TnsbStream) -> Result<Self> {
        let open = |&(start, _): &(usize, usize)| {
            let mut file = File::open(&stream.path)?;
            file.seek(SeekFrom::Start(start as u64))?;
            Ok(file)
        };
        let files = stream.header.sections.iter().map(open).collect::<std::io::Result<Vec<File>>>();
        let files = files.map_err(|source| Error::Io { path: stream.path.clone(), source })?;
        let sums = files.iter().map(|_| Xxh3::new()).collect();
        Ok(Self { stream, files, sums, piece: memory::zeros(stream.path.display(), PIECE)? })
    }

    fn io(&self, source: std::io::Error) -> Error {
        Error::Io { path: self.stream.path.clone(), source }
    }

    /// The nonzeros from `first` on, which are the next, `n` of them.
    fn fill<T: Scalar>(&mut self, first: usize, n: usize, (coords, values): &mut Arrays<T>) -> Result<()> {
        // While these are checked, the disk goes on with the next ones.
        for (section, (file, &(start, _))) in self.files.iter().zip(&self.stream.header.sections).enumerate() {
            let of_values = section == self.stream.dims().len();
            let each = if of_values { self.stream.header.value_type.bytes() } else { size_of::<u32>() };
            read_ahead(file, start + first * each, 2 * n * each);
        }
        for (section, coords) in coords.iter_mut().enumerate() {
            coords.resize(n, 0);
            for piece in coords.chunks_mut(PIECE / size_of::<u32>()) {
                let bytes = bytemuck::cast_slice_mut(piece);
                let read = self.files[section].read_exact(bytes);
                read.map_err(|source| self.io(source))?;
                self.sums[section].update(bytes);
            }
        }
        values.clear();
        self.values(n, &mut |x| values.push(T::from_f64(x)))
    }

    /// The next `n` values.
    fn values(&mut self, n: usize, take: &mut dyn FnMut(f64)) -> Result<()> {
        let (section, of) = (self.stream.dims().len(), self.stream.header.value_type);
        let each = of.bytes();
        for first in (0..n).step_by(PIECE / each) {
            let len = (n - first).min(PIECE / each) * each;
            let read = self.files[section].read_exact(&mut self.piece[..len]);
            read.map_err(|source| self.io(source))?;
            self.sums[section].update(&self.piece[..len]);
            // Half and single precision are exact in double.
            match each {
                2 => self.piece[..len].as_chunks().0.iter().for_each(|&x| take(of.of_half(u16::from_le_bytes(x)))),
                4 => self.piece[..len].as_chunks().0.iter().for_each(|&x| take(f32::from_le_bytes(x).into())),
                _ => self.piece[..len].as_chunks().0.iter().for_each(|&x| take(f64::from_le_bytes(x))),
            }
        }
        Ok(())
    }

    /// Whether all sections, read to the end, have their checksums.
    fn check(&self) -> Result<()> {
        let mut sums = self.sums.iter().enumerate();
        sums.try_for_each(|(i, sum)| check_sum(&self.stream.path, i, sum.digest(), &self.stream.header.sums))
    }
}

//! The library's own binary format of sparse tensors, `.tnsb`: arrays as they lie in memory.
//!
//! ```text
//! 0    8 bytes  magic
//! 8    u32      version (2)
//! 12   u16      bytes of a value: 2 (f16 or bf16), 4 (f32) or 8 (f64)
//! 14   u16      1 where values are bf16, else 0
//! 16   u32      order
//! 20   u32      bytes of a chunk
//! 24   u64      nnz
//! 32   u64 x 8  lengths of the modes, 0 beyond the order
//! 96   u64 x 9  XXH3 checksums of the sections: coordinates of mode 0, 1, ... (0 beyond the order), then values
//! 168  u64      XXH3 checksum of bytes 0 to 167
//! 192  ...      sections: u32 x nnz for every mode, then the values; each starts at a multiple of 64
//! ...  u64 ...  XXH3 checksums of the chunks of each section, section after section; from a multiple of 64 on
//! ...  u64      XXH3 checksum of these
//! ```
//! All numbers are little-endian. Version 1 has no chunks: 0 bytes, and the file ends with the values.

use std::any::Any;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use sparsimd_kernels::{Scalar, Stored, bf16, f16};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::write_atomically;
use crate::error::{Error, Result};
use crate::formats::{CooTensor, MAX_ORDER, check_tensor_dims};
use crate::{memory, parallel};

/// A byte above 127, the name, and both kinds of line ends: what a transfer as text would change.
const MAGIC: [u8; 8] = *b"\x89TNSB\r\n\n";
const VERSION: u32 = 2;
/// The one before, without checksums of chunks.
const WITHOUT_CHUNKS: u32 = 1;
/// Bytes with a checksum of their own: for readers of a part of the file ([`read_tnsb_part`](super::read_tnsb_part)).
const CHUNK: usize = PIECE;
const HEADER: usize = 192;
const CHECKED: usize = 168;
/// Sections start at cache lines.
const SECTION_ALIGN: usize = 64;
/// Bytes that are read and then added to the checksum: half of a common L2 cache, where they still are.
pub(super) const PIECE: usize = 256 << 10;

/// The contents of a `.tnsb` file whose header and checksums have been verified; coordinates have not.
#[derive(Debug)]
pub struct TnsbFile {
    path: PathBuf,
    dims: Vec<usize>,
    coords: Vec<Vec<u32>>,
    values: Values,
}

#[derive(Debug)]
enum Values {
    /// The bits of f16 or bf16.
    Half(Vec<u16>, ValueType),
    Single(Vec<f32>),
    Double(Vec<f64>),
}

/// What a file's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    F16,
    Bf16,
    F32,
    F64,
}

impl ValueType {
    fn of<D: Stored>() -> Self {
        match D::DTYPE {
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "f32" => Self::F32,
            _ => Self::F64,
        }
    }

    /// By what the header has of it: bytes of a value, and in the upper half what tells bf16 from f16.
    fn of_header(value: u32) -> Option<Self> {
        match (value & 0xffff, value >> 16) {
            (2, 0) => Some(Self::F16),
            (2, 1) => Some(Self::Bf16),
            (4, 0) => Some(Self::F32),
            (8, 0) => Some(Self::F64),
            _ => None,
        }
    }

    /// What [`ValueType::of_header`] takes.
    fn header(self) -> u32 {
        self.bytes() as u32 | u32::from(self == Self::Bf16) << 16
    }

    /// Bytes of a value.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// The number of 16 bits.
    pub(super) fn of_half(self, bits: u16) -> f64 {
        if self == Self::Bf16 { bf16::from_bits(bits).to_f64() } else { f16::from_bits(bits).to_f64() }
    }

    /// The nearest number of 16 bits.
    fn to_half(self, x: f64) -> u16 {
        let nearest = x as f32;
        // Rounded twice a number may fall on the wrong side of a tie: where f32 does not have x, that of its two neighbours which ends
        // in a one is on x's side of every tie.
        let odd = match f64::from(nearest) == x || x.is_nan() {
            true => nearest,
            false => f32::from_bits((nearest.to_bits() - u32::from(f64::from(nearest).abs() > x.abs())) | 1),
        };
        if self == Self::Bf16 { bf16::narrow(odd).to_bits() } else { f16::narrow(odd).to_bits() }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Start and length of each section, and the length of the file.
fn sections(order: usize, nnz: usize, value_bytes: usize) -> Option<(Vec<(usize, usize)>, usize)> {
    let mut at = HEADER;
    let mut all = Vec::with_capacity(order + 1);
    for section in 0..=order {
        let len = nnz.checked_mul(if section < order { size_of::<u32>() } else { value_bytes })?;
        at = at.checked_next_multiple_of(SECTION_ALIGN)?;
        all.push((at, len));
        at = at.checked_add(len)?;
    }
    Some((all, at))
}

/// Reads `bytes` from position `start` of the file `path` on; their checksum.
fn read_section(path: &Path, start: usize, bytes: &mut [u8]) -> std::io::Result<u64> {
    // A handle of its own: its position is no other task's.
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(start as u64))?;
    let mut sum = Xxh3::new();
    for piece in bytes.chunks_mut(PIECE) {
        file.read_exact(piece)?;
        sum.update(piece);
    }
    Ok(sum.digest())
}

/// The first bytes of a file, verified.
#[derive(Debug)]
pub(super) struct Header {
    /// Length of each mode.
    pub dims: Vec<usize>,
    /// Number of entries.
    pub nnz: usize,
    /// Of the values.
    pub value_type: ValueType,
    /// Start and length of each section: coordinates mode by mode, then values.
    pub sections: Vec<(usize, usize)>,
    /// The sections' checksums.
    pub sums: Vec<u64>,
    /// Bytes of a chunk; 0 where chunks have no checksums.
    pub chunk: usize,
    /// Where the chunks' checksums start.
    pub table: usize,
}

impl Header {
    /// Reads that of the file `path`, which has what it claims.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let fail = |detail: String| Err(Error::Parse { path: path.to_owned(), line: 0, detail });
        if cfg!(target_endian = "big") {
            return Err(Error::Unavailable { what: ".tnsb", detail: "the machine is big-endian".into() });
        }
        let mut file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if !meta.is_file() {
            return fail("a .tnsb file is read in parallel, so it must be a regular file".into());
        }
        let mut header = [0; HEADER];
        if meta.len() < HEADER as u64 {
            return fail("not a .tnsb file".into());
        }
        file.read_exact(&mut header).map_err(io)?;
        if header[..8] != MAGIC {
            return fail("not a .tnsb file".into());
        }
        let version = u32_at(&header, 8);
        if ![VERSION, WITHOUT_CHUNKS].contains(&version) {
            return fail(format!("version {version} of the format; {WITHOUT_CHUNKS} and {VERSION} are supported"));
        }
        if xxh3_64(&header[..CHECKED]) != u64_at(&header, CHECKED) {
            return fail("the header's checksum is wrong".into());
        }
        let (value, order) = (u32_at(&header, 12), u32_at(&header, 16) as usize);
        let value_type = ValueType::of_header(value);
        let Some(value_type) = value_type.filter(|_| (1..=MAX_ORDER).contains(&order)) else {
            return fail(format!("values of {} bytes and type {}, order {order}", value & 0xffff, value >> 16));
        };
        let nnz = u64_at(&header, 24) as usize;
        let too_many = || format!("{nnz} nonzeros of order {order} do not fit the address space");
        let Some((sections, end)) = sections(order, nnz, value_type.bytes()) else { return fail(too_many()) };
        let chunk = if version == WITHOUT_CHUNKS { 0 } else { u32_at(&header, 20) as usize };
        if version != WITHOUT_CHUNKS && (chunk == 0 || !chunk.is_multiple_of(SECTION_ALIGN)) {
            return fail(format!("chunks of {chunk} bytes, which is no multiple of {SECTION_ALIGN}"));
        }
        let (table, len) = match chunk {
            0 => (end, Some(end)),
            _ => {
                let table = end.next_multiple_of(SECTION_ALIGN);
                (table, table.checked_add(size_of::<u64>() * (chunks_before(&sections, order + 1, chunk) + 1)))
            }
        };
        let Some(len) = len else { return fail(too_many()) };
        // The file has what the header claims before anything of that size is allocated.
        if meta.len() != len as u64 {
            return fail(format!("{} bytes where the header asks for {len}", meta.len()));
        }
        let dims: Vec<usize> = (0..order).map(|mode| u64_at(&header, 32 + 8 * mode) as usize).collect();
        check_tensor_dims(&dims).map_err(|e| super::matrix::whole_file(path, e))?;
        let sums = (0..order).chain([MAX_ORDER]).map(|slot| u64_at(&header, 96 + 8 * slot)).collect();
        Ok(Self { dims, nnz, value_type, sections, sums, chunk, table })
    }
}

/// Chunks of the first `n` sections.
pub(super) fn chunks_before(sections: &[(usize, usize)], n: usize, chunk: usize) -> usize {
    sections[..n].iter().map(|(_, len)| len.div_ceil(chunk)).sum()
}

/// Whether section `i` has its checksum.
pub(super) fn check_sum(path: &Path, i: usize, sum: u64, sums: &[u64]) -> Result<()> {
    if sums[i] == sum {
        return Ok(());
    }
    let detail = format!("the checksum of section {i} of {} is wrong", sums.len());
    Err(Error::Parse { path: path.to_owned(), line: 0, detail })
}

impl TnsbFile {
    /// Reads the file `path`, its sections in parallel in the rayon pool of the caller, and verifies header and checksums.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Parse`] when the file is no `.tnsb` file, of an unknown version, damaged or cut short;
    /// [`Error::Memory`]; [`Error::Unavailable`] on a big-endian machine.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let Header { dims, nnz, value_type, sections, sums, .. } = Header::read(path)?;
        let order = dims.len();
        let what = path.display();
        let mut coords = (0..order).map(|_| memory::zeros(&what, nnz)).collect::<Result<Vec<Vec<u32>>>>()?;
        let mut values = match value_type {
            ValueType::F16 | ValueType::Bf16 => Values::Half(memory::zeros(&what, nnz)?, value_type),
            ValueType::F32 => Values::Single(memory::zeros(&what, nnz)?),
            ValueType::F64 => Values::Double(memory::zeros(&what, nnz)?),
        };
        let mut parts: Vec<&mut [u8]> = coords.iter_mut().map(|indices| bytemuck::cast_slice_mut(indices)).collect();
        parts.push(match &mut values {
            Values::Half(values, _) => bytemuck::cast_slice_mut(values),
            Values::Single(values) => bytemuck::cast_slice_mut(values),
            Values::Double(values) => bytemuck::cast_slice_mut(values),
        });
        let read = parallel::map_chunks_mut(&mut parts, 1, |i, part| read_section(path, sections[i].0, part[0]));
        for (i, sum) in read.into_iter().enumerate() {
            check_sum(path, i, sum.map_err(io)?, &sums)?;
        }
        Ok(Self { path: path.to_owned(), dims, coords, values })
    }

    /// Length of each mode.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of stored entries.
    pub fn nnz(&self) -> usize {
        self.coords[0].len()
    }

    /// The coordinates in `mode`, as the file has them.
    ///
    /// # Panics
    /// When `mode` is not below the order, as slice indexing does.
    pub fn coords(&self, mode: usize) -> &[u32] {
        &self.coords[mode]
    }

    /// The values, if they are of single precision.
    pub fn values_f32(&self) -> Option<&[f32]> {
        match &self.values {
            Values::Single(values) => Some(values),
            Values::Half(..) | Values::Double(_) => None,
        }
    }

    /// The values, if they are of double precision.
    pub fn values_f64(&self) -> Option<&[f64]> {
        match &self.values {
            Values::Half(..) | Values::Single(_) => None,
            Values::Double(values) => Some(values),
        }
    }

    /// The tensor, values converted to `T`. Arrays are moved; values of another precision are copied.
    ///
    /// # Errors
    /// [`Error::Parse`] when a coordinate is out of range; [`Error::Memory`].
    pub fn into_coo<T: Scalar>(self) -> Result<CooTensor<T>> {
        let Self { path, dims, coords, values } = self;
        let values = match values {
            Values::Half(values, of) => {
                memory::ensure(path.display(), values.len().saturating_mul(size_of::<T>()))?;
                parallel::map(values.len(), |p| T::from_f64(of.of_half(values[p])))
            }
            Values::Single(values) => converted(&path, values)?,
            Values::Double(values) => converted(&path, values)?,
        };
        CooTensor::new(dims, coords, values).map_err(|e| super::matrix::whole_file(&path, e))
    }
}

/// `values` as they are, if they are of type `T`, else a converted copy.
fn converted<S: Scalar, T: Scalar>(path: &Path, values: Vec<S>) -> Result<Vec<T>> {
    let values: Box<dyn Any> = Box::new(values);
    match values.downcast::<Vec<T>>() {
        Ok(values) => Ok(*values),
        Err(values) => {
            let values: &[S] = values.downcast_ref::<Vec<S>>().map_or(&[], Vec::as_slice);
            memory::ensure(path.display(), values.len().saturating_mul(size_of::<T>()))?;
            Ok(parallel::map(values.len(), |p| T::from_f64(values[p].to_f64())))
        }
    }
}

/// The tensor in the `.tnsb` file `path`, values converted to `T`, entries in file order.
///
/// # Errors
/// As [`TnsbFile::open`], and [`Error::Parse`] when a coordinate is out of range.
pub fn read_tnsb<T: Scalar>(path: &Path) -> Result<CooTensor<T>> {
    TnsbFile::open(path)?.into_coo()
}

/// Writes `tensor` to the `.tnsb` file `path`.
///
/// # Errors
/// [`Error::Io`], nothing is left behind; [`Error::Memory`]; [`Error::Unavailable`] on a big-endian machine.
pub fn write_tnsb<T: Scalar>(path: &Path, tensor: &CooTensor<T>) -> Result<()> {
    write_tnsb_as::<T, T>(path, tensor)
}

/// Likewise with the values as `D`, each rounded to the nearest, of two to the even one: bf16 and f16 take half of the bytes of f32.
/// Tensors compute with f32 or f64; reading widens.
///
/// # Errors
/// As [`write_tnsb`].
#[inline(never)]
pub fn write_tnsb_as<D: Stored, T: Scalar>(path: &Path, tensor: &CooTensor<T>) -> Result<()> {
    if cfg!(target_endian = "big") {
        return Err(Error::Unavailable { what: ".tnsb", detail: "the machine is big-endian".into() });
    }
    let (half, single, double): (Vec<u16>, Vec<f32>, Vec<f64>);
    let (stored, value_type) = (tensor.values(), ValueType::of::<D>());
    memory::ensure(path.display(), stored.len().saturating_mul(value_type.bytes()))?;
    let number = |p: usize| stored[p].to_f64();
    let values: &[u8] = match value_type {
        ValueType::F16 | ValueType::Bf16 => {
            half = parallel::map(stored.len(), |p| value_type.to_half(number(p)));
            bytemuck::cast_slice(&half)
        }
        ValueType::F32 => {
            single = parallel::map(stored.len(), |p| number(p) as f32);
            bytemuck::cast_slice(&single)
        }
        ValueType::F64 => {
            double = parallel::map(stored.len(), number);
            bytemuck::cast_slice(&double)
        }
    };
    let order = tensor.order();
    let mut parts: Vec<&[u8]> = tensor.all_coords().iter().map(|indices| bytemuck::cast_slice(indices)).collect();
    parts.push(values);
    let sums: Vec<u64> = parallel::map_tasks(parts.len(), |i| xxh3_64(parts[i]));
    let chunks: Vec<&[u8]> = parts.iter().flat_map(|part| part.chunks(CHUNK)).collect();
    let mut table: Vec<u8> =
        parallel::map(chunks.len(), |k| xxh3_64(chunks[k])).into_iter().flat_map(u64::to_le_bytes).collect();
    table.extend(xxh3_64(&table).to_le_bytes());

    let mut header = [0u8; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&value_type.header().to_le_bytes());
    header[16..20].copy_from_slice(&(order as u32).to_le_bytes());
    header[20..24].copy_from_slice(&(CHUNK as u32).to_le_bytes());
    header[24..32].copy_from_slice(&(tensor.nnz() as u64).to_le_bytes());
    for (mode, &dim) in tensor.dims().iter().enumerate() {
        header[32 + 8 * mode..][..8].copy_from_slice(&(dim as u64).to_le_bytes());
    }
    for (i, sum) in sums.iter().enumerate() {
        let slot = if i < order { i } else { MAX_ORDER };
        header[96 + 8 * slot..][..8].copy_from_slice(&sum.to_le_bytes());
    }
    let sum = xxh3_64(&header[..CHECKED]);
    header[CHECKED..CHECKED + 8].copy_from_slice(&sum.to_le_bytes());

    write_atomically(path, |out| {
        out.write_all(&header)?;
        let mut at = HEADER;
        for part in parts.iter().chain([&&table[..]]) {
            let start = at.next_multiple_of(SECTION_ALIGN);
            out.write_all(&[0u8; SECTION_ALIGN][..start - at])?;
            out.write_all(part)?;
            at = start + part.len();
        }
        Ok(())
    })
}

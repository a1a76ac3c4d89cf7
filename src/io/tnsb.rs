//! The library's own binary format of sparse tensors, `.tnsb`: arrays as they lie in memory, to be mapped.
//!
//! ```text
//! 0    8 bytes  magic
//! 8    u32      version (1)
//! 12   u32      bytes of a value: 4 (f32) or 8 (f64)
//! 16   u32      order
//! 20   u32      0
//! 24   u64      nnz
//! 32   u64 x 8  lengths of the modes, 0 beyond the order
//! 96   u64 x 9  XXH3 checksums of the sections: coordinates of mode 0, 1, ... (0 beyond the order), then values
//! 168  u64      XXH3 checksum of bytes 0 to 167
//! 192  ...      sections: u32 x nnz for every mode, then the values; each starts at a multiple of 64
//! ```
//! All numbers are little-endian.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::{Mmap, MmapOptions};
use rayon::prelude::*;
use sparsimd_kernels::Scalar;
use xxhash_rust::xxh3::xxh3_64;

use super::write_atomically;
use crate::error::{Error, Result};
use crate::formats::{CooTensor, MAX_ORDER};

/// A byte above 127, the name, and both kinds of line ends: what a transfer as text would change.
const MAGIC: [u8; 8] = *b"\x89TNSB\r\n\n";
const VERSION: u32 = 1;
const HEADER: usize = 192;
const CHECKED: usize = 168;
/// Sections start at cache lines.
const SECTION_ALIGN: usize = 64;
/// Elements copied by one task.
const TASK: usize = 1 << 18;

/// An open `.tnsb` file, mapped into memory: header and checksums have been verified.
#[derive(Debug)]
pub struct TnsbFile {
    map: Mmap,
    path: PathBuf,
    dims: Vec<usize>,
    nnz: usize,
    value_bytes: usize,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
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

impl TnsbFile {
    /// Maps the file `path` and verifies its header and checksums.
    ///
    /// The file must not be changed by anyone while the value lives: the operating system offers no protection against it.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Parse`] when the file is no `.tnsb` file, of an unknown version, damaged or cut short;
    /// [`Error::Unavailable`] on a big-endian machine.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let fail = |detail: String| Err(Error::Parse { path: path.to_owned(), line: 0, detail });
        if cfg!(target_endian = "big") {
            return Err(Error::Unavailable { what: ".tnsb", detail: "the machine is big-endian".into() });
        }
        let file = File::open(path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return fail("a .tnsb file is mapped, so it must be a regular file".into());
        }
        // SAFETY: the mapping is private to this value and read only; that nobody changes the file meanwhile is the documented
        // condition of this function.
        let map = unsafe { MmapOptions::new().populate().map(&file) }.map_err(io)?;
        if map.len() < HEADER || map[..8] != MAGIC {
            return fail("not a .tnsb file".into());
        }
        if u32_at(&map, 8) != VERSION {
            return fail(format!("version {} of the format; {VERSION} is supported", u32_at(&map, 8)));
        }
        if xxh3_64(&map[..CHECKED]) != u64_at(&map, CHECKED) {
            return fail("the header's checksum is wrong".into());
        }
        let (value_bytes, order) = (u32_at(&map, 12) as usize, u32_at(&map, 16) as usize);
        if !matches!(value_bytes, 4 | 8) || !(1..=MAX_ORDER).contains(&order) {
            return fail(format!("values of {value_bytes} bytes, order {order}"));
        }
        let nnz = u64_at(&map, 24) as usize;
        let Some((sections, len)) = sections(order, nnz, value_bytes) else {
            return fail(format!("{nnz} nonzeros of order {order} do not fit the address space"));
        };
        if map.len() != len {
            return fail(format!("{} bytes where the header asks for {len}", map.len()));
        }
        let wrong = sections.par_iter().enumerate().find_first(|&(i, &(start, len))| {
            let slot = if i < order { i } else { MAX_ORDER };
            xxh3_64(&map[start..start + len]) != u64_at(&map, 96 + 8 * slot)
        });
        if let Some((i, _)) = wrong {
            return fail(format!("the checksum of section {i} of {} is wrong", order + 1));
        }
        let dims = (0..order).map(|mode| u64_at(&map, 32 + 8 * mode) as usize).collect();
        Ok(Self { map, path: path.to_owned(), dims, nnz, value_bytes })
    }

    /// Length of each mode.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of stored entries.
    pub fn nnz(&self) -> usize {
        self.nnz
    }

    /// Bytes of the `i`-th section.
    fn section(&self, i: usize) -> &[u8] {
        // The same call succeeded in `open`.
        let (all, _) = sections(self.dims.len(), self.nnz, self.value_bytes).expect("checked at opening");
        let (start, len) = all[i];
        &self.map[start..start + len]
    }

    /// The coordinates in `mode`, straight from the file.
    ///
    /// # Panics
    /// When `mode` is not below the order, as slice indexing does.
    pub fn coords(&self, mode: usize) -> &[u32] {
        assert!(mode < self.dims.len(), "mode {mode} of a tensor of order {}", self.dims.len());
        // Mappings start at a page and sections at 64 bytes of it.
        bytemuck::cast_slice(self.section(mode))
    }

    /// The values, straight from the file, if they are of single precision.
    pub fn values_f32(&self) -> Option<&[f32]> {
        (self.value_bytes == 4).then(|| bytemuck::cast_slice(self.section(self.dims.len())))
    }

    /// The values, straight from the file, if they are of double precision.
    pub fn values_f64(&self) -> Option<&[f64]> {
        (self.value_bytes == 8).then(|| bytemuck::cast_slice(self.section(self.dims.len())))
    }

    /// A copy of the tensor, values converted to `T`.
    ///
    /// # Errors
    /// [`Error::Parse`] when a coordinate is out of range.
    pub fn to_coo<T: Scalar>(&self) -> Result<CooTensor<T>> {
        let coords = (0..self.dims.len()).map(|mode| par_copy(self.coords(mode), |&i| i)).collect();
        let values = match (self.values_f32(), self.values_f64()) {
            (Some(values), _) => par_copy(values, |&x| T::from_f64(f64::from(x))),
            (_, Some(values)) => par_copy(values, |&x| T::from_f64(x)),
            (None, None) => unreachable!("a value has 4 or 8 bytes: checked at opening"),
        };
        CooTensor::new(self.dims.clone(), coords, values).map_err(|e| super::matrix::whole_file(&self.path, e))
    }
}

fn par_copy<A: Sync, B: Send>(from: &[A], convert: impl Fn(&A) -> B + Sync + Send) -> Vec<B> {
    from.par_iter().with_min_len(TASK).map(convert).collect()
}

/// The tensor in the `.tnsb` file `path`, values converted to `T`, entries in file order.
///
/// # Errors
/// As [`TnsbFile::open`], and [`Error::Parse`] when a coordinate is out of range.
pub fn read_tnsb<T: Scalar>(path: &Path) -> Result<CooTensor<T>> {
    TnsbFile::open(path)?.to_coo()
}

/// Writes `tensor` to the `.tnsb` file `path`.
///
/// # Errors
/// [`Error::Io`], nothing is left behind; [`Error::Unavailable`] on a big-endian machine.
pub fn write_tnsb<T: Scalar>(path: &Path, tensor: &CooTensor<T>) -> Result<()> {
    if cfg!(target_endian = "big") {
        return Err(Error::Unavailable { what: ".tnsb", detail: "the machine is big-endian".into() });
    }
    let single: Vec<f32>;
    let double: Vec<f64>;
    let values: &[u8] = if size_of::<T>() == 4 {
        single = par_copy(tensor.values(), |x| x.to_f64() as f32);
        bytemuck::cast_slice(&single)
    } else {
        double = par_copy(tensor.values(), |x| x.to_f64());
        bytemuck::cast_slice(&double)
    };
    let order = tensor.order();
    let mut parts: Vec<&[u8]> = tensor.all_coords().iter().map(|indices| bytemuck::cast_slice(indices)).collect();
    parts.push(values);
    let sums: Vec<u64> = parts.par_iter().map(|part| xxh3_64(part)).collect();

    let mut header = [0u8; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&(size_of::<T>() as u32).to_le_bytes());
    header[16..20].copy_from_slice(&(order as u32).to_le_bytes());
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
        for part in &parts {
            let start = at.next_multiple_of(SECTION_ALIGN);
            out.write_all(&[0u8; SECTION_ALIGN][..start - at])?;
            out.write_all(part)?;
            at = start + part.len();
        }
        Ok(())
    })
}

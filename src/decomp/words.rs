//! A decomposition's state in a file: 7 bytes that name its kind and one with the version, words of 8 bytes, little-endian, and
//! an xxh3 checksum of all before it. Numbers are double precision, which holds single precision exactly.

use std::path::{Path, PathBuf};

use sparsimd_kernels::Scalar;
use xxhash_rust::xxh3::xxh3_64;

use crate::dense::Mat;
use crate::error::{Error, Result};
use crate::formats::MAX_ORDER;
use crate::io::write_atomically;

/// The version that is written.
const VERSION: u8 = b'2';
/// The one before, without the tensor's checksum.
const WITHOUT_TENSOR: u8 = b'1';

/// The words of a state on their way into a file.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn new(kind: &[u8; 7]) -> Self {
        Self::of(kind, VERSION)
    }

    /// The same, of another version.
    pub(super) fn of(kind: &[u8; 7], version: u8) -> Self {
        Self([&kind[..], &[version]].concat())
    }

    /// All of them, with the checksum.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.0.extend(xxh3_64(&self.0).to_le_bytes());
        self.0
    }

    pub(super) fn numbers(&mut self, numbers: impl IntoIterator<Item = usize>) {
        numbers.into_iter().for_each(|n| self.0.extend((n as u64).to_le_bytes()));
    }

    pub(super) fn floats(&mut self, floats: &[f64]) {
        floats.iter().for_each(|x| self.0.extend(x.to_le_bytes()));
    }

    /// A tensor's checksum.
    pub(super) fn tensor(&mut self, checksum: u64) {
        self.0.extend(checksum.to_le_bytes());
    }

    /// The matrices row by row.
    pub(super) fn matrices<T: Scalar>(&mut self, matrices: &[Mat<T>]) {
        for matrix in matrices {
            for i in 0..matrix.rows() {
                matrix.row(i).iter().for_each(|x| self.0.extend(x.to_f64().to_le_bytes()));
            }
        }
    }

    /// Writes them, whole or not at all.
    pub(super) fn save(self, path: &Path) -> Result<()> {
        let bytes = self.finish();
        write_atomically(path, |out| out.write_all(&bytes))
    }
}

/// The words of a file.
pub(super) struct Reader {
    path: PathBuf,
    version: u8,
    words: std::vec::IntoIter<u64>,
}

impl Reader {
    /// The words of the file that [`Writer::save`] wrote; `what` says what `kind` stands for.
    pub(super) fn open(path: &Path, kind: &[u8; 7], what: &str) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|source| Error::Io { path: path.into(), source })?;
        let fail = |detail: String| Error::Parse { path: path.into(), line: 0, detail };
        let Some((body, sum)) = bytes.split_last_chunk::<8>() else {
            return Err(fail("too short for a checkpoint".to_owned()));
        };
        let Some((&version, words)) = body.strip_prefix(kind).and_then(<[u8]>::split_first) else {
            return Err(fail(format!("not a checkpoint of {what}")));
        };
        if ![VERSION, WITHOUT_TENSOR].contains(&version) {
            return Err(fail(format!("a checkpoint of {what} of another version")));
        }
        if xxh3_64(body) != u64::from_le_bytes(*sum) {
            return Err(fail("the checksum does not match: the file is damaged".to_owned()));
        }
        Ok(Self { version, ..Self::of(path, words) })
    }

    /// The words in `bytes` of a file, of the latest version.
    pub(super) fn of(path: &Path, bytes: &[u8]) -> Self {
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word)).collect();
        Self { path: path.into(), version: VERSION, words: words.into_iter() }
    }

    fn fail(&self, detail: &str) -> Error {
        Error::Parse { path: self.path.clone(), line: 0, detail: detail.to_owned() }
    }

    fn next(&mut self) -> Result<u64> {
        self.words.next().ok_or_else(|| self.fail("the file ends early"))
    }

    /// Whether none is left.
    pub(super) fn is_empty(&self) -> bool {
        self.words.as_slice().is_empty()
    }

    pub(super) fn number(&mut self) -> Result<usize> {
        self.next().map(|n| n as usize)
    }

    /// A tensor's order.
    pub(super) fn order(&mut self) -> Result<usize> {
        match self.number()? {
            order if order <= MAX_ORDER => Ok(order),
            _ => Err(self.fail("the order is beyond what tensors may have")),
        }
    }

    pub(super) fn numbers(&mut self, n: usize) -> Result<Vec<usize>> {
        (0..n).map(|_| self.number()).collect()
    }

    pub(super) fn floats(&mut self, n: usize) -> Result<Vec<f64>> {
        // Refused before anything of a claimed length is reserved.
        if n > self.words.len() {
            return Err(self.fail("the file ends early"));
        }
        (0..n).map(|_| self.next().map(f64::from_bits)).collect()
    }

    /// Takes a tensor's checksum, which must be `wanted`, unless either is 0 or the file has none.
    pub(super) fn expect_tensor(&mut self, wanted: u64) -> Result<()> {
        if self.version == WITHOUT_TENSOR {
            return Ok(());
        }
        match self.next()? {
            found if found == wanted || found == 0 || wanted == 0 => Ok(()),
            _ => Err(self.fail("the checkpoint is of a tensor with other entries, or of another element type")),
        }
    }

    pub(super) fn matrix<T: Scalar>(&mut self, rows: usize, cols: usize) -> Result<Mat<T>> {
        let len = rows.checked_mul(cols).ok_or_else(|| self.fail("a factor beyond the address space"))?;
        let data = self.floats(len)?;
        Mat::from_fn(rows, cols, |i, j| T::from_f64(data[i * cols + j]))
    }
}

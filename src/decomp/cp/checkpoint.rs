//! A decomposition's state in a file.
//!
//! Little-endian: the magic, order, rank, number of fits, the dims (u64 each); fits, lambda and the factors row by row
//! (f64 each, which hold single precision exactly); an xxh3 checksum of all before it.

use std::path::Path;

use sparsimd_kernels::Scalar;
use xxhash_rust::xxh3::xxh3_64;

use super::CpState;
use crate::dense::Mat;
use crate::error::{Error, Result};
use crate::formats::MAX_ORDER;
use crate::io::write_atomically;

const MAGIC: &[u8; 8] = b"ssimdcp1";

impl<T: Scalar> CpState<T> {
    /// Writes the state to `path`, whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut bytes = MAGIC.to_vec();
        let counts = [self.factors.len(), self.lambda.len(), self.fits.len()];
        let dims = self.factors.iter().map(Mat::rows);
        counts.into_iter().chain(dims).for_each(|n| bytes.extend((n as u64).to_le_bytes()));
        self.fits.iter().chain(&self.lambda).for_each(|x| bytes.extend(x.to_le_bytes()));
        for factor in &self.factors {
            for i in 0..factor.rows() {
                factor.row(i).iter().for_each(|x| bytes.extend(x.to_f64().to_le_bytes()));
            }
        }
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        write_atomically(path, |out| out.write_all(&bytes))
    }

    /// The state that [`CpState::save`] wrote.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Parse`] when the file is not such a state, or damaged.
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|source| Error::Io { path: path.into(), source })?;
        let fail = |detail: &str| Error::Parse { path: path.into(), line: 0, detail: detail.to_owned() };
        let Some((body, sum)) = bytes.split_last_chunk::<8>() else {
            return Err(fail("too short for a checkpoint"));
        };
        if !body.starts_with(MAGIC) {
            return Err(fail("not a checkpoint of a CP decomposition"));
        }
        if xxh3_64(body) != u64::from_le_bytes(*sum) {
            return Err(fail("the checksum does not match: the file is damaged"));
        }
        let mut words =
            body[MAGIC.len()..].chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap_or_default()));
        let mut next = || words.next().ok_or_else(|| fail("the file ends early"));
        let (order, rank, fits) = (next()? as usize, next()? as usize, next()? as usize);
        if order > MAX_ORDER {
            return Err(fail("the order is beyond what tensors may have"));
        }
        let dims = (0..order).map(|_| next().map(|n| n as usize)).collect::<Result<Vec<_>>>()?;
        let mut floats = |n: usize| (0..n).map(|_| next().map(f64::from_bits)).collect::<Result<Vec<_>>>();
        let (fits, lambda) = (floats(fits)?, floats(rank)?);
        let mut factors = Vec::with_capacity(order);
        for dim in dims {
            let len = dim.checked_mul(rank).ok_or_else(|| fail("a factor beyond the address space"))?;
            let data = floats(len)?;
            factors.push(Mat::from_fn(dim, rank, |i, r| T::from_f64(data[i * rank + r]))?);
        }
        Ok(Self { factors, lambda, fits })
    }
}

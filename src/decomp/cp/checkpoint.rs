//! The state of a CP decomposition in a file: order, rank, number of fits, the dims; fits, lambda and the factors; the vectors of
//! the method's memory, if it has any: how many, and each one's length and elements.

use std::path::Path;

use sparsimd_kernels::Scalar;

use super::CpState;
use crate::decomp::words::{Reader, Writer};
use crate::dense::Mat;
use crate::error::Result;

const MAGIC: &[u8; 8] = b"ssimdcp1";

impl<T: Scalar> CpState<T> {
    /// Writes the state to `path`, whole or not at all.
    ///
    /// # Errors
    /// [`crate::Error::Io`].
    #[inline(never)]
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut words = Writer::new(MAGIC);
        words.numbers([self.factors.len(), self.lambda.len(), self.fits.len()]);
        words.numbers(self.factors.iter().map(Mat::rows));
        words.floats(&self.fits);
        words.floats(&self.lambda);
        words.matrices(&self.factors);
        if !self.memory.is_empty() {
            words.numbers([self.memory.len()]);
        }
        for vector in &self.memory {
            words.numbers([vector.len()]);
            words.floats(vector);
        }
        words.save(path)
    }

    /// The state that [`CpState::save`] wrote.
    ///
    /// # Errors
    /// [`crate::Error::Io`]; [`crate::Error::Parse`] when the file is not such a state, or damaged.
    #[inline(never)]
    pub fn load(path: &Path) -> Result<Self> {
        let mut words = Reader::open(path, MAGIC, "a CP decomposition")?;
        let (order, rank, fits) = (words.order()?, words.number()?, words.number()?);
        let dims = words.numbers(order)?;
        let (fits, lambda) = (words.floats(fits)?, words.floats(rank)?);
        let factors = dims.into_iter().map(|dim| words.matrix(dim, rank)).collect::<Result<_>>()?;
        let vectors = if words.is_empty() { 0 } else { words.number()? };
        let mut memory = Vec::new();
        for _ in 0..vectors {
            let len = words.number()?;
            memory.push(words.floats(len)?);
        }
        Ok(Self { factors, lambda, fits, memory })
    }
}

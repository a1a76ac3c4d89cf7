//! The state of a CP decomposition in a file: order, rank, number of fits, the dims; fits, lambda, the factors, and the tensor's
//! checksum, 0 where it is not known; the vectors of the method's memory, if it has any: how many, and each one's length and elements.

use std::path::Path;

use sparsimd_kernels::Scalar;

use super::CpState;
use super::sections::Head;
use crate::decomp::words::{Reader, Writer};
use crate::dense::Mat;
use crate::error::Result;

pub(super) const KIND: &[u8; 7] = b"ssimdcp";

impl<T: Scalar> CpState<T> {
    /// Writes the state to `path`, whole or not at all.
    ///
    /// # Errors
    /// [`crate::Error::Io`].
    pub fn save(&self, path: &Path) -> Result<()> {
        self.save_of(path, 0)
    }

    /// The same, of the tensor with the checksum `tensor` ([`CooTensor::checksum`](crate::CooTensor::checksum)); 0 for any.
    ///
    /// # Errors
    /// As [`CpState::save`].
    #[inline(never)]
    pub fn save_of(&self, path: &Path, tensor: u64) -> Result<()> {
        let mut words = Writer::new(KIND);
        words.numbers([self.factors.len(), self.lambda.len(), self.fits.len()]);
        words.numbers(self.factors.iter().map(Mat::rows));
        words.floats(&self.fits);
        words.floats(&self.lambda);
        words.matrices(&self.factors);
        words.tensor(tensor);
        if !self.memory.is_empty() {
            words.numbers([self.memory.len()]);
        }
        for vector in &self.memory {
            words.numbers([vector.len()]);
            words.floats(vector);
        }
        words.save(path)
    }

    /// The state that [`CpState::save`] wrote, or that is [in sections](CpState::section).
    ///
    /// # Errors
    /// [`crate::Error::Io`]; [`crate::Error::Parse`] when the file is not such a state, or damaged.
    pub fn load(path: &Path) -> Result<Self> {
        Self::load_of(path, 0)
    }

    /// The same, if it is of the tensor with the checksum `tensor`; 0 for any.
    ///
    /// # Errors
    /// As [`CpState::load`], and [`crate::Error::Parse`] when the state is of another tensor.
    #[inline(never)]
    pub fn load_of(path: &Path, tensor: u64) -> Result<Self> {
        if let Some(head) = Head::read(path)? {
            let rows: Vec<_> = head.dims.iter().map(|&dim| 0..dim).collect();
            return head.state(path, &rows, tensor);
        }
        let mut words = Reader::open(path, KIND, "a CP decomposition")?;
        let (order, rank, fits) = (words.order()?, words.number()?, words.number()?);
        let dims = words.numbers(order)?;
        let (fits, lambda) = (words.floats(fits)?, words.floats(rank)?);
        let factors = dims.into_iter().map(|dim| words.matrix(dim, rank)).collect::<Result<_>>()?;
        words.expect_tensor(tensor)?;
        let vectors = if words.is_empty() { 0 } else { words.number()? };
        let mut memory = Vec::new();
        for _ in 0..vectors {
            let len = words.number()?;
            memory.push(words.floats(len)?);
        }
        Ok(Self { factors, lambda, fits, memory })
    }
}

//! The state of Tucker's decomposition in a file: order, number of fits, dims, ranks; fits, the core, the
//! factors, and the tensor's checksum, 0 where it is not known.

use std::path::Path;

use super::tucker::TuckerState;
use super::words::{Reader, Writer};
use crate::dense::Mat;
use crate::error::{Error, Result};

const KIND: &[u8; 7] = b"ssimdtk";

impl TuckerState {
    /// Writes the state to `path`, whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Argument`] when the core is not as long as the factors' columns say.
    pub fn save(&self, path: &Path) -> Result<()> {
        self.save_of(path, 0)
    }

    /// The same, of the tensor with the checksum `tensor` ([`CooTensor::checksum`](crate::CooTensor::checksum)); 0 for any.
    ///
    /// # Errors
    /// As [`TuckerState::save`].
    pub fn save_of(&self, path: &Path, tensor: u64) -> Result<()> {
        if self.core.len() != self.factors.iter().map(Mat::cols).product::<usize>() {
            return Err(Error::argument("state", "the core does not fit the factors"));
        }
        let mut words = Writer::new(KIND);
        words.numbers([self.factors.len(), self.fits.len()]);
        words.numbers(self.factors.iter().map(Mat::rows));
        words.numbers(self.factors.iter().map(Mat::cols));
        words.floats(&self.fits);
        words.floats(&self.core);
        words.matrices(&self.factors);
        words.tensor(tensor);
        words.save(path)
    }

    /// The state that [`TuckerState::save`] wrote.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Parse`] when the file is not such a state, or damaged.
    pub fn load(path: &Path) -> Result<Self> {
        Self::load_of(path, 0)
    }

    /// The same, if it is of the tensor with the checksum `tensor`; 0 for any.
    ///
    /// # Errors
    /// As [`TuckerState::load`], and [`Error::Parse`] when the state is of another tensor.
    pub fn load_of(path: &Path, tensor: u64) -> Result<Self> {
        let mut words = Reader::open(path, KIND, "Tucker's decomposition")?;
        let (order, fits) = (words.order()?, words.number()?);
        let (dims, ranks) = (words.numbers(order)?, words.numbers(order)?);
        let fits = words.floats(fits)?;
        let core = words.floats(ranks.iter().try_fold(1usize, |n, &rank| n.checked_mul(rank)).unwrap_or(usize::MAX))?;
        let factors = dims.into_iter().zip(ranks).map(|(dim, rank)| words.matrix(dim, rank)).collect::<Result<_>>()?;
        words.expect_tensor(tensor)?;
        Ok(Self { factors, core, fits })
    }
}

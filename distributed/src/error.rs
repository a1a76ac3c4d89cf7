//! The error type: the library's, with the rank where it happened.

/// A `Result` whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong on one of many ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// On this rank.
    #[error(transparent)]
    Local(#[from] sparsimd::Error),
    /// On the lowest of the ranks that failed; the same on all of them.
    #[error("rank {rank}: {detail}")]
    Rank {
        /// The rank that failed.
        rank: usize,
        /// Its error in words.
        detail: String,
    },
    /// A message did not arrive, or is not the one that was expected.
    #[error("message from rank {rank}: {detail}")]
    Message {
        /// The rank that should have sent it.
        rank: usize,
        /// What is wrong with it.
        detail: String,
    },
}

impl Error {
    /// Operands of `op` that do not fit together.
    pub(crate) fn shape(op: &'static str, detail: impl Into<String>) -> Self {
        Self::Local(sparsimd::Error::Shape { op, detail: detail.into() })
    }

    /// A value of `name` outside its domain.
    pub(crate) fn argument(name: &'static str, detail: impl Into<String>) -> Self {
        Self::Local(sparsimd::Error::Argument { name, detail: detail.into() })
    }
}

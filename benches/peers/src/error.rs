//! What can be wrong with a peer.

use std::path::PathBuf;

/// A `Result` whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a peer cannot be compared with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is not on this machine.
    #[error("not found: {0}")]
    Absent(String),
    /// Its file does not open as a library, or has not the functions it should have.
    #[error("{}: {detail}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// The loader's words.
        detail: String,
    },
    /// The operands do not fit together, or exceed the peer's index type.
    #[error("{0}")]
    Operands(String),
    /// The peer refused.
    #[error("{function} returned status {status}")]
    Status {
        /// Its function.
        function: &'static str,
        /// What it returned.
        status: i32,
    },
}

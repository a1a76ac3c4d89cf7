//! The one error type of the library.

use std::path::PathBuf;

/// A `Result` whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong. Each variant names the place: the file and line, or the operation and the shapes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Operands of an operation do not fit together.
    #[error("{op}: {detail}")]
    Shape {
        /// The operation, as its public function is called.
        op: &'static str,
        /// Which operand, with the shape it has and the shape it needs.
        detail: String,
    },
    /// Arrays given to a format's constructor do not form a valid matrix or tensor.
    #[error("{format}: {detail}")]
    Structure {
        /// The format's name.
        format: &'static str,
        /// The first violation, with its position.
        detail: String,
    },
    /// An argument is outside its domain.
    #[error("{name}: {detail}")]
    Argument {
        /// The argument's name.
        name: &'static str,
        /// The value given and the values allowed.
        detail: String,
    },
    /// A file's text is malformed.
    #[error("{}:{line}: {detail}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// 1-based line; 0 when the whole file is meant.
        line: u64,
        /// What is wrong with it.
        detail: String,
    },
    /// The operating system refused to read or write.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The system does not have the memory that is needed.
    #[error("{what}: {bytes} bytes of memory are not available")]
    Memory {
        /// The file or the object that it is needed for.
        what: String,
        /// How much is needed at once.
        bytes: usize,
    },
    /// This build or this machine lacks what was asked for.
    #[error("{what} is not available: {detail}")]
    Unavailable {
        /// What was asked for.
        what: &'static str,
        /// Why it is not there.
        detail: String,
    },
    /// An accelerator failed or is too small. The processor can still be used.
    #[error("{detail}")]
    Device {
        /// The device's name and what went wrong on it.
        detail: String,
    },
}

impl Error {
    /// Operands of `op` that do not fit together.
    pub(crate) fn shape(op: &'static str, detail: impl Into<String>) -> Self {
        Self::Shape { op, detail: detail.into() }
    }

    /// Arrays that do not form a valid `format`.
    pub(crate) fn structure(format: &'static str, detail: impl Into<String>) -> Self {
        Self::Structure { format, detail: detail.into() }
    }

    /// A value of `name` outside its domain.
    pub(crate) fn argument(name: &'static str, detail: impl Into<String>) -> Self {
        Self::Argument { name, detail: detail.into() }
    }
}

//! Files: Matrix Market `.mtx` and DLMC `.smtx`, either of them gzip-compressed.
//!
//! A reader streams the text in blocks that are parsed by all threads of the rayon pool it is called in, while the next
//! blocks are being read and decompressed. What it holds grows with the entries actually seen, never with a number that
//! a header merely claims. A writer fills a temporary file beside the target and renames it: nothing is half-written.

mod atomic;
mod format;
mod matrix;
mod mtx;
mod number;
mod smtx;
mod text;

pub use atomic::write_atomically;
pub use format::Format;
pub use matrix::{Fill, Matrix, read_matrix, write_matrix};
pub use mtx::{read_mtx, write_mtx, write_mtx_dense};
pub use smtx::{read_smtx, write_smtx};
pub use text::ReadOptions;

//! Files: Matrix Market `.mtx`, DLMC `.smtx`, FROSTT `.tns`, dense matrices as numpy's `.npy`, as `.mtx` arrays and as plain text,
//! any of them gzip-compressed; binary tensors `.tnsb`.
//!
//! A reader streams the text in blocks that are parsed by all threads of the rayon pool it is called in, while the next
//! blocks are being read and decompressed. What it touches grows with the entries actually seen, never with a number that
//! a header merely claims: room is made for no more than the file's bytes can hold. A writer fills a temporary file beside
//! the target and renames it: nothing is half-written.

mod atomic;
mod dense;
mod entries;
mod format;
mod matrix;
mod mtx;
mod mtx_write;
mod npy;
mod npy_stream;
mod number;
mod part;
mod smtx;
mod tensor;
mod text;
mod tns;
mod tnsb;
mod tnsb_part;
mod tnsb_stream;
mod txt;

pub use atomic::write_atomically;
pub use dense::{DenseFormat, DenseHeader, dense_header, read_dense, write_dense};
pub use format::Format;
pub use matrix::{Matrix, read_matrix, write_matrix};
pub use mtx::{read_mtx, read_mtx_dense};
pub use mtx_write::{write_mtx, write_mtx_dense, write_mtx_entries};
pub use npy::{read_npy, write_npy};
pub use npy_stream::{NpyStream, write_npy_rows};
pub use part::{MtxPart, read_mtx_part};
pub use smtx::{read_smtx, write_smtx};
pub use tensor::{Duplicates, TensorFormat, check_finite, read_tensor, write_tensor};
pub use text::ReadOptions;
pub use tns::{read_tns, read_tns_part, write_tns, write_tns_blocks};
pub use tnsb::{TnsbFile, read_tnsb, write_tnsb, write_tnsb_as};
pub use tnsb_part::read_tnsb_part;
pub use tnsb_stream::TnsbStream;

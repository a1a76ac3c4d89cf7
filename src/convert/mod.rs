//! Conversions from and to other crates' matrices, each behind the feature of the crate's name.
//!
//! Views that need no copy are `From` (to the other crate) and `TryFrom` (from it: its layout may differ). What other
//! layouts hold is copied into a [`Mat`](crate::Mat) or [`Csr`](crate::Csr).

#[cfg(feature = "faer")]
mod faer;
#[cfg(feature = "ndarray")]
mod ndarray;
#[cfg(feature = "sprs")]
mod sprs;

/// The error that `layout` cannot be taken as it is.
#[cfg(any(feature = "faer", feature = "ndarray"))]
fn not_row_major() -> crate::Error {
    crate::Error::argument("matrix", "its rows do not follow each other without gaps; copy it into a Mat")
}

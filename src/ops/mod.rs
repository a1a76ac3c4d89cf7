//! One file per operation.

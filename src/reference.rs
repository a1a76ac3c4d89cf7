//! Naive f64 loops.

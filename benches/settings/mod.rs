//! How every bench measures.

use std::time::Duration;

use criterion::Criterion;

/// Short: the figures of a compute-bound kernel settle at once.
pub fn criterion() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
}

//! How every bench measures and draws.

use std::time::Duration;

use criterion::Criterion;
use plotters::style::{FontStyle, register_font};

/// Short: the figures of a compute-bound kernel settle at once.
pub fn criterion() -> Criterion {
    // The library draws with a font that it brings along, as servers may have none; criterion shares its plotting crate and
    // has to bring one as well. The only error is a malformed font.
    let _ = register_font("sans-serif", FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT);
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
}

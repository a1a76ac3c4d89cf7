//! How many threads share a row (Zubair and Bauinger 2023, section 4.2).

/// NT: the smallest power of two, at most 16, that maximises the occupancy
/// (rows * NT / T) / ceil(rows * NT / T) of a device that runs T = `work_items` at a time.
///
/// ```
/// use sparsimd::plan::threads_per_row;
/// assert_eq!(threads_per_row(1024, 4096), 4);
/// assert_eq!(threads_per_row(3072, 4096), 4);
/// ```
pub fn threads_per_row(rows: usize, work_items: usize) -> usize {
    // Compared as fractions a/b > c/d <=> a d > c b: no rounding decides.
    let occupancy = |nt: usize| {
        let items = rows as u128 * nt as u128;
        let waves = items.div_ceil(work_items.max(1) as u128).max(1);
        (items, waves)
    };
    let mut best = 1;
    for nt in (1..=4).map(|k| 1 << k) {
        let ((a, b), (c, d)) = (occupancy(nt), occupancy(best));
        if a * d > c * b {
            best = nt;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn papers_values_and_edges() {
        assert_eq!(threads_per_row(1024, 4096), 4);
        assert_eq!(threads_per_row(3072, 4096), 4);
        assert_eq!(threads_per_row(4096, 4096), 1);
        assert_eq!(threads_per_row(8192, 4096), 1);
        assert_eq!(threads_per_row(2048, 4096), 2);
        assert_eq!(threads_per_row(1, 4096), 16);
        assert_eq!(threads_per_row(0, 4096), 1);
        assert_eq!(threads_per_row(7, 0), 1);
    }
}

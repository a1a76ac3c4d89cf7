//! When results are written past the caches.

use crate::machine::Machine;

/// Whether dense operands and a result of so many bytes together outgrow one last-level cache: a result left there would be gone before
/// it is read, and would drive out what is read meanwhile. Every operation asks here.
///
/// Seven eighths of it: the nearer it is to full, the more is driven out (an L3 of 32 MiB of a Zen 5: SpMM of 8 heads on ca-CondMat, 29.7 MB,
/// 0.86 of the time past the caches; FusedMM on pubmed with D = B, 30.3 MB, 0.91 to 0.95).
pub(crate) fn streams(machine: &Machine, bytes: usize) -> bool {
    bytes > machine.l3_bytes() / 8 * 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_decides() {
        for (text, bytes) in [("l3:1(size=64KB) core:4", 56 << 10), ("l3:1(size=32MB) core:4", 28 << 20)] {
            let machine = Machine::describe(text).unwrap();
            assert!(!streams(&machine, bytes) && streams(&machine, bytes + 1), "{text}");
        }
    }
}

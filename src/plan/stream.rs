//! When results are written past the caches.

use crate::machine::Machine;

/// Whether dense operands and a result of so many bytes together outgrow one last-level cache: a result left there would be gone before
/// it is read, and would drive out what is read meanwhile. Every operation asks here.
pub(crate) fn streams(machine: &Machine, bytes: usize) -> bool {
    bytes > machine.l3_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_decides() {
        for (text, bytes) in [("l3:1(size=64KB) core:4", 64 << 10), ("l3:1(size=32MB) core:4", 32 << 20)] {
            let machine = Machine::describe(text).unwrap();
            assert!(!streams(&machine, bytes) && streams(&machine, bytes + 1), "{text}");
        }
    }
}

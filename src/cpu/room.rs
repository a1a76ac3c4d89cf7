//! Room that a call leaves to the next: in fresh memory, page faults cost more than what is written there (FusedMM in stages, 2^20 rows,
//! N = 128: 25 of 220 ms).

use std::sync::{Mutex, PoisonError};

use super::Cpu;
use crate::dense::{Aligned, reserved_aligned};

/// The room of the last call, unless one uses it.
#[derive(Debug, Default)]
pub(super) struct Room(Mutex<Option<Aligned<u8>>>);

impl Cpu {
    /// Runs `run` with uninitialised room for `len` elements, which the executor keeps for its next call. Of calls at the same time, each
    /// has its own.
    pub(crate) fn with_room<T>(&self, len: usize, run: impl FnOnce(*mut T)) {
        let kept = || self.room.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = len * size_of::<T>();
        let room = kept().take().filter(|room| room.capacity() >= bytes);
        let mut room = room.unwrap_or_else(|| reserved_aligned(bytes));
        run(room.as_mut_ptr().cast());
        *kept() = Some(room);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_kept_and_not_shared() {
        let cpu = Cpu::builder().threads(1).pin(false).build().unwrap();
        let mut seen = Vec::new();
        cpu.with_room::<f64>(1000, |outer| {
            cpu.clone().with_room::<f32>(1000, |inner| {
                assert!(outer.addr() != inner.addr() && outer.addr() % 64 == 0 && inner.addr() % 64 == 0);
            });
            seen.push(outer.addr());
        });
        cpu.with_room::<f32>(2000, |room| seen.push(room.addr()));
        cpu.with_room::<f64>(0, |room| seen.push(room.addr()));
        assert_eq!(seen, [seen[0]; 3]);
        // Room that is too small is left, and what a call leaves that panics is nothing.
        cpu.with_room::<f64>(1 << 20, |room| assert_ne!(room.addr(), 0));
        assert_eq!(kept(&cpu), Some(8 << 20));
        let panic = std::panic::AssertUnwindSafe(|| cpu.with_room::<u8>(1, |_| panic!("on purpose")));
        assert!(std::panic::catch_unwind(panic).is_err());
        assert_eq!(kept(&cpu), None);
    }

    fn kept(cpu: &Cpu) -> Option<usize> {
        cpu.room.0.lock().unwrap().as_ref().map(|room| room.capacity())
    }
}

//! Parallel loops, in the rayon pool of the caller.
//!
//! rayon compiles its tree of jobs anew for every closure, many times the code of the closure itself. All loops of the library
//! go through [`tasks`], which takes the closure by reference and is compiled once.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rayon::prelude::*;

use crate::memory::reserved;

/// Elements of one task in loops whose work for an element is small.
pub(crate) const GRAIN: usize = 1 << 14;

thread_local! {
    /// Whether loops of this thread stay on it.
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, whose loops stay on the caller's thread: no pool is needed.
pub(crate) fn alone(f: &mut dyn FnMut()) {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            ALONE.set(self.0);
        }
    }
    let _before = Before(ALONE.replace(true));
    f();
}

/// `run(i)` for i in 0..n, each a task of its own.
pub(crate) fn tasks(n: usize, run: &(dyn Fn(usize) + Sync)) {
    if ALONE.get() {
        return (0..n).for_each(run);
    }
    handover::to_tasks();
    (0..n).into_par_iter().with_max_len(1).for_each(|i| handover::task(|| run(i)));
    handover::from_tasks();
}

/// Where memory passes between a caller and its tasks, for ThreadSanitizer: it does not see the standard library's locks, by
/// which rayon waits, but atomics. Nothing is said of one task before another.
pub(crate) mod handover {
    #[cfg(thread_sanitizer)]
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[cfg(thread_sanitizer)]
    static TO_TASKS: AtomicUsize = AtomicUsize::new(0);
    #[cfg(thread_sanitizer)]
    static FROM_TASKS: AtomicUsize = AtomicUsize::new(0);

    /// What the caller did is before the tasks.
    #[inline(always)]
    pub fn to_tasks() {
        #[cfg(thread_sanitizer)]
        TO_TASKS.fetch_add(1, Ordering::Release);
    }

    /// Runs a task.
    #[inline(always)]
    pub fn task<R>(run: impl FnOnce() -> R) -> R {
        #[cfg(thread_sanitizer)]
        TO_TASKS.load(Ordering::Acquire);
        let result = run();
        #[cfg(thread_sanitizer)]
        FROM_TASKS.fetch_add(1, Ordering::Release);
        result
    }

    /// What the tasks did is before what the caller does.
    #[inline(always)]
    pub fn from_tasks() {
        #[cfg(thread_sanitizer)]
        FROM_TASKS.load(Ordering::Acquire);
    }
}

/// `run(part)` for the parts of 0..n, of `grain` each and the rest.
pub(crate) fn ranges(n: usize, grain: usize, run: impl Fn(Range<usize>) + Sync) {
    tasks(n.div_ceil(grain), &|task| run(task * grain..n.min((task + 1) * grain)));
}

/// `f(i)` for i in 0..n, each by a task of its own.
pub(crate) fn map_tasks<R: Send>(n: usize, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let mut out = Vec::with_capacity(n);
    let slots = Slots::of(&mut out);
    // SAFETY: each task writes the slot of its own number, below the capacity.
    tasks(n, &|i| unsafe { slots.write(i, f(i)) });
    // SAFETY: all n slots have been written: a task that panics is passed on by rayon, and the vector is dropped empty.
    unsafe { out.set_len(n) };
    out
}

/// `f(i)` for i in 0..n, many by one task.
pub(crate) fn map<R: Send>(n: usize, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let mut out = reserved(n);
    let slots = Slots::of(&mut out);
    // SAFETY: ranges are disjoint and below the capacity.
    ranges(n, GRAIN, |range| range.for_each(|i| unsafe { slots.write(i, f(i)) }));
    // SAFETY: as in `map_tasks`.
    unsafe { out.set_len(n) };
    out
}

/// The i in 0..n for which `keep(i)`, ascending.
pub(crate) fn filter(n: usize, keep: impl Fn(usize) -> bool + Sync) -> Vec<usize> {
    let part = |task: usize| (task * GRAIN..n.min((task + 1) * GRAIN)).filter(|&i| keep(i)).collect::<Vec<_>>();
    map_tasks(n.div_ceil(GRAIN), part).concat()
}

/// The smallest i in 0..n for which `wanted(i)`.
pub(crate) fn find_first(n: usize, wanted: impl Fn(usize) -> bool + Sync) -> Option<usize> {
    let first = AtomicUsize::new(usize::MAX);
    ranges(n, GRAIN, |mut range| {
        if range.start < first.load(Relaxed)
            && let Some(found) = range.find(|&i| wanted(i))
        {
            first.fetch_min(found, Relaxed);
        }
    });
    Some(first.into_inner()).filter(|&found| found != usize::MAX)
}

/// Whether `holds(i)` for all i in 0..n.
pub(crate) fn all(n: usize, holds: impl Fn(usize) -> bool + Sync) -> bool {
    find_first(n, |i| !holds(i)).is_none()
}

/// The threads of the current pool.
pub(crate) fn threads() -> usize {
    if ALONE.get() {
        return 1;
    }
    rayon::current_num_threads()
}

/// Both, at the same time where there are two threads.
pub(crate) fn join<A: Send, B: Send>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> (A, B) {
    if ALONE.get() {
        return (a(), b());
    }
    handover::to_tasks();
    let both = rayon::join(|| handover::task(a), || handover::task(b));
    handover::from_tasks();
    both
}

/// The largest of `data`.
pub(crate) fn max(data: &[u32]) -> Option<u32> {
    let part = |task: usize| data[task * GRAIN..data.len().min((task + 1) * GRAIN)].iter().copied().max();
    map_tasks(data.len().div_ceil(GRAIN), part).into_iter().flatten().max()
}

/// Appends `part(k)` for k in 0..n to `all`, each copied by a task of its own.
pub(crate) fn extend_from_parts<'a, X: Copy + Send + Sync + 'a>(
    all: &mut Vec<X>,
    n: usize,
    part: impl Fn(usize) -> &'a [X] + Sync,
) {
    let mut places = Vec::with_capacity(n);
    let mut len = 0;
    for k in 0..n {
        places.push(len);
        len += part(k).len();
    }
    all.reserve(len);
    let slots = Slots::new(all.spare_capacity_mut());
    tasks(n, &|k| {
        let part = &part(k)[..places.get(k + 1).unwrap_or(&len) - places[k]];
        // SAFETY: the parts' places are disjoint, and below the capacity that was reserved: each is cut to its own.
        part.iter().enumerate().for_each(|(i, &x)| unsafe { slots.write(places[k] + i, x) });
    });
    // SAFETY: all `len` places after the old end have been written, unless a part was shorter the second time; that
    // panics above.
    unsafe { all.set_len(all.len() + len) };
}

/// `run(job)` for all of `jobs`, each by a task of its own.
pub(crate) fn consume<J: Send>(jobs: impl IntoIterator<Item = J>, run: impl Fn(J) + Sync) {
    let mut jobs: Vec<Option<J>> = jobs.into_iter().map(Some).collect();
    chunks_mut(&mut jobs, 1, |_, job| job[0].take().into_iter().for_each(&run));
}

/// `run(k, chunk)` for the chunks of `data`, of `len` elements each and the rest; `k` counts them.
pub(crate) fn chunks_mut<T: Send>(data: &mut [T], len: usize, run: impl Fn(usize, &mut [T]) + Sync) {
    let n = data.len();
    let first: Slots<T> = Slots(data.as_mut_ptr().cast());
    ranges(n, len, |range| {
        // SAFETY: ranges are disjoint parts of the slice, which is borrowed for the whole loop.
        run(range.start / len, unsafe { std::slice::from_raw_parts_mut(first.get().add(range.start), range.len()) });
    });
}

/// What `f(k, chunk)` gives for the chunks of `data`, as [`chunks_mut`] cuts them.
pub(crate) fn map_chunks_mut<T: Send, R: Send>(
    data: &mut [T],
    len: usize,
    f: impl Fn(usize, &mut [T]) -> R + Sync,
) -> Vec<R> {
    let mut results: Vec<Option<R>> = Vec::new();
    results.resize_with(data.len().div_ceil(len), || None);
    consume(data.chunks_mut(len).zip(&mut results).enumerate(), |(k, (chunk, result))| *result = Some(f(k, chunk)));
    results.into_iter().flatten().collect()
}

/// An array that tasks write to, each one to places that no other has.
pub(crate) struct Slots<E>(*mut MaybeUninit<E>);
// SAFETY: whoever uses the pointer keeps every place to one task.
unsafe impl<E: Send> Sync for Slots<E> {}

impl<E> Slots<E> {
    /// The room of `array`, which has no elements yet.
    pub fn of(array: &mut Vec<E>) -> Self {
        Self::new(array.spare_capacity_mut())
    }

    /// The places of `array`.
    pub fn new(array: &mut [MaybeUninit<E>]) -> Self {
        Self(array.as_mut_ptr())
    }

    /// # Safety
    /// `place` is inside the array, which is still there, and no other task writes it.
    #[inline(always)]
    pub unsafe fn write(&self, place: usize, entry: E) {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(place).write(MaybeUninit::new(entry)) };
    }

    fn get(&self) -> *mut E {
        self.0.cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_alone_stay_on_the_callers_thread() {
        let seen = std::sync::Mutex::new(Vec::new());
        let look = || ranges(3 * GRAIN, GRAIN, |_| seen.lock().unwrap().push(std::thread::current().id()));
        alone(&mut || {
            assert_eq!(threads(), 1);
            look();
            alone(&mut || ());
            look();
            assert_eq!(join(|| 1, || 2), (1, 2));
        });
        assert_eq!(seen.into_inner().unwrap(), [std::thread::current().id(); 6]);
        assert!(!ALONE.get());
    }

    #[test]
    fn loops_visit_every_element_once_and_in_place() {
        for n in [0, 1, GRAIN - 1, GRAIN, GRAIN + 1, 3 * GRAIN + 7] {
            assert_eq!(map(n, |i| 3 * i), (0..n).map(|i| 3 * i).collect::<Vec<_>>());
            assert_eq!(filter(n, |i| i % 7 == 3), (0..n).filter(|i| i % 7 == 3).collect::<Vec<_>>());
            let mut data = vec![0; n];
            chunks_mut(&mut data, 100, |k, chunk| chunk.iter_mut().for_each(|x| *x += k + 1));
            assert!(data.iter().enumerate().all(|(i, &x)| x == i / 100 + 1));
            for wanted in [0, 1, GRAIN - 1, GRAIN, 2 * GRAIN + 5] {
                assert_eq!(find_first(n, |i| i >= wanted), Some(wanted).filter(|&i| i < n));
                assert_eq!(all(n, |i| i < wanted), n <= wanted);
            }
        }
    }

    #[test]
    fn jobs_are_consumed_once_and_a_panic_is_passed_on() {
        let sum = AtomicUsize::new(0);
        consume((1..=100).map(Box::new), |job: Box<usize>| _ = sum.fetch_add(*job, Relaxed));
        assert_eq!(sum.into_inner(), 5050);
        let panics = std::panic::catch_unwind(|| map_tasks(10, |i| assert_ne!(i, 7)));
        assert!(panics.is_err());
    }
}

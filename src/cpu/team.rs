//! [`Team`]: short loops by the caller and threads of the pool that stay awake for a while.
//!
//! A thread that sleeps takes tens of microseconds to wake up, as long as a small operation takes. Helpers are jobs of the pool
//! that look for the next loop until they have found none for the spinning time. The caller takes tasks itself, so that nothing has to
//! wake it up. A helper on the processor that the caller runs on leaves: one of them would wait for the other.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Looks at the next loop between looks at the clock.
const LOOKS: usize = 64;

/// Looks for the end of a loop before the processor is given to others.
const PATIENCE: usize = 1 << 14;

/// How many times as long as waking helpers takes loops must have taken without them for that to pay: it costs the caller a part in so
/// many, and a helper comes when some ten of these have passed. One loop may be too short, and the next ones follow it.
const WAKING_PAYS: u64 = 20;

/// Nanoseconds that waking helpers takes the caller, before the first time: a system call.
const WAKING: u64 = 3000;

/// More is not believed: what was measured while the machine was busy would keep threads asleep for ever.
const MOST_WAKING: u64 = 5000;

/// The bit of [`Shared::state`] that is set while helpers may join the loop. Lower bits count those that have joined, higher ones
/// the loops.
const OPEN: u64 = 1 << 31;
const JOINED: u64 = OPEN - 1;

/// A loop on the stack of its caller.
struct Loop<'a> {
    run: &'a (dyn Fn(usize) + Sync),
    n: usize,
    next: AtomicUsize,
}

impl Loop<'_> {
    /// Runs tasks until none is left.
    fn take_part(&self) {
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            if task >= self.n {
                return;
            }
            (self.run)(task);
        }
    }
}

/// What callers and helpers share.
#[derive(Debug)]
struct Shared {
    state: AtomicU64,
    /// The loop that is open, or was.
    current: AtomicPtr<()>,
    /// The processor of its caller.
    processor: AtomicUsize,
    /// Held by the caller of the loop.
    caller: Mutex<()>,
    /// Helpers that look for a loop or run one.
    awake: AtomicUsize,
    /// Changes when helpers are to leave, for other work of the pool.
    dismissals: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Nanoseconds that waking helpers takes the caller.
    waking: AtomicU64,
    /// Nanoseconds of the loops that helpers missed since they were woken.
    missed: AtomicU64,
}

/// The threads of a pool for short loops.
#[derive(Debug)]
pub(super) struct Team {
    shared: Arc<Shared>,
    spin: Duration,
    /// Which threads of the pool help.
    helping: Arc<[AtomicBool]>,
    /// The processor of each thread, as far as it has one.
    binding: Arc<[usize]>,
}

impl Team {
    /// For a pool of `threads`, whose threads spin for `spin` when there is no loop.
    pub fn new(threads: usize, binding: Arc<[usize]>, spin: Duration) -> Self {
        let shared = Shared {
            state: AtomicU64::new(0),
            current: AtomicPtr::new(null_mut()),
            processor: AtomicUsize::new(usize::MAX),
            caller: Mutex::new(()),
            awake: AtomicUsize::new(0),
            dismissals: AtomicUsize::new(0),
            panic: Mutex::new(None),
            waking: AtomicU64::new(WAKING),
            missed: AtomicU64::new(0),
        };
        let helping = (0..threads).map(|_| AtomicBool::new(false)).collect();
        Self { shared: Arc::new(shared), spin, helping, binding }
    }

    /// Has the helpers leave, for other work of the pool.
    pub fn dismiss(&self) {
        if self.shared.awake.load(Ordering::Relaxed) > 0 {
            self.shared.dismissals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// `run(i)` for i in 0..n, which takes one thread about `nanoseconds`, by the caller and the helpers of `pool`; false when there is
    /// no team for it: another caller has it, or threads do not spin.
    pub fn run(&self, pool: &rayon::ThreadPool, n: usize, nanoseconds: u64, run: &(dyn Fn(usize) + Sync)) -> bool {
        let shared = &*self.shared;
        if self.spin.is_zero() {
            return false;
        }
        let _caller = match shared.caller.try_lock() {
            Ok(caller) => caller,
            // An earlier caller's task panicked; the loop was closed.
            Err(TryLockError::Poisoned(caller)) => caller.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        *shared.panic.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let own = Loop { run, n, next: AtomicUsize::new(0) };
        let missing = self.helping.len() - 1 > shared.awake.load(Ordering::Relaxed);
        shared.processor.store(processor(), Ordering::Relaxed);
        shared.current.store((&raw const own).cast_mut().cast(), Ordering::Relaxed);
        // What is stored above, and what the caller wrote before, is seen by who joins.
        let count = (shared.state.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        shared.state.store(count << 32 | OPEN, Ordering::Release);
        // Nobody is inside when this ends, be it by a panic.
        let closed = Closing(shared);
        let waking = shared.waking.load(Ordering::Relaxed);
        let missed = if missing { shared.missed.load(Ordering::Relaxed).saturating_add(nanoseconds) } else { 0 };
        let wake = missed > WAKING_PAYS * waking;
        shared.missed.store(if wake { 0 } else { missed }, Ordering::Relaxed);
        if wake {
            let start = Instant::now();
            self.wake(pool);
            // A thread that wakes up on the caller's processor may stop it for a while: that says little of the next time.
            let took = start.elapsed().as_nanos().min(u128::from(waking + waking / 8)) as u64;
            shared.waking.store(took.clamp(WAKING / 4, MOST_WAKING), Ordering::Relaxed);
        }
        own.take_part();
        drop(closed);
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
        true
    }

    /// Starts helpers on the threads of the pool that do not help.
    #[inline(never)]
    fn wake(&self, pool: &rayon::ThreadPool) {
        let (shared, helping, binding, spin) =
            (self.shared.clone(), self.helping.clone(), self.binding.clone(), self.spin);
        pool.spawn_broadcast(move |context| {
            let thread = context.index();
            let processor = binding.get(thread).copied();
            // One on the caller's processor would take the place of one that helps.
            if processor == Some(shared.processor.load(Ordering::Relaxed))
                || helping[thread].swap(true, Ordering::Relaxed)
            {
                return;
            }
            if shared.awake.fetch_add(1, Ordering::Relaxed) + 1 < helping.len() {
                shared.help(processor, spin);
            }
            shared.awake.fetch_sub(1, Ordering::Relaxed);
            helping[thread].store(false, Ordering::Relaxed);
        });
    }
}

/// The end of a loop: none may join, and those inside have left.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        // What helpers wrote is seen from here on.
        let mut state = self.0.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0;
        while state & JOINED > 0 {
            looks += 1;
            if looks < PATIENCE {
                std::hint::spin_loop()
            } else {
                std::thread::yield_now()
            }
            state = self.0.state.load(Ordering::Acquire);
        }
    }
}

impl Shared {
    /// Joins loops until none has come for `spin`, the helpers are dismissed, or the caller is on `processor`.
    fn help(&self, processor: Option<usize>, spin: Duration) {
        let dismissals = self.dismissals.load(Ordering::Relaxed);
        let (seen, since) = (Cell::new(0), Cell::new(Instant::now()));
        for look in 1usize.. {
            let state = self.state.load(Ordering::Acquire);
            if state & OPEN > 0 && state >> 32 != seen.get() {
                if processor == Some(self.processor.load(Ordering::Relaxed)) {
                    return;
                }
                if self.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    seen.set(state >> 32);
                    self.join();
                    since.set(Instant::now());
                }
            }
            let late = look.is_multiple_of(LOOKS) && since.get().elapsed() > spin;
            if late || self.dismissals.load(Ordering::Relaxed) != dismissals {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Takes part in the loop that was joined, and leaves it.
    fn join(&self) {
        let current = self.current.load(Ordering::Relaxed).cast::<Loop<'_>>();
        // SAFETY: the loop was open when this helper was counted, and its caller keeps it until all that are counted have left.
        let current = unsafe { &*current };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| current.take_part())) {
            // No further tasks.
            current.next.store(current.n, Ordering::Relaxed);
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
        self.state.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The processor that the calling thread runs on; the largest number where the system does not say.
fn processor() -> usize {
    #[cfg(target_os = "linux")]
    // SAFETY: no arguments.
    if let Ok(processor) = usize::try_from(unsafe { libc::sched_getcpu() }) {
        return processor;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: u64 = u64::MAX;

    fn team(threads: usize) -> (rayon::ThreadPool, Team) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        (pool, Team::new(threads, [].into(), Duration::from_millis(5)))
    }

    #[test]
    fn every_task_runs_once_and_writes_are_seen() {
        let (pool, team) = team(3);
        for round in 0..2000 {
            let n = round % 17;
            let mut counts = vec![0u32; n];
            let places = AtomicPtr::new(counts.as_mut_ptr());
            let run = |i: usize| {
                // SAFETY: each task has an element of its own.
                unsafe { *places.load(Ordering::Relaxed).add(i) += 1 };
            };
            assert!(team.run(&pool, n, if round % 3 == 0 { LONG } else { 0 }, &run));
            assert!(counts.iter().all(|&count| count == 1), "{counts:?}");
            if round % 100 == 0 {
                team.dismiss();
                assert_eq!(pool.install(|| rayon::join(|| 1, || 2)), (1, 2));
            }
        }
    }

    #[test]
    fn helpers_come_and_leave() {
        let (pool, team) = team(4);
        let threads = Mutex::new(std::collections::HashSet::new());
        let begin = Instant::now();
        // They need not come to the first loop.
        while threads.lock().unwrap().len() < 2 {
            assert!(begin.elapsed() < Duration::from_secs(20), "no helper came");
            let run = |_: usize| {
                threads.lock().unwrap().insert(std::thread::current().id());
                std::thread::sleep(Duration::from_micros(100));
            };
            assert!(team.run(&pool, 8, LONG, &run));
        }
        while team.shared.awake.load(Ordering::Relaxed) > 0 {
            assert!(begin.elapsed() < Duration::from_secs(40), "helpers stay");
            std::thread::yield_now();
        }
    }

    #[test]
    fn panics_are_passed_on_and_the_team_stays_usable() {
        let (pool, team) = team(2);
        for culprit in 0..50 {
            let run = |i: usize| {
                std::thread::sleep(Duration::from_micros(20));
                assert_ne!(i, culprit % 10);
            };
            let caught = catch_unwind(AssertUnwindSafe(|| team.run(&pool, 10, LONG, &run)));
            assert!(caught.is_err());
            assert!(team.run(&pool, 10, LONG, &|_| ()));
        }
    }

    #[test]
    fn a_second_caller_is_turned_away() {
        let (pool, team) = team(2);
        assert!(team.run(&pool, 1, 0, &|_| assert!(!team.run(&pool, 1, 0, &|_| ()))));
    }
}

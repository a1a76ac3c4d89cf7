//! The executors of this process: one pool of threads for each number of threads that was asked for, made when it is first needed.
//!
//! Threads do not survive `fork`. A child forgets the pools of its parent, whose threads it does not have, and makes its own; the
//! parent's memory for them stays allocated there. Nothing here takes a lock, which a fork could leave locked for ever.

use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{
    AtomicPtr, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use pyo3::prelude::*;
use sparsimd::{Cpu, Machine};

use crate::error::{count, exception, value};

/// A pool and the next one of the list; never freed, so that references to it last.
struct Node {
    threads: usize,
    cpu: Cpu,
    next: *mut Node,
}

/// The pools of this process.
static POOLS: AtomicPtr<Node> = AtomicPtr::new(null_mut());

/// Threads that operations use; 0 until that is known.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Has the pools forgotten in every child.
pub fn watch_forks() {
    extern "C" fn forget() {
        POOLS.store(null_mut(), Relaxed);
    }
    static ONCE: Once = Once::new();
    // SAFETY: the handler does nothing but store an atomic, which is allowed after a fork; the library is never unloaded.
    ONCE.call_once(|| unsafe {
        // Out of memory is the one error; children then hang, as they do with any other pool.
        libc::pthread_atfork(None, None, Some(forget));
    });
}

/// The executor that operations run on.
pub fn cpu() -> PyResult<&'static Cpu> {
    let threads = match THREADS.load(Relaxed) {
        0 => initial()?,
        threads => threads,
    };
    match find(threads) {
        Some(cpu) => Ok(cpu),
        None => add(threads),
    }
}

fn find(threads: usize) -> Option<&'static Cpu> {
    let mut node = POOLS.load(Acquire);
    // SAFETY: nodes are leaked boxes that are not changed after they were published.
    while let Some(here) = unsafe { node.as_ref() } {
        if here.threads == threads {
            return Some(&here.cpu);
        }
        node = here.next;
    }
    None
}

#[cold]
fn add(threads: usize) -> PyResult<&'static Cpu> {
    // Unpinned: several processes of one program would otherwise be bound to the same cores.
    let cpu = Cpu::builder().threads(threads).pin(false).build().map_err(exception)?;
    let node = Box::into_raw(Box::new(Node { threads, cpu, next: POOLS.load(Acquire) }));
    loop {
        // SAFETY: nobody else has the node before it is published.
        let next = unsafe { (*node).next };
        match POOLS.compare_exchange(next, node, AcqRel, Acquire) {
            // SAFETY: published nodes are never freed.
            Ok(_) => return Ok(unsafe { &(*node).cpu }),
            Err(newer) => {
                if let Some(cpu) = find(threads) {
                    // Another thread was faster.
                    // SAFETY: from `Box::into_raw` above, and not published.
                    drop(unsafe { Box::from_raw(node) });
                    return Ok(cpu);
                }
                // SAFETY: as above.
                unsafe { (*node).next = newer };
            }
        }
    }
}

/// The number of threads that the environment asks for, else that of the processors this process may use.
#[cold]
fn initial() -> PyResult<usize> {
    let own = std::env::var("SPARSIMD_NUM_THREADS").ok().filter(|text| !text.trim().is_empty());
    let threads = match own {
        Some(text) => match text.trim().parse() {
            Ok(threads) if threads > 0 => threads,
            _ => return Err(value("SPARSIMD_NUM_THREADS", format!("{text:?} is not a number of threads"))),
        },
        None => {
            // OpenMP's may be a list, one number for each level of nesting; what is wrong in it is not ours to say.
            let list = std::env::var("OMP_NUM_THREADS").unwrap_or_default();
            let first = list.split(',').next().and_then(|text| text.trim().parse().ok());
            first.filter(|&threads| threads > 0).unwrap_or_else(|| Machine::detect().parallelism())
        }
    };
    Ok(match THREADS.compare_exchange(0, threads, Relaxed, Relaxed) {
        Ok(_) => threads,
        Err(set) => set,
    })
}

/// Set the number of threads that operations use.
///
/// Parameters
/// ----------
/// n : int
///     At least 1. It holds for the whole process.
///
/// Raises
/// ------
/// ValueError
///     When `n` is 0 or far more than the machine has processors.
///
/// See Also
/// --------
/// get_num_threads, threads
#[pyfunction]
pub fn set_num_threads(n: i128) -> PyResult<()> {
    let n = count(n, "n")?;
    if find(n).is_none() {
        add(n)?;
    }
    THREADS.store(n, Relaxed);
    Ok(())
}

/// The number of threads that operations use.
///
/// `SPARSIMD_NUM_THREADS`, else `OMP_NUM_THREADS`, else the processors that the process may use, until
/// `set_num_threads` says otherwise.
///
/// Returns
/// -------
/// int
///
/// See Also
/// --------
/// set_num_threads, threads
#[pyfunction]
pub fn get_num_threads() -> PyResult<usize> {
    match THREADS.load(Relaxed) {
        0 => initial(),
        threads => Ok(threads),
    }
}

//! Where pages of memory are: asking, moving, and the process's own memory policy. Linux; elsewhere
//! [`Error::Unavailable`].

use std::fmt;

use super::CpuSet;
use crate::error::{Error, Result};

/// How the kernel chooses the node of new pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryMode {
    /// On the node of the thread that touches the page first, if it has room.
    FirstTouch,
    /// On the given nodes if they have room.
    Preferred,
    /// On the given nodes only.
    Bind,
    /// In turns over the given nodes.
    Interleave,
}

/// The memory policy that a thread runs under, for instance by `numactl --membind=0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPolicy {
    /// The kind.
    pub mode: MemoryMode,
    /// The nodes that it names, as the operating system numbers them; empty for [`MemoryMode::FirstTouch`].
    pub nodes: CpuSet,
}

impl MemoryPolicy {
    /// The calling thread's policy; threads inherit it from the one that starts them. First touch where the operating
    /// system has no such thing.
    pub fn current() -> Self {
        system::policy().unwrap_or(Self { mode: MemoryMode::FirstTouch, nodes: CpuSet::default() })
    }

    /// Whether someone chose a policy, which placements of our own must then respect.
    pub fn is_chosen(&self) -> bool {
        self.mode != MemoryMode::FirstTouch
    }
}

impl fmt::Display for MemoryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.mode {
            MemoryMode::FirstTouch => return f.write_str("first touch"),
            MemoryMode::Preferred => "preferred",
            MemoryMode::Bind => "bind",
            MemoryMode::Interleave => "interleave",
        };
        write!(f, "{name} on nodes {}", self.nodes)
    }
}

/// The node (as the operating system numbers it) of each page that `data` touches, from the first to the last; `None`
/// for a page that has no memory yet.
///
/// # Errors
/// [`Error::Unavailable`] when the operating system does not tell.
pub fn page_nodes<T>(data: &[T]) -> Result<Vec<Option<usize>>> {
    let pages = page_addresses(data, false);
    let status = system::move_pages(&pages, None)?;
    Ok(status.into_iter().map(|node| usize::try_from(node).ok()).collect())
}

/// Moves each page that lies wholly inside `data` to node `node_of(page)` (as the operating system numbers nodes), pages
/// counted from 0. Returns the number of pages that are there afterwards, and the number of pages.
///
/// Contents and addresses do not change, and neither does the policy for later pages. Pages without memory count as not
/// moved.
///
/// # Errors
/// [`Error::Unavailable`] when the operating system refuses: it has no such call, or a node does not exist.
pub fn move_pages<T>(data: &[T], node_of: impl Fn(usize) -> usize) -> Result<(usize, usize)> {
    let pages = page_addresses(data, true);
    let targets: Vec<i32> = (0..pages.len()).map(|page| node_of(page) as i32).collect();
    let status = system::move_pages(&pages, Some(&targets))?;
    Ok((status.iter().zip(&targets).filter(|(at, to)| at == to).count(), pages.len()))
}

/// The start of each page that `data` touches, or of each that lies wholly inside.
fn page_addresses<T>(data: &[T], inside: bool) -> Vec<usize> {
    let page = page_bytes();
    let start = data.as_ptr() as usize;
    let end = start + size_of_val(data);
    let (first, last) = match inside {
        true => (start.next_multiple_of(page), end / page * page),
        false => (start / page * page, end.next_multiple_of(page)),
    };
    if start == end { Vec::new() } else { (first..last).step_by(page).collect() }
}

/// Bytes of one page.
pub fn page_bytes() -> usize {
    system::page_bytes()
}

pub(super) use system::interleave;

/// The operating system's refusal.
fn refused(call: &str) -> Error {
    let detail = format!("{call}: {}", std::io::Error::last_os_error());
    Error::Unavailable { what: "page placement", detail }
}

#[cfg(target_os = "linux")]
mod system {
    use super::{CpuSet, MemoryMode, MemoryPolicy, Result, refused};

    /// Words of a node mask: the kernel knows at most 1024 nodes.
    const WORDS: usize = 16;
    type Mask = [u64; WORDS];

    // Of linux/mempolicy.h, absent from the libc crate.
    const MPOL_PREFERRED_MANY: libc::c_int = 5;
    const MPOL_WEIGHTED_INTERLEAVE: libc::c_int = 6;
    const MPOL_MF_MOVE: libc::c_int = 2;

    pub fn page_bytes() -> usize {
        // SAFETY: no preconditions; the page size always exists and is positive.
        unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
    }

    pub fn policy() -> Option<MemoryPolicy> {
        let mut mode: libc::c_int = 0;
        let mut mask: Mask = [0; WORDS];
        // SAFETY: the kernel writes one int and at most WORDS * 64 bits, for which all bit patterns are valid.
        let result = unsafe {
            libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, mask.as_mut_ptr(), WORDS * 64, 0usize, 0usize)
        };
        // The upper bits are flags about how the mask follows a control group's.
        let mode = match mode & 0xff {
            _ if result != 0 => return None,
            libc::MPOL_PREFERRED | MPOL_PREFERRED_MANY => MemoryMode::Preferred,
            libc::MPOL_BIND => MemoryMode::Bind,
            libc::MPOL_INTERLEAVE | MPOL_WEIGHTED_INTERLEAVE => MemoryMode::Interleave,
            _ => MemoryMode::FirstTouch,
        };
        let nodes: CpuSet = (0..WORDS * 64).filter(|node| mask[node / 64] >> (node % 64) & 1 == 1).collect();
        // "Preferred" without nodes is the local node: first touch.
        let local = nodes.is_empty() && mode == MemoryMode::Preferred;
        Some(MemoryPolicy { mode: if local { MemoryMode::FirstTouch } else { mode }, nodes })
    }

    /// The node of each page, or a negative error number; after moving them when targets are given.
    pub fn move_pages(pages: &[usize], targets: Option<&[i32]>) -> Result<Vec<i32>> {
        let mut status = vec![-libc::ENOENT; pages.len()];
        if pages.is_empty() {
            return Ok(status);
        }
        let nodes = targets.map_or(std::ptr::null(), <[i32]>::as_ptr);
        // SAFETY: the arrays have the given length; the call changes neither contents nor addresses of the process's
        // memory, and checks the addresses itself.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                pages.len(),
                pages.as_ptr(),
                nodes,
                status.as_mut_ptr(),
                MPOL_MF_MOVE,
            )
        };
        // A positive number is a count of pages that did not move: their status says so.
        if result < 0 { Err(refused("move_pages")) } else { Ok(status) }
    }

    /// New pages of the range come from `nodes` in turns.
    pub fn interleave(start: *mut u8, bytes: usize, nodes: &[usize]) -> Result<()> {
        let mut mask: Mask = [0; WORDS];
        for &node in nodes.iter().filter(|&&node| node < WORDS * 64) {
            mask[node / 64] |= 1 << (node % 64);
        }
        // SAFETY: the kernel reads WORDS * 64 bits; a policy changes no contents and the kernel checks the range.
        let result = unsafe {
            libc::syscall(libc::SYS_mbind, start, bytes, libc::MPOL_INTERLEAVE, mask.as_ptr(), WORDS * 64, 0usize)
        };
        if result != 0 { Err(refused("mbind")) } else { Ok(()) }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::{Error, MemoryPolicy, Result};

    fn absent<T>() -> Result<T> {
        Err(Error::Unavailable { what: "page placement", detail: "only Linux is supported".to_owned() })
    }

    pub fn page_bytes() -> usize {
        4096
    }

    pub fn policy() -> Option<MemoryPolicy> {
        None
    }

    pub fn move_pages(_: &[usize], _: Option<&[i32]>) -> Result<Vec<i32>> {
        absent()
    }

    pub fn interleave(_: *mut u8, _: usize, _: &[usize]) -> Result<()> {
        absent()
    }
}

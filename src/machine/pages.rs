//! Where pages of memory are: asking, moving, and the process's own memory policy. Linux; elsewhere
//! [`Error::Unavailable`].

use std::fmt;
use std::ops::Range;

use super::CpuSet;
use crate::dense::addresses;
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
    /// Nobody chose one.
    pub const FIRST_TOUCH: Self = Self { mode: MemoryMode::FirstTouch, nodes: CpuSet::EMPTY };

    /// The calling thread's policy; threads inherit it from the one that starts them. First touch where the operating
    /// system has no such thing.
    pub fn current() -> Self {
        system::policy().unwrap_or(Self::FIRST_TOUCH)
    }

    /// Makes this the policy of the calling thread, and of threads that it starts from now on.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the operating system refuses: it has no such thing, or a node does not exist or may not
    /// be used.
    pub fn apply(&self) -> Result<()> {
        system::set_policy(self)
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
/// for a page that has no memory yet, and on some kernels (Linux 6.1) for one that automatic NUMA balancing watches.
///
/// # Errors
/// [`Error::Unavailable`] when the operating system does not tell.
pub fn page_nodes<T>(data: &[T]) -> Result<Vec<Option<usize>>> {
    page_nodes_at(addresses(data))
}

/// As [`page_nodes`], for any range of addresses: nothing is read there.
///
/// # Errors
/// As [`page_nodes`].
pub fn page_nodes_at(addresses: Range<usize>) -> Result<Vec<Option<usize>>> {
    let pages = page_addresses(addresses, false);
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
    move_pages_at(addresses(data), node_of)
}

/// As [`move_pages`], for any range of addresses.
///
/// # Errors
/// As [`move_pages`].
pub fn move_pages_at(addresses: Range<usize>, node_of: impl Fn(usize) -> usize) -> Result<(usize, usize)> {
    let pages = page_addresses(addresses, true);
    let targets: Vec<i32> = (0..pages.len()).map(|page| node_of(page) as i32).collect();
    let status = system::move_pages(&pages, Some(&targets))?;
    Ok((status.iter().zip(&targets).filter(|(at, to)| at == to).count(), pages.len()))
}

/// The start of each page that the addresses touch, or of each that lies wholly inside.
fn page_addresses(Range { start, end }: Range<usize>, inside: bool) -> Vec<usize> {
    let page = page_bytes();
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

pub(super) use system::{allowed_nodes, interleave};

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
    const MPOL_F_MEMS_ALLOWED: usize = 1 << 2;
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
        let nodes = members(&mask);
        // "Preferred" without nodes is the local node: first touch.
        let local = nodes.is_empty() && mode == MemoryMode::Preferred;
        Some(MemoryPolicy { mode: if local { MemoryMode::FirstTouch } else { mode }, nodes })
    }

    /// The nodes that the process's control group lets it have memory of.
    pub fn allowed_nodes() -> Option<CpuSet> {
        let mut mask: Mask = [0; WORDS];
        let mode = std::ptr::null_mut::<libc::c_int>();
        // SAFETY: with this flag the kernel writes at most WORDS * 64 bits to the mask and nothing else.
        let result = unsafe {
            libc::syscall(libc::SYS_get_mempolicy, mode, mask.as_mut_ptr(), WORDS * 64, 0usize, MPOL_F_MEMS_ALLOWED)
        };
        (result == 0).then(|| members(&mask))
    }

    pub fn set_policy(policy: &MemoryPolicy) -> Result<()> {
        let mode = match policy.mode {
            MemoryMode::FirstTouch => libc::MPOL_DEFAULT,
            MemoryMode::Preferred => MPOL_PREFERRED_MANY,
            MemoryMode::Bind => libc::MPOL_BIND,
            MemoryMode::Interleave => libc::MPOL_INTERLEAVE,
        };
        let mask = mask_of(policy.nodes.iter());
        // The default takes no nodes, not even an empty set of them.
        let (mask, bits) = match policy.mode {
            MemoryMode::FirstTouch => (std::ptr::null(), 0),
            _ => (mask.as_ptr(), WORDS * 64),
        };
        // SAFETY: the kernel reads `bits` bits of the mask, which outlives the call; a policy changes no contents.
        let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, bits) };
        if result != 0 { Err(refused("set_mempolicy")) } else { Ok(()) }
    }

    fn members(mask: &Mask) -> CpuSet {
        (0..WORDS * 64).filter(|node| mask[node / 64] >> (node % 64) & 1 == 1).collect()
    }

    fn mask_of(nodes: impl Iterator<Item = usize>) -> Mask {
        let mut mask: Mask = [0; WORDS];
        for node in nodes.filter(|&node| node < WORDS * 64) {
            mask[node / 64] |= 1 << (node % 64);
        }
        mask
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
        let mask = mask_of(nodes.iter().copied());
        // SAFETY: the kernel reads WORDS * 64 bits; a policy changes no contents and the kernel checks the range.
        let result = unsafe {
            libc::syscall(libc::SYS_mbind, start, bytes, libc::MPOL_INTERLEAVE, mask.as_ptr(), WORDS * 64, 0usize)
        };
        if result != 0 { Err(refused("mbind")) } else { Ok(()) }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::{CpuSet, Error, MemoryPolicy, Result};

    fn absent<T>() -> Result<T> {
        Err(Error::Unavailable { what: "page placement", detail: "only Linux is supported".to_owned() })
    }

    pub fn page_bytes() -> usize {
        4096
    }

    pub fn policy() -> Option<MemoryPolicy> {
        None
    }

    pub fn allowed_nodes() -> Option<CpuSet> {
        None
    }

    pub fn set_policy(_: &MemoryPolicy) -> Result<()> {
        absent()
    }

    pub fn move_pages(_: &[usize], _: Option<&[i32]>) -> Result<Vec<i32>> {
        absent()
    }

    pub fn interleave(_: *mut u8, _: usize, _: &[usize]) -> Result<()> {
        absent()
    }
}

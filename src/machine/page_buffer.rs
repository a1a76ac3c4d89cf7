//! Arrays whose pages nobody has touched yet, so that their place can still be chosen.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};

use memmap2::MmapMut;
use sparsimd_kernels::Stored;

use super::pages;
use crate::error::{Error, Result};

/// An array of zeros in pages of its own. A page gets memory when it is first written, by default on the node of the
/// thread that writes it: let the owner of a part write it first.
#[derive(Debug)]
pub struct PageBuffer<T> {
    /// `None` for an empty array, which the operating system has no mapping for.
    pages: Option<MmapMut>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Stored> PageBuffer<T> {
    /// `len` zeros.
    ///
    /// # Errors
    /// [`Error::Argument`] when they do not fit the address space or the operating system refuses them.
    pub fn zeros(len: usize) -> Result<Self> {
        let fail = |why: String| Error::argument("buffer", format!("{len} elements of {}: {why}", T::DTYPE));
        let bytes = len.checked_mul(size_of::<T>()).filter(|&n| n <= isize::MAX as usize);
        let bytes = bytes.ok_or_else(|| fail("more than the address space".to_owned()))?;
        let pages = match bytes {
            0 => None,
            _ => Some(MmapMut::map_anon(bytes).map_err(|e| fail(e.to_string()))?),
        };
        Ok(Self { pages, len, element: PhantomData })
    }

    /// Spreads the pages that have no memory yet over `nodes` (as the operating system numbers them) in turns: huge pages
    /// where each node gets many of them, else small ones, so that shares are equal.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the operating system refuses, for instance because a node does not exist.
    pub fn interleave(&mut self, nodes: &[usize]) -> Result<()> {
        let Some(pages) = &mut self.pages else { return Ok(()) };
        let bytes = pages.len();
        advise(pages, 0..bytes, bytes >= MIN_HUGE_PER_NODE * HUGE_PAGE * nodes.len());
        pages::interleave(pages.as_mut_ptr(), bytes, nodes)
    }

    /// Asks for huge pages inside each of `parts` (ranges of elements) and for small ones where parts meet, so that a huge
    /// page never has two owners. Before the first write: later it costs a copy.
    pub fn advise_huge_pages(&mut self, parts: &[Range<usize>]) {
        let Some(pages) = &self.pages else { return };
        let (start, bytes) = (pages.as_ptr() as usize, pages.len());
        advise(pages, 0..bytes, false);
        for part in parts {
            let from = (start + part.start * size_of::<T>()).next_multiple_of(HUGE_PAGE) - start;
            let to = (start + part.end * size_of::<T>()) / HUGE_PAGE * HUGE_PAGE;
            if to > start + from && to <= start + bytes {
                advise(pages, from..to - start, true);
            }
        }
    }
}

/// Bytes of a huge page on x86-64, and on AArch64 with 4 KiB pages; elsewhere the advice is merely cut differently.
const HUGE_PAGE: usize = 2 << 20;
/// With this many huge pages per node, one more or less is a difference of 6 %.
const MIN_HUGE_PER_NODE: usize = 16;

/// Tells the operating system to use huge or small pages for a range of bytes; it may not listen.
fn advise(pages: &MmapMut, bytes: Range<usize>, huge: bool) {
    #[cfg(target_os = "linux")]
    {
        let advice = if huge { memmap2::Advice::HugePage } else { memmap2::Advice::NoHugePage };
        let _ = pages.advise_range(advice, bytes.start, bytes.len());
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (pages, bytes, huge);
}

impl<T: Stored> Deref for PageBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.pages {
            // SAFETY: the mapping holds `len` elements, aligned to a page, initialised to zero bytes, which is the number
            // 0 of every element type; it lives as long as `self`.
            Some(pages) => unsafe { std::slice::from_raw_parts(pages.as_ptr().cast(), self.len) },
            None => &[],
        }
    }
}

impl<T: Stored> DerefMut for PageBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.pages {
            // SAFETY: as above, and `self` is borrowed mutably.
            Some(pages) => unsafe { std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), self.len) },
            None => &mut [],
        }
    }
}

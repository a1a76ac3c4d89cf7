//! CSR row pointers of either width.

/// Where the rows of a CSR matrix start: pointers of 32 or of 64 bits, less the first of them.
///
/// Callers hold both widths, and the direct kernels read a row's two pointers once per tile of its row: the branch on the
/// width goes the same way every time, and no kernel is compiled twice for it.
#[derive(Clone, Copy, Debug)]
pub struct RowPtr {
    start: *const u8,
    wide: bool,
    first: usize,
}

impl RowPtr {
    /// Pointers of 32 bits; `first` is subtracted from each.
    pub fn narrow(pointers: &[u32], first: usize) -> Self {
        Self { start: pointers.as_ptr().cast(), wide: false, first }
    }

    /// Pointers of 64 bits; `first` is subtracted from each.
    pub fn wide(pointers: &[u64], first: usize) -> Self {
        Self { start: pointers.as_ptr().cast(), wide: true, first }
    }

    /// Start of row `i`, or the end of row `i - 1`.
    ///
    /// # Safety
    /// The slice that the pointers were made from is alive and has an element `i`, which is not below `first` and fits usize.
    #[inline(always)]
    pub(crate) unsafe fn at(self, i: usize) -> usize {
        // SAFETY: the caller's promise; the cast undoes that of the constructor for the same width.
        let pointer = unsafe {
            if self.wide {
                *self.start.cast::<u64>().add(i) as usize
            } else {
                *self.start.cast::<u32>().add(i) as usize
            }
        };
        pointer - self.first
    }
}

//! [`Map`]: memory that the ranks of one machine have in common: rows that others read where they are.

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "memory that other processes write")]
mod platform {
    use std::fs::File;
    use std::marker::PhantomData;
    use std::ops::Range;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::{Ordering, fence};

    use memmap2::{MmapOptions, MmapRaw};
    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

    use crate::comm::Comm;
    use crate::error::{Error, Result};

    /// Bytes of a huge page on x86-64 and most AArch64 systems.
    const HUGE_PAGE: usize = 2 << 20;

    /// Elements that all ranks have mapped.
    #[derive(Debug)]
    pub struct Map<T> {
        /// A range of addresses, in which the elements begin at a huge page.
        bytes: MmapRaw,
        len: usize,
        own: Range<usize>,
        inode: u64,
        _elements: PhantomData<T>,
    }

    impl<T: bytemuck::Pod> Map<T> {
        /// `len` zeros, of which this rank writes `own` and no other rank any of these. An error of one rank is one of all.
        pub fn new(comm: &dyn Comm, len: usize, own: Range<usize>) -> Result<Self> {
            let unavailable = |error: std::io::Error| {
                let detail = format!("{} bytes: {error}", len.saturating_mul(size_of::<T>()));
                Error::Local(sparsimd::Error::Unavailable { what: "memory in common", detail })
            };
            let bytes = |elements: usize| elements.saturating_mul(size_of::<T>()) as u64;
            let make = || -> std::io::Result<File> {
                let file = File::from(memfd_create("sparsimd", MemfdFlags::CLOEXEC)?);
                // Nothing cannot be mapped.
                file.set_len(bytes(len).max(1))?;
                Ok(file)
            };
            let made = (comm.rank() == 0).then(make).transpose().map_err(unavailable);
            // Stays open until all have opened it.
            let made = comm.agree(made)?;
            let told =
                |file: &File| Ok([u64::from(std::process::id()), file.as_raw_fd() as u64, file.metadata()?.ino()]);
            let told = made.as_ref().map_or(Ok([u64::MAX; 3]), told).map_err(unavailable);
            let [process, descriptor, inode] = comm.agree(told)?;
            let (process, descriptor, inode) = (comm.least(process)?, comm.least(descriptor)?, comm.least(inode)?);
            let open = || -> std::io::Result<MmapRaw> {
                if own.start > own.end || own.end > len {
                    return Err(std::io::Error::other(format!("own elements {own:?} of {len}")));
                }
                let path = format!("/proc/{process}/fd/{descriptor}");
                let file = File::options().read(true).write(true).open(path)?;
                // Ranks in containers of their own have other processes of that number.
                if (file.metadata()?.ino(), file.metadata()?.len()) != (inode, bytes(len).max(1)) {
                    return Err(std::io::Error::other("the ranks' processes do not see each other"));
                }
                if !own.is_empty() {
                    fallocate(&file, FallocateFlags::empty(), bytes(own.start), bytes(own.len()))?;
                }
                map_at_huge_page(&file, bytes(len).max(1) as usize)
            };
            let map = comm.agree(open().map_err(unavailable))?;
            // All memory is there; no rank reads or writes it before the agreement.
            if comm.rank() == 0 {
                put_on_huge_pages(&map, bytes(len) as usize);
            }
            comm.least(0)?;
            Ok(Self { bytes: map, len, own, inode, _elements: PhantomData })
        }

        /// The same number on all ranks, and another one than that of other memory.
        pub fn number(&self) -> u64 {
            self.inode
        }

        /// The address of this rank's first element.
        #[cfg(feature = "capi")]
        pub fn own_start(&self) -> *mut T {
            self.start().wrapping_add(self.own.start)
        }

        /// What this rank writes.
        pub fn own(&self) -> &[T] {
            // SAFETY: the memory is mapped as long as `self` is borrowed, begins at a page, and has any bytes, which are an element (Pod);
            // `own` is inside, and only this rank writes it, by the function below.
            unsafe { std::slice::from_raw_parts(self.start().add(self.own.start), self.own.len()) }
        }

        /// Likewise, to be written: no rank is inside of [`Map::all`]'s agreements, since this one is not.
        pub fn own_mut(&mut self) -> &mut [T] {
            // SAFETY: as above; `self` is borrowed by nobody else.
            unsafe { std::slice::from_raw_parts_mut(self.start().add(self.own.start), self.own.len()) }
        }

        /// What `read` makes of all of it. All ranks call this with this memory; no rank reads before all have called it, and none returns before
        /// all have read, or given up.
        pub fn all<R>(comm: &dyn Comm, maps: &[&Self], read: impl FnOnce(&[&[T]]) -> Result<R>) -> Result<R> {
            comm.least(0)?;
            fence(Ordering::SeqCst);
            // SAFETY: as above. Every rank has agreed, and so has its memory borrowed, here, until the next agreement: nobody writes.
            let all: Vec<&[T]> =
                maps.iter().map(|map| unsafe { std::slice::from_raw_parts(map.start(), map.len) }).collect();
            let result = read(&all);
            comm.agree(result)
        }

        fn start(&self) -> *mut T {
            first(&self.bytes).cast()
        }
    }

    /// The first address in `bytes` at which a huge page may begin.
    fn first(bytes: &MmapRaw) -> *mut u8 {
        let start = bytes.as_mut_ptr();
        start.wrapping_add(start.addr().wrapping_neg() % HUGE_PAGE)
    }

    /// The `len` bytes of `file`, from `first` on.
    fn map_at_huge_page(file: &File, len: usize) -> std::io::Result<MmapRaw> {
        let bytes = MmapRaw::from(MmapOptions::new().len(len.saturating_add(HUGE_PAGE)).map_anon()?);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: these addresses are in the range that has just been mapped, which nobody uses yet, and are unmapped with it.
        let start = unsafe { libc::mmap(first(&bytes).cast(), len, protection, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(bytes) }
    }

    /// Puts the `len` bytes from `first` on, for all ranks, on huge pages where the system has some: what gathers rows of large matrices
    /// waits less for the addresses of pages then. A request: it may go unheard.
    fn put_on_huge_pages(bytes: &MmapRaw, len: usize) {
        /// `MADV_COLLAPSE` of Linux 6.1, which `libc` does not name.
        const COLLAPSE: libc::c_int = 25;
        // SAFETY: the bytes are mapped, and stay what they are.
        unsafe { libc::madvise(first(bytes).cast(), len, COLLAPSE) };
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    use std::marker::PhantomData;
    use std::ops::Range;

    use crate::comm::Comm;
    use crate::error::{Error, Result};

    /// Nothing: there is no such memory here.
    #[derive(Debug)]
    pub struct Map<T>(PhantomData<T>);

    impl<T> Map<T> {
        /// Fails.
        pub fn new(_: &dyn Comm, _: usize, _: Range<usize>) -> Result<Self> {
            let detail = "of this system".to_owned();
            Err(Error::Local(sparsimd::Error::Unavailable { what: "memory in common", detail }))
        }

        /// Of nothing.
        pub fn number(&self) -> u64 {
            0
        }

        /// Likewise.
        #[cfg(feature = "capi")]
        pub fn own_start(&self) -> *mut T {
            std::ptr::dangling_mut()
        }

        /// Likewise.
        pub fn own(&self) -> &[T] {
            &[]
        }

        /// Likewise.
        pub fn own_mut(&mut self) -> &mut [T] {
            &mut []
        }

        /// Likewise.
        pub fn all<R>(comm: &dyn Comm, _: &[&Self], read: impl FnOnce(&[&[T]]) -> Result<R>) -> Result<R> {
            comm.agree(read(&[]))
        }
    }
}

pub(crate) use platform::Map;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::Map;
    use crate::threads::ThreadComm;

    #[test]
    fn what_a_rank_writes_is_inside() {
        let errors = ThreadComm::run(3, |comm| {
            // One rank's is not.
            let own = if comm.rank() == 1 { 2..5 } else { 0..comm.rank() };
            Map::<f32>::new(comm, 4, own).map(|_| ()).map_err(|e| e.to_string())
        });
        for error in errors {
            let error = error.unwrap_err();
            assert!(error.contains("rank 1: ") && error.contains("elements 2..5 of 4"), "{error}");
        }
    }
}

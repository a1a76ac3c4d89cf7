//! Elements in the order of a list: out_p = x[order_p].

use sparsimd_gpu_abi::WORKGROUP;
use sparsimd_gpu_host::{Binding, Buffer};

use super::kernels::{GATHER, groups};
use super::{DeviceScalar, Gpu};
use crate::error::{Error, Result};
use crate::plan::Team;

impl Gpu {
    /// out_p = x[order_p] for every p of `order`; the elements are `T`'s.
    ///
    /// # Safety
    /// `order` names elements of `x`, and `out` has an element for each of its own.
    pub(super) unsafe fn gather<T: DeviceScalar>(
        &self,
        order: &Buffer<u32>,
        x: Binding<'_>,
        out: Binding<'_>,
    ) -> Result<()> {
        let n = order.len();
        let kernel = self.shared.kernels.get::<T, u32>(GATHER, Team { lanes: 4, registers: 1 }, 0)?;
        let groups = groups(self.device(), n, WORKGROUP as usize, 1);
        let seconds = self.state().stream.record(|r| {
            // SAFETY: the caller's promise.
            unsafe { r.launch(&kernel, &[order.bind(), x, out], &(n as u32), groups) }?;
            Ok::<_, Error>(())
        })?;
        self.note_kernel(seconds);
        Ok(())
    }
}

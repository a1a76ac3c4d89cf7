//! Entry points: they name the buffers and call the bodies, once for each element type.

use sparsimd_gpu_abi::ceiling::REGISTERS;
use sparsimd_gpu_abi::edge::SOFTMAX;
use sparsimd_gpu_abi::{
    CeilingParams, ElementwiseParams, FusedParams, MttkrpParams, SddmmParams, SpmmParams, WORKGROUP,
};
use spirv_std::glam::{UVec2, UVec3, UVec4};
use spirv_std::spirv;

use crate::memory::{Halves, HalvesMut};
use crate::spmm::{Nonzeros, Shape};
use crate::team::{Place, Subgroup, linear};
use crate::{ceilings, elements, elementwise, fusedmm, gather, mttkrp, sddmm, spmm, ttv};

/// A dense operand whose blocks lie in memory as `$m`, to read or to write.
macro_rules! blocks {
    (read UVec2, $words:ident, $format:ident) => {
        Halves { words: $words, format: $format }
    };
    (write UVec2, $words:ident, $format:ident) => {
        &mut HalvesMut { words: $words, format: $format }
    };
    ($access:ident $m:ident, $blocks:ident, $format:ident) => {{
        let _ = $format;
        $blocks
    }};
}

/// Kernels whose dense operands lie in memory as blocks of `$m`, and are computed with as `$v` of `$t`.
macro_rules! dense_entry_points {
    ($t:ident, $v:ident, $m:ident) => {
        /// [`spmm::body`] on the device.
        #[spirv(compute(threads(128)))]
        pub fn spmm(
            #[spirv(workgroup_id)] workgroup: UVec3,
            #[spirv(num_workgroups)] workgroups: UVec3,
            #[spirv(local_invocation_index)] local: u32,
            #[spirv(spec_constant(id = 0, default = 8))] team: u32,
            #[spirv(spec_constant(id = 1, default = 1))] registers: u32,
            #[spirv(spec_constant(id = 3, default = 0))] format: u32,
            #[spirv(push_constant)] p: &SpmmParams<$t>,
            #[spirv(storage_buffer, descriptor_set = 0, binding = 0)] tasks: &[UVec4],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 1)] idx: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 2)] idx4: &[UVec4],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 3)] val: &[$t],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 4)] val4: &[$v],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 5)] b: &[$m],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 6)] c: &mut [$m],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 7)] partial: &mut [$v],
        ) {
            let place = Place::new(linear(workgroup, workgroups), local, team);
            let nonzeros = Nonzeros { idx, idx4, val, val4 };
            let (b, c) = (blocks!(read $m, b, format), blocks!(write $m, c, format));
            spmm::body(Shape { team, registers }, p, place, workgroup.z, tasks, nonzeros, b, c, partial);
        }

        /// [`spmm::reduce`] on the device.
        #[spirv(compute(threads(128)))]
        pub fn reduce_rows(
            #[spirv(workgroup_id)] workgroup: UVec3,
            #[spirv(num_workgroups)] workgroups: UVec3,
            #[spirv(local_invocation_index)] local: u32,
            #[spirv(spec_constant(id = 2, default = 0))] variant: u32,
            #[spirv(spec_constant(id = 3, default = 0))] format: u32,
            #[spirv(push_constant)] p: &SpmmParams<$t>,
            #[spirv(storage_buffer, descriptor_set = 0, binding = 0)] tasks: &[UVec4],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 1)] partial: &[$v],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 2)] stats: &[$t],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 3)] c: &mut [$m],
        ) {
            let i = linear(workgroup, workgroups) * WORKGROUP + local;
            spmm::reduce(variant == SOFTMAX, p, i, tasks, partial, stats, blocks!(write $m, c, format));
        }

        /// [`sddmm::body`] on the device.
        #[spirv(compute(threads(128)))]
        pub fn sddmm(
            #[spirv(workgroup_id)] workgroup: UVec3,
            #[spirv(num_workgroups)] workgroups: UVec3,
            #[spirv(subgroup_id)] subgroup: u32,
            #[spirv(num_subgroups)] subgroups: u32,
            #[spirv(subgroup_local_invocation_id)] invocation: u32,
            #[spirv(spec_constant(id = 0, default = 8))] team: u32,
            #[spirv(spec_constant(id = 1, default = 1))] registers: u32,
            #[spirv(spec_constant(id = 3, default = 0))] format: u32,
            #[spirv(push_constant)] p: &SddmmParams<$t>,
            #[spirv(storage_buffer, descriptor_set = 0, binding = 0)] tasks: &[UVec4],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 1)] idx4: &[UVec4],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 2)] val: &[$t],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 3)] c: &[$m],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 4)] b: &[$m],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 5)] out: &mut [$t],
        ) {
            let lanes = Subgroup::new(invocation, team);
            let task = lanes.task(linear(workgroup, workgroups) * subgroups + subgroup, subgroups);
            let (c, b) = (blocks!(read $m, c, format), blocks!(read $m, b, format));
            sddmm::body(Shape { team, registers }, p, task, lanes, tasks, idx4, val, c, b, out);
        }

        /// [`fusedmm::body`] on the device.
        #[spirv(compute(threads(128)))]
        pub fn fusedmm(
            #[spirv(workgroup_id)] workgroup: UVec3,
            #[spirv(num_workgroups)] workgroups: UVec3,
            #[spirv(subgroup_id)] subgroup: u32,
            #[spirv(num_subgroups)] subgroups: u32,
            #[spirv(subgroup_local_invocation_id)] invocation: u32,
            #[spirv(spec_constant(id = 0, default = 8))] team: u32,
            #[spirv(spec_constant(id = 1, default = 1))] registers: u32,
            #[spirv(spec_constant(id = 2, default = 0))] variant: u32,
            #[spirv(spec_constant(id = 3, default = 0))] format: u32,
            #[spirv(push_constant)] p: &FusedParams<$t>,
            #[spirv(storage_buffer, descriptor_set = 0, binding = 0)] tasks: &[UVec4],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 1)] idx4: &[UVec4],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 2)] val: &[$t],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 3)] c: &[$m],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 4)] b: &[$m],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 5)] d: &[$m],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 6)] e: &mut [$m],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 7)] partial: &mut [$v],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 8)] stats: &mut [$t],
        ) {
            let lanes = Subgroup::new(invocation, team);
            let task = lanes.task(linear(workgroup, workgroups) * subgroups + subgroup, subgroups);
            let shape = Shape { team, registers };
            let (c, b, d) = (blocks!(read $m, c, format), blocks!(read $m, b, format), blocks!(read $m, d, format));
            let e = blocks!(write $m, e, format);
            fusedmm::body(shape, variant, p, task, lanes, tasks, idx4, val, c, b, d, e, partial, stats);
        }
    };
}

/// The other kernels.
macro_rules! entry_points {
    ($t:ident, $v:ident) => {
        /// [`fusedmm::apply`] on the device.
        #[spirv(compute(threads(128)))]
        pub fn edge(
            #[spirv(workgroup_id)] workgroup: UVec3,
            #[spirv(num_workgroups)] workgroups: UVec3,
            #[spirv(subgroup_id)] subgroup: u32,
            #[spirv(num_subgroups)] subgroups: u32,
            #[spirv(subgroup_local_invocation_id)] invocation: u32,
            #[spirv(spec_constant(id = 0, default = 8))] team: u32,
            #[spirv(spec_constant(id = 2, default = 0))] variant: u32,
            #[spirv(push_constant)] p: &FusedParams<$t>,
            #[spirv(storage_buffer, descriptor_set = 0, binding = 0)] tasks: &[UVec4],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 1)] val: &[$t],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 2)] scores: &mut [$t],
        ) {
            let lanes = Subgroup::new(invocation, team);
            let task = lanes.task(linear(workgroup, workgroups) * subgroups + subgroup, subgroups);
            fusedmm::apply::<$v, _>(variant, p, task, lanes, tasks, val, scores);
        }

        /// [`gather::body`] on the device.
        #[spirv(compute(threads(128)))]
        pub fn gather(
            #[spirv(workgroup_id)] workgroup: UVec3,
            #[spirv(num_workgroups)] workgroups: UVec3,
            #[spirv(local_invocation_index)] local: u32,
            #[spirv(push_constant)] n: &u32,
            #[spirv(storage_buffer, descriptor_set = 0, binding = 0)] order: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 1)] x: &[$t],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 2)] out: &mut [$t],
        ) {
            let i = linear(workgroup, workgroups) * WORKGROUP + local;
            gather::body(*n, i, order, x, out);
        }

        /// [`mttkrp::fibers`] on the device.
        #[spirv(compute(threads(128)))]
        pub fn mttkrp_fibers(
            #[spirv(workgroup_id)] workgroup: UVec3,
            #[spirv(num_workgroups)] workgroups: UVec3,
            #[spirv(local_invocation_index)] local: u32,
            #[spirv(spec_constant(id = 0, default = 8))] team: u32,
            #[spirv(spec_constant(id = 1, default = 1))] registers: u32,
            #[spirv(push_constant)] p: &MttkrpParams<$t>,
            #[spirv(storage_buffer, descriptor_set = 0, binding = 0)] tasks: &[UVec4],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 1)] order: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 2)] ptr: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 3)] table: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 4)] idx: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 5)] idx4: &[UVec4],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 6)] val: &[$t],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 7)] val4: &[$v],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 8)] factors: &[$v],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 9)] out: &mut [$v],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 10)] partial: &mut [$v],
        ) {
            let place = Place::new(linear(workgroup, workgroups), local, team);
            let shape = Shape { team, registers };
            let nonzeros = Nonzeros { idx, idx4, val, val4 };
            mttkrp::fibers(shape, p, place, workgroup.z, tasks, order, ptr, table, nonzeros, factors, out, partial);
        }

        /// [`mttkrp::nonzeros`] on the device.
        #[spirv(compute(threads(128)))]
        pub fn mttkrp_nonzeros(
            #[spirv(workgroup_id)] workgroup: UVec3,
            #[spirv(num_workgroups)] workgroups: UVec3,
            #[spirv(subgroup_id)] subgroup: u32,
            #[spirv(num_subgroups)] subgroups: u32,
            #[spirv(subgroup_local_invocation_id)] invocation: u32,
            #[spirv(spec_constant(id = 0, default = 8))] team: u32,
            #[spirv(spec_constant(id = 1, default = 1))] registers: u32,
            #[spirv(push_constant)] p: &MttkrpParams<$t>,
            #[spirv(storage_buffer, descriptor_set = 0, binding = 0)] tasks: &[UVec4],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 1)] order: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 2)] fiber_of: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 3)] table: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 4)] val: &[$t],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 5)] factors: &[$v],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 6)] out: &mut [$v],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 7)] partial: &mut [$v],
        ) {
            let lanes = Subgroup::new(invocation, team);
            let task = lanes.task(linear(workgroup, workgroups) * subgroups + subgroup, subgroups);
            let (shape, tile) = (Shape { team, registers }, workgroup.z);
            mttkrp::nonzeros(shape, p, task, lanes, tile, tasks, order, fiber_of, table, val, factors, out, partial);
        }

        /// [`mttkrp::blocks`] on the device.
        #[spirv(compute(threads(128)))]
        pub fn mttkrp_blocks(
            #[spirv(workgroup_id)] workgroup: UVec3,
            #[spirv(num_workgroups)] workgroups: UVec3,
            #[spirv(local_invocation_index)] local: u32,
            #[spirv(spec_constant(id = 0, default = 8))] team: u32,
            #[spirv(spec_constant(id = 1, default = 1))] registers: u32,
            #[spirv(push_constant)] p: &MttkrpParams<$t>,
            #[spirv(storage_buffer, descriptor_set = 0, binding = 0)] tasks: &[UVec4],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 1)] spread: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 2)] order: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 3)] ptr: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 4)] bases: &[UVec4],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 5)] offsets: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 6)] val: &[$t],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 7)] factors: &[$v],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 8)] out: &mut [$v],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 9)] partial: &mut [$v],
        ) {
            let place = Place::new(linear(workgroup, workgroups), local, team);
            let list = mttkrp::BlockList { spread, order, ptr, bases, offsets, val };
            mttkrp::blocks(Shape { team, registers }, p, place, workgroup.z, tasks, list, factors, out, partial);
        }

        /// [`elements::body`] on the device.
        #[spirv(compute(threads(128)))]
        pub fn elements(
            #[spirv(workgroup_id)] workgroup: UVec3,
            #[spirv(num_workgroups)] workgroups: UVec3,
            #[spirv(local_invocation_index)] local: u32,
            #[spirv(push_constant)] p: &MttkrpParams<$t>,
            #[spirv(storage_buffer, descriptor_set = 0, binding = 0)] tasks: &[UVec4],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 1)] ptr: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 2)] table: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 3)] idx: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 4)] val: &[$t],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 5)] factors: &[$t],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 6)] out: &mut [$t],
        ) {
            let i = linear(workgroup, workgroups) * WORKGROUP + local;
            elements::body(p, i, tasks, ptr, table, idx, val, factors, out);
        }

        /// [`ttv::body`] on the device.
        #[spirv(compute(threads(128)))]
        pub fn ttv(
            #[spirv(workgroup_id)] workgroup: UVec3,
            #[spirv(num_workgroups)] workgroups: UVec3,
            #[spirv(subgroup_id)] subgroup: u32,
            #[spirv(num_subgroups)] subgroups: u32,
            #[spirv(subgroup_local_invocation_id)] invocation: u32,
            #[spirv(spec_constant(id = 0, default = 8))] team: u32,
            #[spirv(push_constant)] count: &u32,
            #[spirv(storage_buffer, descriptor_set = 0, binding = 0)] tasks: &[UVec4],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 1)] idx: &[u32],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 2)] val: &[$t],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 3)] v: &[$t],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 4)] y: &mut [$t],
        ) {
            let lanes = Subgroup::new(invocation, team);
            let task = lanes.task(linear(workgroup, workgroups) * subgroups + subgroup, subgroups);
            ttv::body(*count, task, lanes, tasks, idx, val, v, y);
        }

        /// [`elementwise::body`] on the device.
        #[spirv(compute(threads(128)))]
        pub fn elementwise(
            #[spirv(workgroup_id)] workgroup: UVec3,
            #[spirv(num_workgroups)] workgroups: UVec3,
            #[spirv(local_invocation_index)] local: u32,
            #[spirv(spec_constant(id = 2, default = 0))] variant: u32,
            #[spirv(push_constant)] p: &ElementwiseParams<$t>,
            #[spirv(storage_buffer, descriptor_set = 0, binding = 0)] x: &[$t],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 1)] y: &[$t],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 2)] z: &mut [$t],
        ) {
            let i = linear(workgroup, workgroups) * WORKGROUP + local;
            elementwise::body(variant, p.pairwise != 0, p.count, i, p.scalar, x, y, z);
        }

        /// [`ceilings::stream`] or [`ceilings::registers`] on the device.
        #[spirv(compute(threads(128)))]
        pub fn ceilings(
            #[spirv(workgroup_id)] workgroup: UVec3,
            #[spirv(local_invocation_index)] local: u32,
            #[spirv(spec_constant(id = 2, default = 0))] variant: u32,
            #[spirv(push_constant)] p: &CeilingParams<$t>,
            #[spirv(storage_buffer, descriptor_set = 0, binding = 0)] x: &[$v],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 1)] y: &[$v],
            #[spirv(storage_buffer, descriptor_set = 0, binding = 2)] z: &mut [$v],
        ) {
            if variant == REGISTERS {
                ceilings::registers(p, workgroup.x * WORKGROUP + local, z);
            } else {
                ceilings::stream(variant, p, workgroup.x, local, x, y, z);
            }
        }
    };
}

/// Kernels with atomic addition of 32-bit floats, which not every device has.
#[cfg(feature = "atomic")]
pub mod atomic {
    use super::*;
    use spirv_std::glam::Vec4;

    /// The output.
    struct Shared<'a>(&'a mut [f32]);

    impl mttkrp::Add<f32> for Shared<'_> {
        #[inline(always)]
        fn add(&mut self, i: u32, x: f32) {
            use spirv_std::arch::{IndexUnchecked, atomic_f_add};
            use spirv_std::memory::{Scope, Semantics};
            // SAFETY: the host has checked the pattern against the output's rows; no order is needed among sums.
            unsafe {
                let element = self.0.index_unchecked_mut(i as usize);
                atomic_f_add::<f32, { Scope::Device as u32 }, { Semantics::NONE.bits() }>(element, x);
            }
        }
    }

    /// [`mttkrp::atomic`] on the device.
    #[spirv(compute(threads(128)))]
    pub fn mttkrp_atomic(
        #[spirv(workgroup_id)] workgroup: UVec3,
        #[spirv(num_workgroups)] workgroups: UVec3,
        #[spirv(local_invocation_index)] local: u32,
        #[spirv(spec_constant(id = 0, default = 8))] team: u32,
        #[spirv(spec_constant(id = 1, default = 1))] registers: u32,
        #[spirv(push_constant)] p: &MttkrpParams<f32>,
        #[spirv(storage_buffer, descriptor_set = 0, binding = 0)] table: &[u32],
        #[spirv(storage_buffer, descriptor_set = 0, binding = 1)] val: &[f32],
        #[spirv(storage_buffer, descriptor_set = 0, binding = 2)] factors: &[Vec4],
        #[spirv(storage_buffer, descriptor_set = 0, binding = 3)] out: &mut [f32],
    ) {
        let place = Place::new(linear(workgroup, workgroups), local, team);
        let mut out = Shared(out);
        mttkrp::atomic(Shape { team, registers }, p, place, workgroup.z, table, val, factors, &mut out);
    }
}

/// The kernels on f32.
#[cfg(feature = "single")]
pub mod single {
    use super::*;
    use spirv_std::glam::Vec4;

    dense_entry_points!(f32, Vec4, Vec4);
    entry_points!(f32, Vec4);
}

/// The kernels on f32 whose dense operands store bf16 or f16.
#[cfg(feature = "half")]
pub mod half {
    use super::*;
    use spirv_std::glam::Vec4;

    dense_entry_points!(f32, Vec4, UVec2);
}

/// The kernels on f64.
#[cfg(feature = "double")]
pub mod double {
    use super::*;
    use spirv_std::glam::DVec4;

    dense_entry_points!(f64, DVec4, DVec4);
    entry_points!(f64, DVec4);
}

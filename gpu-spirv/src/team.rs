//! Teams: the lanes that work on one task, and how they exchange values.

use sparsimd_gpu_abi::WORKGROUP;
use spirv_std::glam::UVec3;

use crate::block::Element;

/// Number of workgroups before this one; the host folds long dispatches over x and y.
#[inline(always)]
pub fn linear(workgroup: UVec3, workgroups: UVec3) -> u32 {
    workgroup.y * workgroups.x + workgroup.x
}

/// Where an invocation stands when teams need no exchange: any `size` neighbours of a workgroup are a team.
#[derive(Clone, Copy)]
pub struct Place {
    /// Which team of the whole dispatch.
    pub team: u32,
    /// Which lane of the team.
    pub lane: u32,
}

impl Place {
    /// The place of invocation `local` of workgroup number `group`.
    #[inline(always)]
    pub fn new(group: u32, local: u32, size: u32) -> Self {
        Self { team: group * (WORKGROUP / size) + local / size, lane: local % size }
    }
}

/// Lanes that exchange values. All lanes of a subgroup call each method together.
pub trait Team: Copy {
    /// Which lane of the team.
    fn lane(self) -> u32;
    /// Number of lanes.
    fn size(self) -> u32;
    /// The value of the lane whose number differs by the bits of `mask`, which is below the team's size.
    fn shuffle_xor<E: Element>(self, x: E, mask: u32) -> E;
    /// The value of lane `lane`.
    fn value_of<E: Element>(self, x: E, lane: u32) -> E;
    /// The word of lane `lane`.
    fn word_of(self, x: u32, lane: u32) -> u32;
    /// The largest value of all teams that run in step with this one.
    fn in_step_max(self, n: u32) -> u32;
}

/// A part of a hardware subgroup.
#[cfg(target_arch = "spirv")]
#[derive(Clone, Copy)]
pub struct Subgroup {
    lane: u32,
    base: u32,
    size: u32,
}

#[cfg(target_arch = "spirv")]
impl Subgroup {
    /// The team of `size` lanes around lane `invocation` of the subgroup.
    #[inline(always)]
    pub fn new(invocation: u32, size: u32) -> Self {
        let lane = invocation & (size - 1);
        Self { lane, base: invocation - lane, size }
    }

    /// Which team of the whole dispatch this is, in subgroup number `subgroup` of it; each workgroup has `subgroups`.
    #[inline(always)]
    pub fn task(self, subgroup: u32, subgroups: u32) -> u32 {
        // The host asks for full subgroups, so all have the same size.
        let teams = WORKGROUP / subgroups / self.size;
        subgroup * teams + self.base / self.size
    }
}

#[cfg(target_arch = "spirv")]
impl Team for Subgroup {
    #[inline(always)]
    fn lane(self) -> u32 {
        self.lane
    }
    #[inline(always)]
    fn size(self) -> u32 {
        self.size
    }
    #[inline(always)]
    fn shuffle_xor<E: Element>(self, x: E, mask: u32) -> E {
        x.hardware_shuffle_xor(mask)
    }
    #[inline(always)]
    fn value_of<E: Element>(self, x: E, lane: u32) -> E {
        x.hardware_shuffle(self.base + lane)
    }
    #[inline(always)]
    fn word_of(self, x: u32, lane: u32) -> u32 {
        spirv_std::arch::subgroup_shuffle(x, self.base + lane)
    }
    #[inline(always)]
    fn in_step_max(self, n: u32) -> u32 {
        spirv_std::arch::subgroup_u_max(n)
    }
}

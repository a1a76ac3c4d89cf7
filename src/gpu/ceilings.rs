//! What a device sustains, measured: the roofs over its operations.

use sparsimd_gpu_abi::{BLOCK, CeilingParams, WORKGROUP, ceiling};
use sparsimd_gpu_host::Buffer;

use super::kernels::CEILINGS;
use super::{DeviceScalar, Gpu};
use crate::error::{Error, Result};
use crate::plan::Team;

/// Workgroups of every measurement: some for each place that a large device has for one.
const GROUPS: usize = 2048;
/// Bytes of x and of y that all workgroups read in turns: more than a core's own cache has, and less than the cache that all share.
const SHARED: usize = 512 << 10;
/// Bytes of each array of the farthest level: more than caches have.
const FAR: usize = 256 << 20;
/// Seconds that a measurement takes at least: thousands of times what starting it takes.
const ENOUGH: f64 = 0.02;
/// Of so many measurements the best counts.
const REPEATS: usize = 5;

/// What one level of a device's memory delivers, in GB/s, all reads and writes counted.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceLevel {
    /// `"near"`: what a workgroup reads again and again; `"shared"`: what all workgroups read in turns; `"memory"`.
    pub name: &'static str,
    /// Bytes of the arrays that are read: of a workgroup (near), of all (shared, memory).
    pub bytes: usize,
    /// z = x.
    pub copy: f64,
    /// z = x + y.
    pub add: f64,
    /// z = x + s y.
    pub multiply_add: f64,
}

/// What a device sustains with one element type.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceCeilings {
    /// GFLOP/s of multiply-adds in registers, two operations each.
    pub multiply_add: f64,
    /// The levels of memory, nearest first.
    pub levels: Vec<DeviceLevel>,
    /// Whether the device's own clock timed them; else the processor's did, from the start to the end of a call.
    pub device_clock: bool,
}

/// The arrays, and where the seconds of a run come from.
struct Measurement<'a, T: DeviceScalar> {
    gpu: &'a Gpu,
    x: Buffer<T>,
    y: Buffer<T>,
    z: Buffer<T>,
    device_clock: bool,
}

impl Gpu {
    /// Measures them on elements of `T`, in some seconds. Other work on the device lowers the result.
    ///
    /// # Errors
    /// [`Error::Device`] when the device fails or its memory is too small; [`Error::Unavailable`] when it has no f64 and `T` is.
    #[inline(never)]
    pub fn ceilings<T: DeviceScalar>(&self) -> Result<DeviceCeilings> {
        let block = BLOCK * size_of::<T>();
        // A block for each lane: the smallest slice that uses all of them.
        let near = WORKGROUP as usize;
        let room = (self.shape::<T>().max_len * size_of::<T>()).min((self.memory_left() / 4) as usize).min(FAR);
        let far = (room / block / GROUPS).max(near);
        let len = GROUPS * far * BLOCK;
        let array = |name| Buffer::<T>::new(self.device(), len, name);
        let (x, y, z) = (array("x")?, array("y")?, array("z")?);
        let mut measured = Measurement { gpu: self, x, y, z, device_clock: true };
        measured.clear()?;
        let slices = (SHARED / block / near).max(2);
        let levels = [
            ("near", 2 * near * block, near, GROUPS, 0),
            ("shared", 2 * near * slices * block, near, slices, 1),
            ("memory", 2 * GROUPS * far * block, far, GROUPS, 0),
        ];
        let levels = levels.into_iter().map(|(name, bytes, slice, slices, turn)| {
            let mut rate = |variant, arrays: usize| {
                let p = CeilingParams {
                    scale: T::from_f64(0.5),
                    shift: T::ONE,
                    slice: slice as u32,
                    slices: slices as u32,
                    turn,
                    passes: 1,
                };
                measured.rate(variant, p, (arrays * GROUPS * slice * block) as f64)
            };
            let (copy, add) = (rate(ceiling::COPY, 2)?, rate(ceiling::ADD, 3)?);
            Ok(DeviceLevel { name, bytes, copy, add, multiply_add: rate(ceiling::MULTIPLY_ADD, 3)? })
        });
        let levels = levels.collect::<Result<_>>()?;
        let p = CeilingParams { scale: T::from_f64(0.5), shift: T::ONE, slice: 0, slices: 1, turn: 0, passes: 1 };
        let flops = 2 * ceiling::CHAINS as usize * BLOCK * WORKGROUP as usize * GROUPS;
        let multiply_add = measured.rate(ceiling::REGISTERS, p, flops as f64)?;
        Ok(DeviceCeilings { multiply_add, levels, device_clock: measured.device_clock })
    }
}

impl<T: DeviceScalar> Measurement<'_, T> {
    /// Zeros in all arrays: what memory happens to hold may be numbers that are slow to compute with.
    fn clear(&mut self) -> Result<()> {
        let (gpu, x, y, z) = (self.gpu, &mut self.x, &mut self.y, &mut self.z);
        gpu.state().stream.record(|r| {
            [x, y, z].into_iter().for_each(|array| r.clear(array));
            Ok::<_, Error>(())
        })?;
        Ok(())
    }

    /// 10^9 units a second, where a pass of all workgroups has so many `units`.
    fn rate(&mut self, variant: u32, mut p: CeilingParams<T>, units: f64) -> Result<f64> {
        let mut seconds = self.seconds(variant, p)?;
        while seconds < ENOUGH && p.passes < 1 << 24 {
            // At most sixteen times as many at once: the first runs take longer than others.
            let wanted = (f64::from(p.passes) * 1.2 * ENOUGH / seconds).ceil();
            p.passes = (wanted as u32).clamp(p.passes + 1, p.passes * 16);
            seconds = self.seconds(variant, p)?;
        }
        for _ in 1..REPEATS {
            seconds = seconds.min(self.seconds(variant, p)?);
        }
        Ok(units * f64::from(p.passes) / seconds / 1e9)
    }

    /// Of one run.
    fn seconds(&mut self, variant: u32, p: CeilingParams<T>) -> Result<f64> {
        let gpu = self.gpu;
        let team = Team { lanes: 4, registers: 1 };
        let kernel = gpu.shared.kernels.get::<T, CeilingParams<T>>(CEILINGS, team, variant)?;
        let (x, y, z) = (self.x.bind(), self.y.bind(), self.z.bind_mut());
        let start = std::time::Instant::now();
        let seconds = gpu.state().stream.record(|r| {
            // SAFETY: x and y have `slices` slices, z has one for each workgroup, and a block for each lane.
            unsafe { r.launch(&kernel, &[x, y, z], &p, [GROUPS as u32, 1, 1]) }?;
            Ok::<_, Error>(())
        })?;
        self.device_clock &= seconds.is_some();
        // A clock that did not move would make the rate infinite.
        Ok(seconds.unwrap_or_else(|| start.elapsed().as_secs_f64()).max(1e-9))
    }
}

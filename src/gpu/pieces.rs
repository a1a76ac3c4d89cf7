//! Dense operands by pieces that one launch takes, and the sum of rows that launches leave in parts.

use std::ops::Range;

use sparsimd_gpu_abi::{MttkrpParams, SddmmParams, SpmmParams, WORKGROUP};
use sparsimd_gpu_host::{Binding, Buffer, Device, Pipeline, Recorder};

use super::kernels::groups;
use super::operands::GpuMat;
use super::{DeviceScalar, DeviceStored};
use crate::error::Result;

/// Blocks that lie in one panel of an operand and in one of the result (or of another operand), as kernels find them.
pub(super) struct Piece {
    /// Which panel of the operand.
    pub(super) b: usize,
    /// Which panel of the result.
    pub(super) c: usize,
    pub(super) blocks: Range<usize>,
    pub(super) b_stride: u32,
    pub(super) b_offset: u32,
    pub(super) c_stride: u32,
    pub(super) c_offset: u32,
    /// Elements of the result that count in the last block.
    pub(super) tail: u32,
}

/// All pieces, of at most `most` blocks each (or one).
pub(super) fn pieces<D: DeviceStored>(b: &GpuMat<D>, c: &GpuMat<D>, most: usize) -> Vec<Piece> {
    let (mut made, most) = (Vec::new(), most.max(1));
    for (ib, pb) in b.parts().iter().enumerate() {
        for (ic, pc) in c.parts().iter().enumerate() {
            let (start, end) = (pb.blocks.start.max(pc.blocks.start), pb.blocks.end.min(pc.blocks.end));
            made.extend((start..end.max(start)).step_by(most).map(|s| {
                let blocks = s..(s + most).min(end);
                Piece {
                    b: ib,
                    c: ic,
                    b_stride: pb.blocks.len() as u32,
                    b_offset: (s - pb.blocks.start) as u32,
                    c_stride: pc.blocks.len() as u32,
                    c_offset: (s - pc.blocks.start) as u32,
                    tail: c.tail(blocks.end),
                    blocks,
                }
            }));
        }
    }
    made
}

/// Blocks of the widest piece.
pub(super) fn widest(pieces: &[Piece]) -> usize {
    pieces.iter().map(|p| p.blocks.len()).max().unwrap_or(0)
}

impl Piece {
    /// The constants of a product on this piece.
    pub(super) fn product<T: DeviceScalar>(&self, alpha: T, beta: T, tasks: usize) -> SpmmParams<T> {
        SpmmParams {
            alpha,
            beta,
            tasks: tasks as u32,
            width: self.blocks.len() as u32,
            b_stride: self.b_stride,
            b_offset: self.b_offset,
            c_stride: self.c_stride,
            c_offset: self.c_offset,
            read_c: u32::from(beta != T::ZERO),
            tail: self.tail,
        }
    }

    /// The constants of MTTKRP, or of TTM by elements, on this piece; tasks, level to skip and list are the caller's.
    pub(super) fn tensor<T: DeviceScalar>(&self, levels: usize) -> MttkrpParams<T> {
        MttkrpParams {
            zero: T::ZERO,
            one: T::ONE,
            tasks: 0,
            width: self.blocks.len() as u32,
            f_stride: self.b_stride,
            f_offset: self.b_offset,
            c_stride: self.c_stride,
            c_offset: self.c_offset,
            levels: levels as u32,
            skip: 0,
            ordered: 0,
            tail: self.tail,
        }
    }

    /// The constants of dot products on this piece, C being the second matrix.
    pub(super) fn sampled<T: DeviceScalar>(&self, tasks: usize, scaled: bool, accumulate: bool) -> SddmmParams<T> {
        SddmmParams {
            alpha: T::ONE,
            beta: T::ZERO,
            tasks: tasks as u32,
            width: self.blocks.len() as u32,
            c_stride: self.c_stride,
            c_offset: self.c_offset,
            b_stride: self.b_stride,
            b_offset: self.b_offset,
            scaled: u32::from(scaled),
            accumulate: u32::from(accumulate),
        }
    }
}

/// Records the sum of the partial rows of `cut`, each (row, first slot, slots, 0), by the kernel `reduce_rows`: out = alpha sum + beta
/// out with the constants of `p`. `operands` are the partial rows, the numbers beside them (softmax; else anything) and out.
///
/// # Safety
/// Launches recorded before write each slot of `cut`, in partial rows of `p.width` blocks; its rows, and the blocks that `p` names of
/// them, lie in `out`.
pub(super) unsafe fn reduce_rows<'b, T: DeviceScalar>(
    r: &mut Recorder<'_, 'b>,
    device: &Device,
    kernel: &'b Pipeline,
    cut: &'b Buffer<[u32; 4]>,
    p: SpmmParams<T>,
    operands: [Binding<'b>; 3],
) -> Result<()> {
    let [partial, stats, out] = operands;
    let p = SpmmParams { tasks: cut.len() as u32, ..p };
    let groups = groups(device, cut.len() * p.width as usize, WORKGROUP as usize, 1);
    r.barrier();
    // SAFETY: the caller's promise; the barrier makes what the launches wrote visible.
    unsafe { r.launch(kernel, &[cut.bind(), partial, stats, out], &p, groups) }?;
    // The next launch may write the same partial rows.
    r.barrier();
    Ok(())
}

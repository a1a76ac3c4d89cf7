//! Dense operands in memory: blocks as they are computed with, or of halves (bf16, f16) that loads widen and stores round.

use sparsimd_gpu_abi::format::BF16;
use spirv_std::glam::{UVec2, Vec4};

use crate::block::{Block, at, put};

/// Blocks to read.
pub trait Blocks: Copy {
    /// What they are computed with.
    type Block: Block;
    /// Block number `i`.
    fn get(self, i: u32) -> Self::Block;
}

/// Blocks to write.
pub trait BlocksMut {
    /// What they are computed with.
    type Block: Block;
    /// Block number `i`.
    fn get(&self, i: u32) -> Self::Block;
    /// Block number `i` = `x`, rounded to what is stored.
    fn set(&mut self, i: u32, x: Self::Block);
}

impl<V: Block> Blocks for &[V] {
    type Block = V;
    #[inline(always)]
    fn get(self, i: u32) -> V {
        at(self, i)
    }
}

impl<V: Block> BlocksMut for [V] {
    type Block = V;
    #[inline(always)]
    fn get(&self, i: u32) -> V {
        at(self, i)
    }
    #[inline(always)]
    fn set(&mut self, i: u32, x: V) {
        put(self, i, x);
    }
}

/// Blocks of four halves, two to a word, the first in the lower bits: no feature of 16-bit memory is asked of a device.
#[derive(Clone, Copy)]
pub struct Halves<'a> {
    /// A block is two words.
    pub words: &'a [UVec2],
    /// [`BF16`], else f16.
    pub format: u32,
}

/// [`Halves`] to write.
pub struct HalvesMut<'a> {
    /// A block is two words.
    pub words: &'a mut [UVec2],
    /// As [`Halves::format`].
    pub format: u32,
}

impl Blocks for Halves<'_> {
    type Block = Vec4;
    #[inline(always)]
    fn get(self, i: u32) -> Vec4 {
        widen(self.format, at(self.words, i))
    }
}

impl BlocksMut for HalvesMut<'_> {
    type Block = Vec4;
    #[inline(always)]
    fn get(&self, i: u32) -> Vec4 {
        widen(self.format, at(self.words, i))
    }
    #[inline(always)]
    fn set(&mut self, i: u32, x: Vec4) {
        put(self.words, i, narrow(self.format, x));
    }
}

/// The numbers of four halves.
#[inline(always)]
pub fn widen(format: u32, words: UVec2) -> Vec4 {
    if format == BF16 {
        let (low, high) = (words << 16u32, words & UVec2::splat(0xffff_0000));
        Vec4::new(f32::from_bits(low.x), f32::from_bits(high.x), f32::from_bits(low.y), f32::from_bits(high.y))
    } else {
        let (a, b) = (unpack_f16(words.x), unpack_f16(words.y));
        Vec4::new(a.0, a.1, b.0, b.1)
    }
}

/// The halves that are nearest to four numbers; of two, the even one.
#[inline(always)]
pub fn narrow(format: u32, x: Vec4) -> UVec2 {
    if format == BF16 {
        UVec2::new(to_bf16(x.x) | to_bf16(x.y) << 16, to_bf16(x.z) | to_bf16(x.w) << 16)
    } else {
        UVec2::new(to_f16(x.x) | to_f16(x.y) << 16, to_f16(x.z) | to_f16(x.w) << 16)
    }
}

/// bf16 is the upper half of an f32: what is cut off rounds it.
#[inline(always)]
fn to_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        // A NaN whose bits were all in the lower half must stay one.
        return bits >> 16 | 0x40;
    }
    (bits + 0x7fff + (bits >> 16 & 1)) >> 16
}

/// By integer arithmetic: how a device's own conversion rounds is not specified.
#[inline(always)]
fn to_f16(x: f32) -> u32 {
    let bits = x.to_bits();
    let (sign, magnitude) = (bits >> 16 & 0x8000, bits & 0x7fff_ffff);
    let rounded = if magnitude > 0x7f80_0000 {
        0x7e00
    } else if magnitude >= 0x477f_f000 {
        // 65520 and more are nearer to 2^16, which is infinite.
        0x7c00
    } else if magnitude >= 0x3880_0000 {
        // From 2^-14 on: 13 bits less of mantissa, and the exponent's bias is less by 112.
        (magnitude + 0xfff + (magnitude >> 13 & 1) - (112 << 23)) >> 13
    } else {
        // Subnormal: the last bit of a sum with 0.5 is 2^-24, that of these halves.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()
    };
    sign | rounded
}

/// The two halves of a word, the lower one first.
#[cfg(target_arch = "spirv")]
#[inline(always)]
fn unpack_f16(word: u32) -> (f32, f32) {
    let pair: spirv_std::glam::Vec2 = spirv_std::float::f16x2_to_vec2(word);
    (pair.x, pair.y)
}

/// The two halves of a word, the lower one first: what the device's instruction gives.
#[cfg(not(target_arch = "spirv"))]
fn unpack_f16(word: u32) -> (f32, f32) {
    let one = |half: u32| {
        let (sign, exponent, mantissa) = (half >> 15 << 31, half >> 10 & 0x1f, half & 0x3ff);
        let magnitude = match exponent {
            0 => mantissa as f32 / (1 << 24) as f32,
            0x1f => f32::from_bits(0x7f80_0000 | mantissa << 13),
            _ => f32::from_bits((exponent + 112) << 23 | mantissa << 13),
        };
        f32::from_bits(sign | magnitude.to_bits())
    };
    (one(word & 0xffff), one(word >> 16))
}

//! What memory and the caches deliver: passes over an array that do next to nothing with it, to be timed.
//!
//! ```text
//! read     s += a_i                     all of a, in order
//! triad    a_i = b_i + m c_i            STREAM's
//! gather   s += line[index_k]           whole 64-byte lines in any order, independent of each other
//! chase    i = next_i                   each address known only when the last load has arrived: latency
//! ```

use pulp::{Simd, WithSimd};
use sparsimd::{Arch, Number, Scalar};

/// Independent sums: the latency of an addition (4 cycles) times the loads per cycle (2), twice over.
const SUMS: usize = 16;
/// f32 elements of a 64-byte line.
const LINE: usize = 16;

struct Read<'a> {
    data: &'a [f32],
}

impl WithSimd for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let lanes = f32::lanes::<S>();
        let mut sums = [f32::splat(simd, 0.0); SUMS];
        for block in self.data.chunks_exact(SUMS * lanes) {
            for (k, sum) in sums.iter_mut().enumerate() {
                // SAFETY: a block has SUMS * lanes elements.
                let x = unsafe { f32::load(simd, block.as_ptr().add(k * lanes)) };
                *sum = f32::vadd(simd, *sum, x);
            }
        }
        total(simd, sums)
    }
}

/// The sum of all lanes of all of `sums`, so that the compiler keeps each.
#[inline(always)]
fn total<S: Simd, const K: usize>(simd: S, sums: [<f32 as Number>::Vector<S>; K]) -> f32 {
    let mut all = sums[0];
    for &sum in &sums[1..] {
        all = f32::vadd(simd, all, sum);
    }
    f32::reduce_sum(simd, all)
}

struct Triad<'a> {
    a: &'a mut [f32],
    b: &'a [f32],
    c: &'a [f32],
    m: f32,
}

impl WithSimd for Triad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        /// Vectors per turn of the loop.
        const STEP: usize = 4;
        let width = STEP * f32::lanes::<S>();
        let m = f32::splat(simd, self.m);
        let (a, b, c) = (self.a.as_mut_ptr(), self.b.as_ptr(), self.c.as_ptr());
        let end = self.a.len().min(self.b.len()).min(self.c.len()) / width * width;
        let mut at = 0;
        // By hand: the iterators of three zipped slices are not inlined, and a call for each turn takes longer than its stores.
        while at < end {
            for k in 0..STEP {
                let at = at + k * f32::lanes::<S>();
                // SAFETY: all three have `end` elements, a multiple of STEP * lanes.
                unsafe {
                    let sum = f32::vmul_add(simd, m, f32::load(simd, c.add(at)), f32::load(simd, b.add(at)));
                    f32::store(simd, a.add(at), sum);
                }
            }
            at += width;
        }
    }
}

struct Gather<'a> {
    data: &'a [f32],
    lines: &'a [u32],
}

impl WithSimd for Gather<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        /// Lines per turn of the loop, each with its own sum.
        const STEP: usize = 8;
        let lanes = f32::lanes::<S>();
        let count = self.data.len() / LINE;
        let mut sums = [f32::splat(simd, 0.0); STEP];
        for block in self.lines.chunks_exact(STEP) {
            for (sum, &line) in sums.iter_mut().zip(block) {
                debug_assert!((line as usize) < count);
                let start = (line as usize).min(count - 1) * LINE;
                for at in (0..LINE).step_by(lanes) {
                    // SAFETY: the line's number is below the number of whole lines, and lanes divides a line.
                    let x = unsafe { f32::load(simd, self.data.as_ptr().add(start + at)) };
                    *sum = f32::vadd(simd, *sum, x);
                }
            }
        }
        total(simd, sums)
    }
}

/// Reads all of `data` once (but for a tail shorter than 16 registers), in order.
pub fn read_pass(arch: Arch, data: &[f32]) -> f32 {
    arch.dispatch(Read { data })
}

/// a = b + m c for the elements that all three have (but for a tail shorter than 4 registers).
pub fn triad_pass(arch: Arch, a: &mut [f32], b: &[f32], c: &[f32], m: f32) {
    arch.dispatch(Triad { a, b, c, m });
}

/// Reads the 64-byte lines of `data` that `lines` lists (but for a tail of fewer than 8); numbers beyond the last line
/// mean the last. Nothing to do when `data` has no whole line.
pub fn gather_pass(arch: Arch, data: &[f32], lines: &[u32]) -> f32 {
    if data.len() < LINE { 0.0 } else { arch.dispatch(Gather { data, lines }) }
}

/// Follows `next` for `steps` steps from `start`, and returns where that leads: the element at `i` holds the place of the
/// next one. Ends early at a place that is out of range.
pub fn chase_pass(next: &[u32], start: u32, steps: usize) -> u32 {
    let mut at = start;
    for _ in 0..steps {
        match next.get(at as usize) {
            Some(&to) => at = to,
            None => break,
        }
    }
    at
}

/// `steps` dependent steps of 4 cycles on x86-64 processors since 2008: a 64-bit multiplication (3) of the value by
/// itself with the lowest bit set (1). Measures the clock.
pub fn clock_pass(steps: u64) -> u64 {
    let mut x = core::hint::black_box(3u64);
    for _ in 0..steps {
        x = x.wrapping_mul(x | 1);
    }
    x
}

#[cfg(test)]
mod tests {
    use super::{chase_pass, gather_pass, read_pass, triad_pass};
    use sparsimd::Arch;

    #[test]
    fn passes_touch_what_they_say() {
        let data: Vec<f32> = (0..4096).map(|i| (i % 7) as f32).collect();
        let sum: f32 = data.iter().sum();
        for arch in Arch::available() {
            assert_eq!(read_pass(arch, &data), sum);
            let all: Vec<u32> = (0..256).rev().collect();
            assert_eq!(gather_pass(arch, &data, &all), sum);
            assert_eq!(gather_pass(arch, &data[..32], &[1; 8]), 8.0 * data[16..32].iter().sum::<f32>());
            let mut a = vec![0.0; 4096];
            triad_pass(arch, &mut a, &data, &data, 2.0);
            assert!(a.iter().zip(&data).all(|(a, b)| *a == 3.0 * b));
            assert_eq!(read_pass(arch, &[]) + gather_pass(arch, &[1.0; 15], &[0; 8]), 0.0);
        }
        assert_eq!(chase_pass(&[2, 9, 4, 9, 0, 9], 0, 3), 0);
        assert_eq!(chase_pass(&[1, 2, 0], 0, 2), 2);
        assert_eq!(chase_pass(&[7], 0, 100), 7);
    }
}

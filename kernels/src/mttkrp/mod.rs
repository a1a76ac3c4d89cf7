//! MTTKRP: `out[i_n] += x * prod_{m != n} factor_m[i_m]` over the nonzeros `x` at `(i_0, i_1, ...)` of one task.
//!
//! One kernel per kind of traversal: `entries` for coordinate lists, `blocks` for HiCOO, `csf` for trees of fibers, `tiled`
//! for rows of one output mode re-laid in tiles, `joint` for all modes at once. In all of them the rank lies in registers: a *panel* of
//! up to 8 registers of columns is carried through the whole traversal, and a rank of more columns takes more traversals.

mod blocks;
mod csf;
mod entries;
mod joint;
mod linear;
mod tiled;

use pulp::Simd;

use crate::prefetch::prefetch_row_l2;
use crate::stored::Vector;
use crate::{LINE, MAX_ORDER, Number, Scalar, Stored, prefetch_l1};

pub use blocks::{BlocksView, mttkrp_blocks};
pub use csf::{CsfView, mttkrp_csf};
pub use entries::{EntriesView, mttkrp_entries};
pub use joint::{JointOperands, JointView, mttkrp_joint};
pub use linear::{extract_coordinates, extract_coordinates_wide};
pub use tiled::{OffsetsView, Run, TILED_MOST_DISTANCE, TILED_PADDING, Tile, TiledView, Write, mttkrp_tiled};

/// The dense operands of one task. Rows of all factors and of the output are `stride` elements apart, which is a whole
/// number of registers of the instruction set in use; so every kernel works on whole registers, without masks.
///
/// Factors may store bf16 or f16, which loads widen to f32; the output is what they are computed with.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a, D: Stored> {
    /// Row 0 of the factor of each mode; that of the output's mode is not read.
    pub factors: &'a [*const D],
    /// Elements from row to row.
    pub stride: usize,
    /// The first column that is computed, and one past the last: whole registers, inside the stride.
    pub columns: (usize, usize),
    /// Where row 0 of the output would be; only the rows that the task's nonzeros name are touched.
    pub out: *mut D::Scalar,
    /// Nonzeros between the one computed and the one whose rows are prefetched; 0 for no prefetch.
    pub prefetch_distance: usize,
}

/// A traversal that computes `G` registers of columns from `column` on.
trait Panel<T: Scalar> {
    /// # Safety
    /// As the public function of the traversal; the columns are inside the stride.
    unsafe fn panel<S: Simd, const G: usize>(&self, simd: S, column: usize);
}

/// The columns from the first to the one before the second, in as few traversals as the registers allow.
///
/// # Safety
/// As [`Panel::panel`]; they are a whole number of registers.
#[inline(always)]
unsafe fn panels<S: Simd, T: Scalar, P: Panel<T>>(simd: S, (first, end): (usize, usize), traversal: &P) {
    let lanes = T::lanes::<S>();
    let mut column = first;
    while column < end {
        let left = (end - column) / lanes;
        // SAFETY: the caller's promise; `column` stays inside.
        unsafe {
            // Sums of a fiber and of a row live side by side: 2 x 8 registers need 32.
            let registers = if const { S::REGISTER_COUNT >= 32 } && left >= 8 {
                traversal.panel::<S, 8>(simd, column);
                8
            } else if left >= 4 {
                traversal.panel::<S, 4>(simd, column);
                4
            } else if const { size_of::<T::Vector<S>>() > size_of::<T>() } && left >= 2 {
                traversal.panel::<S, 2>(simd, column);
                2
            } else {
                traversal.panel::<S, 1>(simd, column);
                1
            };
            column += registers * lanes;
        }
    }
}

/// `G` registers of zeros.
#[inline(always)]
fn zeros<S: Simd, T: Scalar, const G: usize>(simd: S) -> [T::Vector<S>; G] {
    [T::splat(simd, T::ZERO); G]
}

/// The `G` registers at `p`.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn load<S: Simd, D: Stored, const G: usize>(simd: S, p: *const D) -> [Vector<D, S>; G] {
    let mut row = zeros::<S, D::Scalar, G>(simd);
    for (g, register) in row.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *register = unsafe { D::read(simd, p.add(g * D::Scalar::lanes::<S>())) };
    }
    row
}

/// `p[..] = row`.
///
/// # Safety
/// The `G` registers at `p` are writable, and nobody else uses them.
#[inline(always)]
unsafe fn store<S: Simd, T: Scalar, const G: usize>(simd: S, p: *mut T, row: &[T::Vector<S>; G]) {
    for (g, &register) in row.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { T::store(simd, p.add(g * T::lanes::<S>()), register) };
    }
}

/// `p[..] += row`.
///
/// # Safety
/// The `G` registers at `p` are writable, and nobody else uses them.
#[inline(always)]
unsafe fn add_to<S: Simd, T: Scalar, const G: usize>(simd: S, p: *mut T, row: &[T::Vector<S>; G]) {
    for (g, &register) in row.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let at = p.add(g * T::lanes::<S>());
            T::store(simd, at, T::vadd(simd, T::load(simd, at), register));
        }
    }
}

/// `row *= p[..]`.
///
/// # Safety
/// The `G` registers at `p` are readable.
#[inline(always)]
unsafe fn scale_by<S: Simd, D: Stored, const G: usize>(simd: S, row: &mut [Vector<D, S>; G], p: *const D) {
    for (g, register) in row.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *register = D::Scalar::vmul(simd, *register, unsafe { D::read(simd, p.add(g * D::Scalar::lanes::<S>())) });
    }
}

/// `sum += a * b`, register by register.
#[inline(always)]
fn accumulate<S: Simd, T: Scalar, const G: usize>(
    simd: S,
    sum: &mut [T::Vector<S>; G],
    a: &[T::Vector<S>; G],
    b: &[T::Vector<S>; G],
) {
    for (g, sum) in sum.iter_mut().enumerate() {
        *sum = T::vmul_add(simd, a[g], b[g], *sum);
    }
}

/// `a += b`, register by register.
#[inline(always)]
fn add<S: Simd, T: Scalar, const G: usize>(simd: S, a: &mut [T::Vector<S>; G], b: &[T::Vector<S>; G]) {
    for (g, a) in a.iter_mut().enumerate() {
        *a = T::vadd(simd, *a, b[g]);
    }
}

/// `a *= b`, register by register.
#[inline(always)]
fn multiply<S: Simd, T: Scalar, const G: usize>(simd: S, a: &mut [T::Vector<S>; G], b: &[T::Vector<S>; G]) {
    for (g, a) in a.iter_mut().enumerate() {
        *a = T::vmul(simd, *a, b[g]);
    }
}

/// Nonzeros ahead up to which rows are prefetched in L1. What is prefetched from farther on comes from memory, and goes to L2, which has
/// room for more requests.
const L1_DISTANCE: usize = 16;

/// Prefetches, `distance` nonzeros ahead, the cache lines of the `G` registers at `p`, which may lie anywhere.
#[inline(always)]
fn prefetch_panel<S: Simd, D: Stored, const G: usize>(p: *const D, distance: usize) {
    let lines = (G * D::Scalar::lanes::<S>() * size_of::<D>()).div_ceil(LINE);
    match distance > L1_DISTANCE {
        true => prefetch_lines::<true>(p.cast(), lines),
        false => prefetch_lines::<false>(p.cast(), lines),
    }
}

/// Prefetches the cache lines from `p` on, in L2 if they come from `FAR`, the upper half first: four lines in ascending order look like a
/// stream to the processor, which then fetches the next row for nothing (7 % of the time at f64, R = 32).
#[inline(always)]
fn prefetch_lines<const FAR: bool>(p: *const u8, lines: usize) {
    let line = |l: usize| {
        let line = p.wrapping_add(l * LINE);
        if FAR { prefetch_row_l2(line, LINE) } else { prefetch_l1(line) }
    };
    let half = lines.div_ceil(2);
    for l in 0..half {
        if half + l < lines {
            line(half + l);
        }
        line(l);
    }
}

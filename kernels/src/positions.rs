//! Maxima and minima of rows of terms, and which nonzero they come from: what their gradients need.
//!
//! ```text
//! C_ik = max over j of multiply(a_ij, b_jk),      P_ik = the first of the nonzeros (i, j) whose term that is
//! ```
//!
//! Positions are kept in registers beside the maxima, as bits in lanes of the same width. Nonzeros are taken in CSR order, so
//! that of equal terms the first one wins.

use pulp::{Simd, WithSimd};

use crate::reduce::{ReduceRows, ReduceTiles, dispatch_numbers};
use crate::rows::{Gathered, Prefetch, by_prefetch};
use crate::semiring::{Addition, BuiltIn, Semiring};
use crate::tile::{Tile, TileRows};
use crate::walk::{Part, Walk};
use crate::{Arch, Number, Scalar};

/// The position of a row without nonzeros.
pub const NO_POSITION: u32 = u32::MAX;

/// Runs the task over a `semiring` that adds by `Min` or `Max`, and writes the position in the arrays of each element's nonzero
/// to `positions`, whose rows are n elements long; of carried rows to `carry_positions`.
///
/// # Safety
/// As [`reduce_rows`](crate::reduce_rows), and of `positions` and `carry_positions` as of C and `carry_out`.
///
/// # Panics
/// When the semiring adds otherwise.
pub unsafe fn reduce_positions<T: Scalar>(
    arch: Arch,
    semiring: BuiltIn,
    task: ReduceRows<T>,
    positions: *mut u32,
    carry_positions: *mut u32,
) {
    let largest = match semiring.add {
        Addition::Max => true,
        Addition::Min => false,
        other => panic!("{other:?} has no positions"),
    };
    let task = Positions { semiring, largest, task, positions, carry_positions };
    dispatch_numbers!(arch, task, Positions<BuiltIn>, f32 f64);
}

/// `R` is the semiring's type, one of its kind.
#[derive(Clone, Copy)]
struct Positions<T, R> {
    semiring: R,
    largest: bool,
    task: ReduceRows<T>,
    positions: *mut u32,
    carry_positions: *mut u32,
}

impl<T: Number> WithSimd for Positions<T, BuiltIn> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for tile in (ReduceTiles { n: self.task.n, lanes: T::lanes::<S>(), max: 4, start: 0 }) {
            // SAFETY: the promise of `reduce_positions`; the tile is inside the rows.
            unsafe {
                match tile.vectors {
                    4 => positions_tile::<S, T, 4>(simd, &self, tile),
                    2 => positions_tile::<S, T, 2>(simd, &self, tile),
                    _ => positions_tile::<S, T, 1>(simd, &self, tile),
                }
            }
        }
    }
}

/// One tile of all the rows.
///
/// # Safety
/// As [`reduce_positions`].
#[inline(always)]
unsafe fn positions_tile<S: Simd, T: Number, const NV: usize>(simd: S, all: &Positions<T, BuiltIn>, tile: Tile) {
    let (task, semiring) = (&all.task, all.semiring);
    let rows = TileRows::<S, T, NV>::new(simd, tile);
    let (bytes, lanes) = (TileRows::<S, T, NV>::BYTES, T::lanes::<S>());
    let elements = (NV * lanes).min(task.n - tile.start);
    // SAFETY: the promise of `reduce_positions`.
    unsafe {
        let walk = Walk::new(task.row_ptr, task.columns, task.values, task.rows, task.nonzeros, task.panel);
        for Part { row, start, end, first, .. } in walk.gathering(task.prefetch_distance, NV) {
            if start == end && !first {
                continue;
            }
            let carries = row == task.rows[0] && !task.carry_out.is_null();
            let (c, places) = match carries {
                true => (task.carry_out.add(tile.start), all.carry_positions.add(tile.start)),
                false => (task.c.add(row * task.ldc + tile.start), all.positions.add(row * task.n + tile.start)),
            };
            let mut sum = [T::splat(simd, Semiring::<T>::zero(semiring)); NV];
            let mut at = [T::splat(simd, T::from_index(NO_POSITION)); NV];
            if first && start == end && task.row_ptr.at(row) == task.row_ptr.at(row + 1) {
                sum = [T::splat(simd, task.empty); NV];
            }
            // A row's first term is taken whatever it is.
            let mut none = true;
            if !first && *places != NO_POSITION {
                none = false;
                sum = rows.load(c);
                let lane = (&raw mut at).cast::<T>();
                for k in 0..elements {
                    *lane.add(k) = T::from_index(*places.add(k));
                }
            }
            let gathered = Gathered {
                columns: task.columns.wrapping_add(start),
                base: task.b.wrapping_add(tile.start),
                stride: task.ldb,
                last: task.nonzeros[1].saturating_sub(1 + start),
                prefetch_distance: task.prefetch_distance,
                prefetch: Prefetch::at(task.prefetch_distance),
            };
            by_prefetch!(gathered.prefetch, PREFETCH => {
                for t in 0..end - start {
                    let b = rows.load(gathered.row::<PREFETCH>(t, bytes));
                    let a = if task.values.is_null() { T::ONE } else { *task.values.add(start + t) };
                    let (a, here) = (T::splat(simd, a), T::splat(simd, T::from_index((start + t) as u32)));
                    for j in 0..NV {
                        let term = Semiring::<T>::multiply(semiring, simd, a, b[j]);
                        if none {
                            (sum[j], at[j]) = (term, here);
                            continue;
                        }
                        let (more, less) = if all.largest { (term, sum[j]) } else { (sum[j], term) };
                        let better = T::vselect_greater(simd, more, less, here, at[j]);
                        // The first NaN stays.
                        let first_nan = T::vselect_nan(simd, sum[j], at[j], here);
                        at[j] = T::vselect_nan(simd, term, first_nan, better);
                        sum[j] = Semiring::<T>::add(semiring, simd, term, sum[j]);
                    }
                    none = false;
                }
            });
            rows.store(c, sum);
            let lane = (&raw const at).cast::<T>();
            for k in 0..elements {
                *places.add(k) = (*lane.add(k)).index();
            }
        }
    }
}

/// Joins parts of a row that tasks shared, as [`reduce_into`](crate::reduce_into) does, with their positions: of equal elements
/// those of y stay.
///
/// # Panics
/// When the slices differ in length.
pub fn positions_into<T: Number>(semiring: BuiltIn, x: &[T], from: &[u32], y: &mut [T], to: &mut [u32]) {
    assert!(x.len() == y.len() && from.len() == x.len() && to.len() == x.len(), "one length");
    let is_nan = |v: T| v.partial_cmp(&v).is_none();
    for i in 0..x.len() {
        let better = if semiring.add == Addition::Max { x[i] > y[i] } else { x[i] < y[i] };
        let wins = to[i] == NO_POSITION || better || is_nan(x[i]) && !is_nan(y[i]);
        if from[i] != NO_POSITION && wins {
            (y[i], to[i]) = (x[i], from[i]);
        }
    }
}

//! SDDMM with another operation than the dot product, straight from CSR.
//!
//! ```text
//! for i in rows                                         for i in rows
//!     for the nonzeros p = (i, j) of row i                  for the nonzeros p = (i, j) of row i
//!         out_p = C_i op B_j     (a row of n numbers)           out_p = add over k of multiply(c_ik, b_jk)
//! ```
//!
//! The first is limited by what it writes: n numbers for each nonzero.

use pulp::{Simd, WithSimd};

use crate::reduce::{ReduceTiles, dispatch_numbers, most_vectors};
use crate::semiring::{BuiltIn, Semiring};
use crate::tile::{Tile, TileRows, store_or_stream};
use crate::{Arch, Arithmetic, Number, RowPtr, Scalar, prefetch_row, stream_fence};

/// Nonzeros ahead at which rows of B are prefetched.
const PREFETCH_DISTANCE: usize = 16;

/// Some nonzeros of a CSR pattern, and the dense rows that they name.
#[derive(Clone, Copy, Debug)]
pub struct Pairs<T> {
    /// CSR row pointers.
    pub row_ptr: RowPtr,
    /// CSR column indices.
    pub columns: *const u32,
    /// First row and one past the last.
    pub rows: [usize; 2],
    /// The nonzeros to take.
    pub nonzeros: [usize; 2],
    /// C.
    pub c: *const T,
    /// Row stride of C.
    pub ldc: usize,
    /// B.
    pub b: *const T,
    /// Row stride of B.
    pub ldb: usize,
    /// Columns of B and C.
    pub n: usize,
    /// The result of nonzero 0.
    pub out: *mut T,
    /// Elements from one nonzero's result to the next one's.
    pub ldo: usize,
}

/// One of the nonzeros, and the rows of C and B that it names.
struct Pair<T> {
    p: usize,
    c: *const T,
    b: *const T,
}

/// The nonzeros of [`Pairs`], in order: an iterator by hand, so that it is inlined.
struct Walk<T> {
    pairs: Pairs<T>,
    row: usize,
    p: usize,
    end: usize,
}

impl<T> Pairs<T> {
    /// Its nonzeros.
    ///
    /// # Safety
    /// The CSR arrays are valid, every row is one of C and every column a row of B, as long as the walk is used.
    #[inline(always)]
    unsafe fn walk(self) -> Walk<T> {
        Walk { row: self.rows[0], p: self.nonzeros[0], end: self.nonzeros[0], pairs: self }
    }
}

impl<T> Iterator for Walk<T> {
    type Item = Pair<T>;

    #[inline(always)]
    fn next(&mut self) -> Option<Pair<T>> {
        let Pairs { columns, nonzeros, c, ldc, b, ldb, .. } = self.pairs;
        // SAFETY: the promise of `walk`; p stays below the end of the task's nonzeros.
        unsafe {
            while self.p == self.end {
                if self.row == self.pairs.rows[1] {
                    return None;
                }
                self.row += 1;
                self.end = self.pairs.row_ptr.at(self.row).min(nonzeros[1]).max(self.p);
            }
            let p = self.p;
            self.p += 1;
            let later = *columns.add((p + PREFETCH_DISTANCE).min(nonzeros[1] - 1)) as usize;
            prefetch_row(b.add(later * ldb), self.pairs.n.min(512) * size_of::<T>());
            let j = *columns.add(p) as usize;
            Some(Pair { p, c: c.add((self.row - 1) * ldc), b: b.add(j * ldb) })
        }
    }
}

/// out_p = C_i op B_j, n numbers for each of the task's nonzeros p = (i, j). `stream`: they bypass the caches.
///
/// # Safety
/// The CSR arrays are valid, every row is one of C and every column a row of B, the operands have the strides and sizes stated,
/// and no one else uses the nonzeros' rows of `out` at the same time.
pub unsafe fn pair_rows_elementwise<T: Scalar>(arch: Arch, op: Arithmetic, pairs: Pairs<T>, stream: bool) {
    crate::arch::dispatch_compiled!(arch, Elementwise { op, pairs, stream }, Elementwise<f32>, Elementwise<f64>);
}

#[derive(Clone, Copy)]
struct Elementwise<T> {
    op: Arithmetic,
    pairs: Pairs<T>,
    stream: bool,
}

impl<T: Scalar> WithSimd for Elementwise<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for tile in (ReduceTiles { n: self.pairs.n, lanes: T::lanes::<S>(), max: 4, start: 0 }) {
            // SAFETY: the promise of `pair_rows_elementwise`; the tile is inside the rows.
            unsafe {
                match tile.vectors {
                    4 => self.tile::<S, 4>(simd, tile),
                    2 => self.tile::<S, 2>(simd, tile),
                    _ => self.tile::<S, 1>(simd, tile),
                }
            }
        }
        if self.stream {
            stream_fence();
        }
    }
}

impl<T: Scalar> Elementwise<T> {
    /// One tile of all the nonzeros.
    ///
    /// # Safety
    /// As [`pair_rows_elementwise`].
    #[inline(always)]
    unsafe fn tile<S: Simd, const NV: usize>(&self, simd: S, tile: Tile) {
        let rows = TileRows::<S, T, NV>::new(simd, tile);
        let Pairs { out, ldo, .. } = self.pairs;
        // SAFETY: the caller's promise.
        unsafe {
            for Pair { p, c, b } in self.pairs.walk() {
                let (mut x, b) = (rows.load(c.add(tile.start)), rows.load(b.add(tile.start)));
                match self.op {
                    Arithmetic::Add => {
                        for j in 0..NV {
                            x[j] = T::vadd(simd, x[j], b[j]);
                        }
                    }
                    Arithmetic::Sub => {
                        for j in 0..NV {
                            x[j] = T::vsub(simd, x[j], b[j]);
                        }
                    }
                    Arithmetic::Mul => {
                        for j in 0..NV {
                            x[j] = T::vmul(simd, x[j], b[j]);
                        }
                    }
                    Arithmetic::Div => {
                        for j in 0..NV {
                            x[j] = T::vdiv(simd, x[j], b[j]);
                        }
                    }
                }
                let out = out.add(p * ldo + tile.start);
                if self.stream && tile.rest == 0 {
                    store_or_stream::<S, T, NV, false>(simd, T::first_lanes(simd, 0), out, x, true);
                } else {
                    rows.store(out, x);
                }
            }
        }
    }
}

/// out_p = add over k of multiply(c_ik, b_jk) for each of the task's nonzeros p = (i, j).
///
/// # Safety
/// As [`pair_rows_elementwise`], with one number for each nonzero.
pub unsafe fn pair_rows_reduce<T: Number, R: Semiring<T>>(arch: Arch, semiring: R, pairs: Pairs<T>) {
    if let Some(built_in) = const { R::BUILT_IN } {
        let task = Reduced { semiring: built_in(semiring), pairs };
        dispatch_numbers!(arch, task, Reduced);
    } else if const { R::BUILT_IN.is_none() } {
        arch.dispatch(Reduced { semiring, pairs });
    }
}

#[derive(Clone, Copy)]
struct Reduced<T, R> {
    semiring: R,
    pairs: Pairs<T>,
}

impl<T: Number, R: Semiring<T>> WithSimd for Reduced<T, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { semiring, pairs } = self;
        let (n, lanes) = (pairs.n, T::lanes::<S>());
        let wide = if most_vectors(S::REGISTER_COUNT) == 8 && n >= 4 * lanes { 4 * lanes } else { lanes };
        let zero = T::splat(simd, semiring.zero());
        // SAFETY: the promise of `pair_rows_reduce`: all that is read is inside rows of n elements.
        unsafe {
            for Pair { p, c, b } in pairs.walk() {
                let mut k = 0;
                let mut sums = [zero; 4];
                while k + wide <= n && wide > lanes {
                    for j in 0..4 {
                        let (x, y) = (T::load(simd, c.add(k + j * lanes)), T::load(simd, b.add(k + j * lanes)));
                        sums[j] = semiring.add(simd, semiring.multiply(simd, x, y), sums[j]);
                    }
                    k += wide;
                }
                let [x, y, z, w] = sums;
                let mut sum = semiring.add(simd, semiring.add(simd, x, y), semiring.add(simd, z, w));
                while k + lanes <= n {
                    let (x, y) = (T::load(simd, c.add(k)), T::load(simd, b.add(k)));
                    sum = semiring.add(simd, semiring.multiply(simd, x, y), sum);
                    k += lanes;
                }
                // The lanes one after another, then what is left of the rows.
                let scalar = pulp::Scalar;
                let lane = (&raw const sum).cast::<T>();
                let mut total = T::splat(scalar, semiring.zero());
                for l in 0..lanes {
                    total = semiring.add(scalar, T::load(scalar, lane.add(l)), total);
                }
                while k < n {
                    let (x, y) = (T::load(scalar, c.add(k)), T::load(scalar, b.add(k)));
                    total = semiring.add(scalar, semiring.multiply(scalar, x, y), total);
                    k += 1;
                }
                T::store(scalar, pairs.out.add(p * pairs.ldo), total);
            }
        }
    }
}

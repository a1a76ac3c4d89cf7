//! The part of FusedMM's gradient by rows of A: the weights, the gradients of the scores, and that of their left operand.
//!
//! ```text
//! for blocks of rows whose rows of B stay in L2
//!     s = C B^T at their nonzeros          rows of B from afar
//!     w, ds from s, lse and dE D^T
//!     dC = A_ds B                          the same rows of B, from L2
//! ```
//!
//! So the second product reads little from afar. Half of L2 is for rows of B: with an eighth of it, ca-CondMat takes as long as without
//! blocks, with a quarter 0.94 of that and with half 0.93 (softmax, N = 128, one thread of a Zen 4).
//!
//! Where products go by panels, scores are sums, or a row is too long to be one thread's, each stage passes over the whole matrix.

use sparsimd_kernels::{
    Arch, EdgeGradients, EdgeWeights, Scalar, SddmmHeads, SddmmRows, SpmmHeads, SpmmRows, edge_gradients, sddmm_heads,
    sddmm_rows, spmm_heads, spmm_rows,
};

use super::differentiable::Differentiable;
use super::fusedmm_heads::EdgeWeighting;
use super::heads::head_rows;
use super::prepare::Direct;
use super::run::{Shared, scratch};
use super::sddmm::direct_dots;
use super::spmm::direct_sums;
use crate::cpu::Cpu;
use crate::cut;
use crate::dense::{MatMut, MatRef};
use crate::error::Result;
use crate::formats::PatternRef;
use crate::plan::{Op, Task};

/// Numbers of edges: one for each nonzero and head, or for each nonzero.
pub(super) struct Edges<'a, T> {
    /// The values of A, where the edge function uses them.
    pub values: Option<&'a [T]>,
    /// The log-sum-exp of each row and head, for a softmax.
    pub lse: Option<MatRef<'a, T>>,
    /// Room for the scores.
    pub s: &'a mut [T],
    /// The gradients by the weights; they become those by the scores.
    pub ds: &'a mut [T],
    /// Where the weights and `ds` of each nonzero go, H of the ones beside H of the others.
    pub pairs: &'a mut [T],
    /// Where the gradients by the values go.
    pub dvalues: Option<&'a mut [T]>,
    /// Where the gradients by the bias go.
    pub dbias: Option<&'a mut [T]>,
}

/// [`Edges`] as tasks share them.
struct SharedEdges<'a, T> {
    values: Option<&'a [T]>,
    lse: Option<MatRef<'a, T>>,
    /// Of the scores, ds, the pairs, the values and the bias.
    places: [Shared<T>; 5],
}

impl<T: Scalar> SharedEdges<'_, T> {
    /// The weights and the gradients of `rows`, from the scores and the gradients by the weights.
    ///
    /// # Safety
    /// There are as many numbers as [`Edges`] says, and those of the rows are the caller's own.
    unsafe fn weigh(&self, arch: Arch, weights: &EdgeWeighting<'_, T>, pattern: PatternRef<'_>, rows: [usize; 2]) {
        let mut room = scratch::<T>(EdgeWeights::<T>::scratch_len(weights.heads));
        let [s, gradients, pairs, values, bias] = self.places.map(Shared::get);
        let lse = self.lse.map_or((std::ptr::null(), 0), |lse| (lse.data().as_ptr(), lse.stride()));
        let task = weights.task(pattern, rows, self.values, s, room.as_mut_ptr());
        // SAFETY: the pattern's invariants and the caller's promise.
        unsafe { edge_gradients(arch, task, EdgeGradients { lse, gradients, pairs, values, bias }) }
    }
}

impl Cpu {
    /// The weights, the gradients by scores, values and bias, and that of the left operand, past the caches where the plan says so or
    /// `stream` does; shapes have been checked.
    pub(super) fn gradients_by_rows<T: Scalar>(
        &self,
        a: &Differentiable<T>,
        weights: &EdgeWeighting<'_, T>,
        edges: Edges<'_, T>,
        left: MatMut<'_, T>,
        stream: bool,
    ) -> Result<()> {
        let (pattern, heads) = (PatternRef::from(a.pattern()), weights.heads);
        let Edges { values, lse, s, ds, pairs, dvalues, dbias } = edges;
        let by_panels = heads == 1 && (a.dots.panel().is_some() || a.rows.panel().is_some());
        let by_blocks = !weights.are_sums() && !by_panels && self.whole_rows_balance(pattern);
        if !by_blocks {
            // After the other dots: their operands are the next to be gathered, and may still be in L3.
            self.scores(a, weights, s)?;
        }
        let [dvalues, dbias] = [dvalues, dbias].map(|x| Shared(x.map_or(std::ptr::null_mut(), <[T]>::as_mut_ptr)));
        let places = [Shared(s.as_mut_ptr()), Shared(ds.as_mut_ptr()), Shared(pairs.as_mut_ptr()), dvalues, dbias];
        let shared = SharedEdges { values, lse, places };
        if by_blocks {
            return self.gradients_by_blocks(a, weights, &shared, left, stream);
        }
        self.by_rows(pattern, heads, |rows| {
            // SAFETY: the lengths have been checked; the rows' numbers are this task's own.
            unsafe { shared.weigh(self.arch(), weights, pattern, rows) }
        });
        if weights.are_sums() {
            self.sums_of_rows(pattern, heads, ds, left);
            return Ok(());
        }
        self.product_of(&a.rows, heads, ds, weights.operands()[1], left, stream)
    }

    /// Whether no row is so long that a thread would wait for the one that has it.
    fn whole_rows_balance(&self, pattern: PatternRef<'_>) -> bool {
        let (at, parts) = (|i: usize| pattern.row_ptr().at(i), 4 * self.threads());
        let fair = |rows: &[usize]| at(rows[1]) - at(rows[0]) <= 2 * (pattern.nnz() / parts + 1);
        self.threads() == 1 || cut::bounds(pattern.rows(), parts, at).windows(2).all(fair)
    }

    /// [`Cpu::gradients_by_rows`] by blocks.
    fn gradients_by_blocks<T: Scalar>(
        &self,
        a: &Differentiable<T>,
        weights: &EdgeWeighting<'_, T>,
        edges: &SharedEdges<'_, T>,
        dc: MatMut<'_, T>,
        stream: bool,
    ) -> Result<()> {
        let (pattern, n) = (PatternRef::from(a.pattern()), dc.cols());
        let mut block = Block {
            arch: [self.arch(), self.arch().dividing::<T>(n / weights.heads)],
            pattern,
            heads: weights.heads,
            operands: weights.operands(),
            dots: self.direct(Op::Sddmm, (&a.dots).into(), pattern, n)?,
            sums: self.direct(Op::Spmm, (&a.rows).into(), pattern, n)?,
            dc: (dc.stride(), Shared(dc.into_data().as_mut_ptr())),
        };
        block.sums.stream |= stream;
        // The scores left the rows of B in L2: to prefetch them again takes a third longer (ca-CondMat, pubmed, Zen 5).
        block.sums.prefetch_distance = 0;
        let row_bytes = n * size_of::<T>();
        let most = (self.machine().l2_bytes() / 2).checked_div(row_bytes).unwrap_or(0).max(1);
        let at = |i: usize| pattern.row_ptr().at(i);
        self.by_rows(pattern, weights.heads, |rows| {
            let mut begin = rows[0];
            while begin < rows[1] {
                let end = cut::first(begin + 1..rows[1], |i| at(i + 1) - at(begin) > most);
                let task = Task { rows: [begin, end], nonzeros: [at(begin), at(end)], continues: false };
                // SAFETY: the lengths have been checked; the rows and their numbers are this task's own.
                unsafe {
                    block.scores(&task, edges.places[0].get());
                    edges.weigh(self.arch(), weights, pattern, task.rows);
                    block.sums(&task, edges.places[1].get());
                }
                begin = end;
            }
        });
        Ok(())
    }
}

/// The products of a block of rows.
struct Block<'a, T> {
    /// The instruction set, and that of heads.
    arch: [Arch; 2],
    pattern: PatternRef<'a>,
    heads: usize,
    /// C and B.
    operands: [MatRef<'a, T>; 2],
    /// How dots and sums are run.
    dots: Direct<'a>,
    sums: Direct<'a>,
    /// Row stride of dC, and where it is.
    dc: (usize, Shared<T>),
}

impl<T: Scalar> Block<'_, T> {
    /// The scores of the task's nonzeros.
    ///
    /// # Safety
    /// `out` has one for each nonzero of the matrix and head, of which the task's are the caller's own.
    unsafe fn scores(&self, task: &Task, out: *mut T) {
        let [c, b] = self.operands;
        // SAFETY: the pattern's invariants and the operands' shapes, and the caller's promise.
        unsafe {
            if self.heads == 1 {
                return sddmm_rows(
                    self.arch[0],
                    SddmmRows { out, ..direct_dots(self.pattern, task, &self.dots, c, b) },
                );
            }
            let rows = head_rows(self.pattern, task, b, self.heads, self.dots.prefetch_distance);
            let (c, ldc) = (c.data().as_ptr(), c.stride());
            sddmm_heads(self.arch[1], SddmmHeads { rows, c, ldc, out, stream: false });
        }
    }

    /// The rows of dC, from the gradients by the scores at `ds`.
    ///
    /// # Safety
    /// As [`Block::scores`], for the rows of dC, too.
    unsafe fn sums(&self, task: &Task, ds: *const T) {
        let (b, (ldc, c)) = (self.operands[1], (self.dc.0, self.dc.1.get()));
        // SAFETY: as above.
        unsafe {
            if self.heads == 1 {
                let sums = direct_sums(self.pattern, task, &self.sums, b, (c, ldc));
                return spmm_rows(self.arch[0], SpmmRows { values: ds, ..sums });
            }
            let rows = head_rows(self.pattern, task, b, self.heads, self.sums.prefetch_distance);
            let (carry_out, stream) = (std::ptr::null_mut(), self.sums.stream);
            spmm_heads(self.arch[1], SpmmHeads { rows, values: ds, c, ldc, carry_out, stream });
        }
    }
}

//! The gradients of FusedMM on many ranks: measured, and compared with those of the whole matrix.

use sparsimd::edge::{BuiltIn, Edge};
use sparsimd::reference::{self, Deviation, Expected, Scores, Weighting};
use sparsimd::{Csr, Mat, Pattern};
use sparsimd_distributed::{Blocks, Comm, DistGradient, DistMat, Element, Result, RowsOf};

use super::run::{Run, Runs};
use crate::timing::Check;

impl<T: Element> Run<'_, T> {
    /// Measures the gradients of FusedMM; compares them, and the result.
    pub fn gradient(&self, comm: &dyn Comm, edge: BuiltIn<T>, wanted: reference::Edge<'_>) -> Result<(Runs, Check)> {
        let RowsOf { rows, cols, local, .. } = &self.given;
        let (rank, n) = (comm.rank(), self.args.n);
        let operands = || -> Result<_> {
            let given = |blocks, which| self.operand(rank, blocks, which);
            let zeros = |blocks| DistMat::zeros(blocks, rank, n);
            let operands = [given(rows, 1)?, given(cols, 2)?, given(cols, 3)?, given(rows, 4)?];
            Ok((operands, [zeros(rows)?, zeros(rows)?, zeros(cols)?, zeros(cols)?]))
        };
        let ([c, b, d, de], [mut e, mut dc, mut db, mut dd]) = comm.agree(operands())?;
        let mut values = edge.uses_values().then(|| vec![T::ZERO; local.nnz()]);
        let runs = self.measure(comm, |comm| {
            let out = DistGradient { c: &mut dc, b: &mut db, d: &mut dd, values: values.as_deref_mut() };
            self.a.fusedmm_gradient(&self.cpu, comm, edge, &c, &b, &d, &de, out)
        })?;
        if !self.args.verify {
            return Ok((runs, Check::NONE));
        }
        self.a.fusedmm(&self.cpu, comm, edge, &c, &b, &d, &mut e)?;
        // Columns have nonzeros of all ranks, each with its weight in its row.
        let (a, first) = whole_matrix(comm, &self.given)?;
        let check = self.check(comm, || {
            let (c, de) = (self.whole(rows.len(), 1)?, self.whole(rows.len(), 4)?);
            let (b, d) = (self.whole(cols.len(), 2)?, self.whole(cols.len(), 3)?);
            let scores = Scores::Dots(c.as_ref(), b.as_ref());
            let weighting = Weighting { edge: wanted, scores, heads: 1, bias: None, dropout: None };
            let result = reference::fusedmm(&a, wanted, c.as_ref(), b.as_ref(), d.as_ref())?;
            let gradients = reference::fusedmm_gradient(&a, weighting, d.as_ref(), de.as_ref())?;
            let mut worst = deviation(&result, &e, rows, rank)?;
            let others = [(&gradients.left, &dc, rows), (&gradients.right, &db, cols), (&gradients.d, &dd, cols)];
            for (wanted, got, blocks) in others {
                worst.error = worst.error.max(deviation(wanted, got, blocks, rank)?.error);
            }
            if let Some(own) = &values {
                let mut all: Vec<T> = gradients.values.values().iter().map(|&x| T::from_f64(x)).collect();
                all[first..first + own.len()].copy_from_slice(own);
                worst.error = worst.error.max(gradients.values.deviation_of_values(&all)?.error);
            }
            Ok(worst)
        })?;
        Ok((runs, check))
    }
}

/// How far the rows of `rank` are from those of the whole that is `wanted`.
fn deviation<T: Element>(wanted: &Expected, got: &DistMat<T>, blocks: &Blocks, rank: usize) -> Result<Deviation> {
    let (own, n) = (blocks.range(rank), got.cols());
    // Other ranks' rows are as they should be.
    let whole = Mat::from_fn(blocks.len(), n, |i, j| match own.contains(&i) {
        true => got.local().row(i - own.start)[j],
        false => T::from_f64(wanted.values()[i * n + j]),
    })?;
    Ok(wanted.deviation(whole.as_ref())?)
}

/// The matrix of which the ranks have the rows `given`, and which of its nonzeros is this rank's first.
fn whole_matrix<T: Element>(comm: &dyn Comm, given: &RowsOf<T>) -> Result<(Csr<T>, usize)> {
    let RowsOf { rows, cols, local, .. } = given;
    let (pattern, size) = (local.pattern(), comm.size());
    let nnz: Vec<usize> =
        comm.all_gather(&[local.nnz() as u64], &vec![1; size])?.into_iter().map(|n| n as usize).collect();
    let lens: Vec<u64> = (0..local.rows()).map(|i| pattern.row(i).len() as u64).collect();
    let of_ranks: Vec<usize> = (0..size).map(|r| rows.range(r).len()).collect();
    let mut row_ptr = vec![0];
    for len in comm.all_gather(&lens, &of_ranks)? {
        row_ptr.push(row_ptr[row_ptr.len() - 1] + len as usize);
    }
    let col_idx = comm.all_gather(pattern.col_idx(), &nnz)?;
    let values = comm.all_gather(local.values(), &nnz)?;
    let whole = Pattern::new(rows.len(), cols.len(), row_ptr, col_idx).and_then(|pattern| Csr::new(pattern, values));
    Ok((comm.agree(whole.map_err(Into::into))?, nnz[..comm.rank()].iter().sum()))
}

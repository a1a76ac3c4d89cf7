//! FusedMM with a softmax over the row, whose nonzeros meet the rows of B one part after the other.
//!
//! ```text
//! for every part: x_ij = f(C_i . B_j)                                 B travels
//! m_i = max x_ij, l_i = sum e^(x_ij - m_i)                            of the nonzeros here
//! m, l = those of the whole row, from the fiber's (m, l)              m = max m_k, l = sum e^(m_k - m) l_k
//! for every part: E_i += e^(x_ij - m_i) / l_i D_j                     D travels
//! ```

use sparsimd::edge::BuiltIn;
use sparsimd::plan::Op;
use sparsimd::{Cpu, Mat};

use crate::comm::Comm;
use crate::dense::{Element, Rows, RowsMut};
use crate::error::{Error, Result};
use crate::matrix::{DistCsr, fiber};

impl<T: Element> DistCsr<T> {
    /// [`DistCsr::fusedmm`] with a softmax; operands have been checked.
    pub(crate) fn softmax(
        &self,
        cpu: &Cpu,
        comm: &dyn Comm,
        edge: BuiltIn<T>,
        [c, b, d]: [Rows<'_, T>; 3],
        e: RowsMut<'_, T>,
    ) -> Result<()> {
        let logit = comm.agree(logit(edge))?;
        let shared = comm.agree(self.output(d.cols()))?;
        let gathered = self.gather(comm, c.local)?;
        let c = gathered.as_ref().map_or(c.local, Mat::as_ref);
        let mut weights: Vec<Vec<T>> = self.parts.iter().map(|part| vec![T::ZERO; part.a.nnz()]).collect();
        let done = self.each_part(comm, &[b.local], |part, dense| {
            cpu.sddmm(self.parts[part].operand(Op::Sddmm), c, dense[0], &mut weights[part])?;
            weights[part].iter_mut().for_each(|x| *x = logit(*x));
            Ok(())
        });
        comm.agree(done)?;
        self.normalise(comm, &mut weights)?;
        self.product(cpu, comm, Some(&weights), d, shared, e)
    }

    /// e^(x - m) / l, m and l of the whole row, of each logit x.
    pub(crate) fn normalise(&self, comm: &dyn Comm, logits: &mut [Vec<T>]) -> Result<()> {
        let states = self.whole_rows(comm, self.states(logits))?;
        for (part, logits) in self.parts.iter().zip(logits) {
            let row_ptr = part.a.pattern().row_ptr();
            for (i, &[m, l]) in states.iter().enumerate() {
                logits[row_ptr[i]..row_ptr[i + 1]].iter_mut().for_each(|x| *x = (*x - m).exp() / l);
            }
        }
        Ok(())
    }

    /// (m, l) of the nonzeros here of every row here.
    fn states(&self, logits: &[Vec<T>]) -> Vec<[T; 2]> {
        let of_row = |i: usize| {
            let parts = self.parts.iter().zip(logits).map(|(part, logits)| {
                let row_ptr = part.a.pattern().row_ptr();
                &logits[row_ptr[i]..row_ptr[i + 1]]
            });
            let m = parts.clone().flatten().fold(T::NEG_INFINITY, |m, &x| if x > m { x } else { m });
            let mut l = T::ZERO;
            parts.flatten().for_each(|&x| l += (x - m).exp());
            [m, l]
        };
        (0..self.here.len()).map(of_row).collect()
    }

    /// (m, l) of the whole rows.
    fn whole_rows(&self, comm: &dyn Comm, own: Vec<[T; 2]>) -> Result<Vec<[T; 2]>> {
        let replication = self.algorithm.replication();
        if replication == 1 {
            return Ok(own);
        }
        let fiber = fiber(comm, replication);
        let all = (&fiber as &dyn Comm).all_gather(own.as_flattened(), &vec![2 * own.len(); replication])?;
        let of_row = |i: usize| {
            let parts = (0..replication).map(|k| [all[2 * (k * own.len() + i)], all[2 * (k * own.len() + i) + 1]]);
            let m = parts.clone().fold(T::NEG_INFINITY, |m, part| if part[0] > m { part[0] } else { m });
            let mut l = T::ZERO;
            // A rank without nonzeros of the row has no part of it.
            parts.filter(|part| part[0] != T::NEG_INFINITY).for_each(|part| l += (part[0] - m).exp() * part[1]);
            [m, l]
        };
        Ok((0..own.len()).map(of_row).collect())
    }
}

/// f of an edge function whose weights are e^f, normalised.
fn logit<T: Element>(edge: BuiltIn<T>) -> Result<impl Fn(T) -> T> {
    let (scale, slope) = match edge {
        BuiltIn::Softmax(edge) => (edge.scale, T::ONE),
        BuiltIn::SoftmaxLeakyRelu(edge) => (T::ONE, edge.slope),
        other => return Err(Error::shape("distributed fusedmm", format!("{other:?} is no softmax that ranks know"))),
    };
    Ok(move |s: T| {
        let (s, small) = (scale * s, slope * (scale * s));
        if small > s { small } else { s }
    })
}

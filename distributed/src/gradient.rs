//! The gradients of SpMM, SDDMM and FusedMM, from the operands and the gradient of the result; the scores are computed again.
//!
//! ```text
//! SpMM     C = A B             dv_p = dC_i . B_j                        dB = A^T dC
//! SDDMM    s_p = C_i . B_j     dC = A_ds B                              dB = A_ds^T C
//! FusedMM  E = A_w D           s_p = C_i . B_j, g_p = dE_i . D_j        B and D travel together
//!          w = f(s)            ds = f'(s) g                             or, for a softmax over the row of z = f(s), from m and l of the
//!          w = e^(z - m) / l   ds = f'(s) w (g - sum of the row's w g)  whole row: two sums over the fiber
//!                              dC = A_ds B                              B travels
//!                              dB = A_ds^T C, dD = A_w^T dE             their terms travel together
//! ```
//! (A_v: the pattern of A with the values v.) Rows travel as in SpMM, and parts of rows as in SpMM with A transposed.

use sparsimd::edge::{BuiltIn, Edge};
use sparsimd::plan::Op;
use sparsimd::{Cpu, CsrRef, Mat, MatMut, MatRef};

use crate::comm::Comm;
use crate::dense::{DistMat, Element, Rows, RowsMut};
use crate::error::{Error, Result};
use crate::matrix::{DistCsr, fiber};

/// Where the gradients of FusedMM go.
#[derive(Debug)]
pub struct DistGradient<'a, T> {
    /// By C.
    pub c: &'a mut DistMat<T>,
    /// By B.
    pub b: &'a mut DistMat<T>,
    /// By D.
    pub d: &'a mut DistMat<T>,
    /// By the values of the nonzeros that this rank gave, where the edge function uses them.
    pub values: Option<&'a mut [T]>,
}

/// Likewise, anywhere.
pub(crate) struct GradientRows<'a, T> {
    pub c: RowsMut<'a, T>,
    pub b: RowsMut<'a, T>,
    pub d: RowsMut<'a, T>,
    pub values: Option<&'a mut [T]>,
}

impl<T: Element> DistCsr<T> {
    /// The gradients of C = A B: `dvalues[p]` = dC_i . B_j for the nonzero (i, j) that this rank gave as its p-th, and dB = A^T dC.
    ///
    /// # Errors
    /// As [`DistCsr::sddmm`].
    pub fn spmm_gradient(
        &self,
        cpu: &Cpu,
        comm: &dyn Comm,
        b: &DistMat<T>,
        dc: &DistMat<T>,
        dvalues: &mut [T],
        db: &mut DistMat<T>,
    ) -> Result<()> {
        self.sddmm(cpu, comm, false, dc, b, dvalues)?;
        self.spmm_transposed(cpu, comm, dc, db)
    }

    /// The gradients of s_p = C_i . B_j at the nonzeros, from `ds`, one number for each that this rank gave: dC = A_ds B and
    /// dB = A_ds^T C.
    ///
    /// # Errors
    /// As [`DistCsr::sddmm`].
    #[expect(clippy::too_many_arguments, reason = "operands and results")]
    pub fn sddmm_gradient(
        &self,
        cpu: &Cpu,
        comm: &dyn Comm,
        c: &DistMat<T>,
        b: &DistMat<T>,
        ds: &[T],
        dc: &mut DistMat<T>,
        db: &mut DistMat<T>,
    ) -> Result<()> {
        self.sddmm_gradient_of(cpu, comm, [c.view(), b.view()], ds, [dc.view_mut(), db.view_mut()])
    }

    pub(crate) fn sddmm_gradient_of(
        &self,
        cpu: &Cpu,
        comm: &dyn Comm,
        [c, b]: [Rows<'_, T>; 2],
        ds: &[T],
        [dc, db]: [RowsMut<'_, T>; 2],
    ) -> Result<()> {
        const OP: &str = "distributed sddmm_gradient";
        let n = c.cols();
        let operands =
            [("C", c, true, n), ("B", b, false, n), ("dC", dc.as_ref(), true, n), ("dB", db.as_ref(), false, n)];
        let shared = || {
            self.check(OP, &operands)?;
            self.check_numbers(OP, "ds", ds.len())?;
            self.output(n)
        };
        let shared = comm.agree(shared())?;
        let ds = self.hand_out(comm, ds)?;
        self.product(cpu, comm, Some(&ds), b, shared, dc)?;
        let gathered = self.gather(comm, c.local)?;
        let c = gathered.as_ref().map_or(c.local, Mat::as_ref);
        self.transposed_products(cpu, comm, &[(&ds, c)], &mut [db.local])
    }

    /// The gradients of FusedMM with one of the library's edge functions, from its operands and `de`, the gradient of E. Two numbers for
    /// each nonzero here are stored meanwhile.
    ///
    /// # Errors
    /// As [`DistCsr::fusedmm`]; [`sparsimd::Error::Argument`] for gradients of values that are not used, and for a function that has no
    /// gradient here.
    #[expect(clippy::too_many_arguments, reason = "operands and results")]
    pub fn fusedmm_gradient(
        &self,
        cpu: &Cpu,
        comm: &dyn Comm,
        edge: impl Into<BuiltIn<T>>,
        c: &DistMat<T>,
        b: &DistMat<T>,
        d: &DistMat<T>,
        de: &DistMat<T>,
        out: DistGradient<'_, T>,
    ) -> Result<()> {
        let operands = [c.view(), b.view(), de.view()];
        let other = (!std::ptr::eq(b, d)).then(|| d.view());
        let DistGradient { c, b, d, values } = out;
        let out = GradientRows { c: c.view_mut(), b: b.view_mut(), d: d.view_mut(), values };
        self.fusedmm_gradient_of(cpu, comm, edge.into(), operands, other, out)
    }

    /// On all ranks, `other` is D, or none where it is B.
    #[inline(never)]
    pub(crate) fn fusedmm_gradient_of(
        &self,
        cpu: &Cpu,
        comm: &dyn Comm,
        edge: BuiltIn<T>,
        [c, b, de]: [Rows<'_, T>; 3],
        other: Option<Rows<'_, T>>,
        out: GradientRows<'_, T>,
    ) -> Result<()> {
        const OP: &str = "distributed fusedmm_gradient";
        let d = other.unwrap_or(b);
        let (n, width) = (c.cols(), d.cols());
        let operands = [
            ("C", c, true, n),
            ("B", b, false, n),
            ("D", d, false, width),
            ("dE", de, true, width),
            ("dC", out.c.as_ref(), true, n),
            ("dB", out.b.as_ref(), false, n),
            ("dD", out.d.as_ref(), false, width),
        ];
        let ready = || {
            self.check(OP, &operands)?;
            if let Some(values) = &out.values {
                self.check_numbers(OP, "gradients of values", values.len())?;
                if !edge.uses_values() {
                    return Err(Error::argument("out", "has room for the gradient of values that are not used"));
                }
            }
            Ok((slope(edge)?, self.output(n)?))
        };
        let (slope, shared) = comm.agree(ready())?;
        let (c_here, de_here) = (self.gather(comm, c.local)?, self.gather(comm, de.local)?);
        let c = c_here.as_ref().map_or(c.local, Mat::as_ref);
        let de = de_here.as_ref().map_or(de.local, Mat::as_ref);
        let zeros = || self.parts.iter().map(|part| vec![T::ZERO; part.a.nnz()]).collect::<Vec<_>>();
        // First s and g, then w and ds.
        let (mut w, mut ds) = (zeros(), zeros());
        let both = [b.local, d.local];
        let travelling = if other.is_none() { &both[..1] } else { &both[..] };
        let done = self.each_part(comm, travelling, |part, dense| {
            let operand = || self.parts[part].operand(Op::Sddmm);
            cpu.sddmm(operand(), c, dense[0], &mut w[part])?;
            Ok(cpu.sddmm(operand(), de, dense[dense.len() - 1], &mut ds[part])?)
        });
        comm.agree(done)?;
        if let Some(values) = out.values {
            // Of w = a s.
            let mut came = vec![T::ZERO; self.came.iter().sum()];
            for ((part, s), g) in self.parts.iter().zip(&w).zip(&ds) {
                part.origin.iter().zip(s).zip(g).for_each(|((&p, &s), &g)| came[p] = s * g);
            }
            self.give_back(comm, &came, values)?;
        }
        let mut slopes = Vec::new();
        for (part, s) in self.parts.iter().zip(&mut w) {
            let mut of_part = Vec::with_capacity(s.len());
            for (s, &a) in s.iter_mut().zip(part.a.values()) {
                let (f, df) = slope(*s, a);
                *s = f;
                of_part.push(df);
            }
            slopes.push(of_part);
        }
        if edge.is_softmax() {
            self.normalise(comm, &mut w)?;
            self.centre(comm, &w, &mut ds)?;
            for (slopes, w) in slopes.iter_mut().zip(&w) {
                slopes.iter_mut().zip(w).for_each(|(df, &w)| *df = *df * w);
            }
        }
        for (ds, slopes) in ds.iter_mut().zip(&slopes) {
            ds.iter_mut().zip(slopes).for_each(|(g, &df)| *g = *g * df);
        }
        self.product(cpu, comm, Some(&ds), b, shared, out.c)?;
        self.transposed_products(cpu, comm, &[(&ds, c), (&w, de)], &mut [out.b.local, out.d.local])
    }

    /// out_k = A_numbers^T C for each (numbers, C) of `factors`; their terms travel together.
    fn transposed_products(
        &self,
        cpu: &Cpu,
        comm: &dyn Comm,
        factors: &[(&[Vec<T>], MatRef<'_, T>)],
        out: &mut [MatMut<'_, T>],
    ) -> Result<()> {
        let done = self.each_part_reversed(comm, out, |part, terms| {
            for ((numbers, c), terms) in factors.iter().zip(terms) {
                let (pattern, values) = self.parts[part].by_columns(cpu, &numbers[part]);
                cpu.spmm(T::ONE, CsrRef::on(pattern, &values)?, *c, T::ZERO, terms.reborrow())?;
            }
            Ok(())
        });
        comm.agree(done)
    }

    /// `g` less the sum over its whole row of `w` `g`.
    fn centre(&self, comm: &dyn Comm, w: &[Vec<T>], g: &mut [Vec<T>]) -> Result<()> {
        let mut sums = vec![T::ZERO; self.here.len()];
        for ((part, w), g) in self.parts.iter().zip(w).zip(&*g) {
            let row_ptr = part.a.pattern().row_ptr();
            for (i, sum) in sums.iter_mut().enumerate() {
                let row = row_ptr[i]..row_ptr[i + 1];
                w[row.clone()].iter().zip(&g[row]).for_each(|(&w, &g)| *sum += w * g);
            }
        }
        let replication = self.algorithm.replication();
        if replication > 1 {
            let fiber = fiber(comm, replication);
            let all = (&fiber as &dyn Comm).all_gather(&sums, &vec![sums.len(); replication])?;
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = T::ZERO;
                (0..replication).for_each(|k| *sum += all[k * self.here.len() + i]);
            }
        }
        for (part, g) in self.parts.iter().zip(g) {
            let row_ptr = part.a.pattern().row_ptr();
            for (i, &sum) in sums.iter().enumerate() {
                g[row_ptr[i]..row_ptr[i + 1]].iter_mut().for_each(|g| *g = *g - sum);
            }
        }
        Ok(())
    }
}

/// f(s, a), the weight or a softmax' logit, and its derivative by s.
fn slope<T: Element>(edge: BuiltIn<T>) -> Result<impl Fn(T, T) -> (T, T)> {
    let leaky = |s: T, slope: T| if slope * s > s { (slope * s, slope) } else { (s, T::ONE) };
    if !matches!(
        edge,
        BuiltIn::Identity
            | BuiltIn::Scale
            | BuiltIn::Sigmoid
            | BuiltIn::Softmax(_)
            | BuiltIn::LeakyRelu(_)
            | BuiltIn::SoftmaxLeakyRelu(_)
    ) {
        return Err(Error::argument("edge", format!("{edge:?} has no gradient on ranks")));
    }
    Ok(move |s: T, a: T| match edge {
        BuiltIn::Scale => (a * s, a),
        BuiltIn::Sigmoid => {
            let w = T::ONE / (T::ONE + (T::ZERO - s).exp());
            (w, w * (T::ONE - w))
        }
        BuiltIn::Softmax(edge) => (edge.scale * s, edge.scale),
        BuiltIn::LeakyRelu(edge) => leaky(s, edge.slope),
        BuiltIn::SoftmaxLeakyRelu(edge) => leaky(s, edge.slope),
        _ => (s, T::ONE),
    })
}

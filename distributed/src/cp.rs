//! CP-ALS on a [`DistTensor`].
//!
//! ```text
//! in mode n's turn: the ghosts of the factor that has changed last come from their owners
//!                   M = MTTKRP of the nonzeros here, for rows here and ghosts
//!                   the ghosts' rows of M go to their owners, who add them in the order of ranks
//!                   the rest is one machine's, on the rows here; sums over rows are sums over ranks
//! ```
//! A rank receives 2 R (touched - own rows) words of rows for each mode and iteration, on average, and R (R + 3) / 2 + 1 in each of
//! log2(p) steps of the sums.

use std::ops::{ControlFlow, Range};

use sparsimd::decomp::{CpInit, CpIteration, CpOptions, CpShare, CpState};
use sparsimd::ops::MttkrpTensor;
use sparsimd::plan::TensorOptions;
use sparsimd::{Cpu, Mat, MatRef};

use crate::comm::Comm;
use crate::dense::{Element, Packed, pack};
use crate::error::{Error, Result};
use crate::tensor::{DistTensor, Mode};

impl<T: Element> DistTensor<T> {
    /// The CP decomposition, as [`Cpu::cp_als`] has it. `options.init` is of the whole tensor, or has this rank's rows; the state that `observe` sees, and the
    /// one that is returned, has this rank's rows ([`DistTensor::rows`], [`DistTensor::whole`]). The run ends when `observe` ends it on
    /// any rank.
    ///
    /// The same ranks give the same bits; other numbers of ranks, the same fits to rounding.
    ///
    /// # Errors
    /// Of the lowest rank that failed: as [`Cpu::cp_als`] and [`Comm::exchange`].
    pub fn cp_als(
        &self,
        cpu: &Cpu,
        comm: &dyn Comm,
        options: &CpOptions<T>,
        mut observe: impl FnMut(&CpState<T>, &CpIteration) -> ControlFlow<()>,
    ) -> Result<CpState<T>> {
        self.cp_als_observed(cpu, comm, options, &mut observe)
    }

    /// [`DistTensor::cp_als`], compiled once for all observers.
    #[inline(never)]
    pub(crate) fn cp_als_observed(
        &self,
        cpu: &Cpu,
        comm: &dyn Comm,
        options: &CpOptions<T>,
        observe: &mut dyn FnMut(&CpState<T>, &CpIteration) -> ControlFlow<()>,
    ) -> Result<CpState<T>> {
        // A rank without nonzeros has nothing to lay out, and products of zeros.
        let some = (self.local.nnz() > 0).then_some(&self.local);
        let prepared = some.map(|local| cpu.prepare_tensor(local, &TensorOptions::new(options.rank))).transpose();
        let ready = prepared.map_err(Error::from).and_then(|prepared| {
            let zeros = |rows: usize| Mat::zeros(rows, options.rank);
            let with_ghosts = |mode: &Mode| {
                let ghosts = mode.halo.ghosts();
                (ghosts > 0).then(|| zeros(mode.own.len() + ghosts)).transpose()
            };
            let all = || self.modes.iter().map(with_ghosts).collect::<sparsimd::Result<Vec<_>>>();
            let packed = |rows: usize| Packed::zeros(rows, &[options.rank]);
            let rooms = |mode: &Mode| Ok([packed(mode.halo.ghosts())?, packed(mode.halo.given())?]);
            let rooms = self.modes.iter().map(rooms).collect::<Result<_>>()?;
            // The algorithm's own: factors, what they are made from, and products. Between sums over all ranks it must not run out.
            let own = || self.modes.iter().map(|mode| zeros(mode.own.len())).collect::<sparsimd::Result<Vec<_>>>();
            drop((own()?, own()?, own()?));
            Ok((prepared, all()?, rooms, all()?))
        });
        let (prepared, factors, rooms, products) = comm.agree(ready)?;
        let options = CpOptions { init: comm.agree(self.own_init(options))?, ..options.clone() };
        let fresh = vec![false; self.dims.len()];
        let mut share = Share { tensor: self, cpu, comm, prepared, factors, rooms, products, fresh, failed: None };
        let mut ended = Ok(());
        let done = cpu.cp_als_share(&mut share, &options, |state, iteration| {
            let goes_on = u64::from(observe(state, iteration).is_continue());
            match comm.least(goes_on) {
                Ok(1) => ControlFlow::Continue(()),
                Ok(_) => ControlFlow::Break(()),
                Err(error) => {
                    ended = Err(error);
                    ControlFlow::Break(())
                }
            }
        });
        let failed = share.failed.take();
        ended?;
        comm.agree(done.map_err(|error| failed.unwrap_or(Error::Local(error))))
    }

    /// The whole of `state`, on every rank.
    ///
    /// # Errors
    /// As [`Comm::exchange`].
    #[inline(never)]
    pub fn whole(&self, comm: &dyn Comm, state: &CpState<T>) -> Result<CpState<T>> {
        let mut factors = Vec::new();
        for (mode, own) in self.modes.iter().zip(&state.factors) {
            let group = mode.group(comm);
            let (rows, cols) = (mode.blocks.len(), own.cols());
            let lens: Vec<usize> = (0..mode.blocks.parts()).map(|k| mode.blocks.range(k).len() * cols).collect();
            let all = (&group as &dyn Comm).all_gather(&pack(own.as_ref(), 0..own.rows()), &lens)?;
            factors.push(comm.agree(Mat::from_vec(rows, cols, all).map_err(Error::from))?);
        }
        Ok(CpState { factors, ..state.clone() })
    }

    /// Bytes that all ranks together receive in an iteration of `components` components, but the first, in which ghosts come before they
    /// have changed.
    ///
    /// # Errors
    /// As [`Comm::exchange`].
    pub fn model_bytes(&self, comm: &dyn Comm, components: usize) -> Result<f64> {
        let mut rows = [self.rows_received() as f64];
        comm.sum(&mut rows)?;
        let [rows] = rows;
        let (size, steps) = (comm.size(), comm.size().ilog2());
        let paired = 1usize << steps;
        // Of a sum over ranks: those past a power of two send, and get the result; the others send to each other in each step.
        let messages = paired * steps as usize + 2 * (size - paired);
        let numbers = self.dims.len() * (components * (components + 3) / 2 + 1);
        Ok(rows * (components * size_of::<T>()) as f64 + (messages * numbers * size_of::<f64>()) as f64)
    }

    /// This rank's rows of what a decomposition of the whole tensor starts from.
    fn own_init(&self, options: &CpOptions<T>) -> Result<CpInit<T>> {
        let own = |factors: &[Mat<T>]| -> Result<Vec<Mat<T>>> {
            if let Some(factor) = factors.iter().find(|factor| factor.cols() != options.rank) {
                let detail = format!("a factor of {} columns for rank {}", factor.cols(), options.rank);
                return Err(Error::argument("init", detail));
            }
            if factors.iter().any(|f| f.iter_rows().flatten().any(|x| !x.to_f64().is_finite())) {
                return Err(Error::argument("init", "a factor has a value that is not finite"));
            }
            let dims: Vec<usize> = factors.iter().map(Mat::rows).collect();
            if dims.iter().copied().eq(self.modes.iter().map(|mode| mode.own.len())) {
                return Ok(factors.to_vec());
            }
            if dims != self.dims {
                return Err(Error::argument("init", format!("factors of {dims:?} rows for dims {:?}", self.dims)));
            }
            let rows = self.modes.iter().zip(factors);
            rows.map(|(mode, factor)| Ok(factor.as_ref().row_range(mode.own.clone())?.to_mat()?)).collect()
        };
        Ok(match &options.init {
            CpInit::Seed(seed) => CpInit::Seed(*seed),
            CpInit::Factors(factors) => CpInit::Factors(own(factors)?),
            CpInit::Resume(state) => CpInit::Resume(CpState { factors: own(&state.factors)?, ..state.clone() }),
        })
    }
}

/// What a run works on.
struct Share<'a, T: Element> {
    tensor: &'a DistTensor<T>,
    cpu: &'a Cpu,
    comm: &'a dyn Comm,
    prepared: Option<MttkrpTensor<T>>,
    /// Own rows and ghosts of every factor that has ghosts here; of others, the own rows are read where they are.
    factors: Vec<Option<Mat<T>>>,
    /// For rows that travel of every factor or product: the ghosts', and this rank's own that others name.
    rooms: Vec<[Packed<T>; 2]>,
    /// Likewise, of every product.
    products: Vec<Option<Mat<T>>>,
    /// Whether the ghosts of each factor are what their owners have.
    fresh: Vec<bool>,
    /// What went wrong between ranks, which the library has no word for.
    failed: Option<Error>,
}

impl<T: Element> Share<'_, T> {
    /// `result` for the library, which ends the run at any error.
    fn keep(&mut self, result: Result<()>) -> sparsimd::Result<()> {
        result.map_err(|error| {
            let detail = error.to_string();
            self.failed.get_or_insert(error);
            sparsimd::Error::Unavailable { what: "another rank", detail }
        })
    }

    fn exchange_and_multiply(&mut self, factors: &[Mat<T>], mode: usize, out: &mut Mat<T>) -> Result<()> {
        let Self { tensor, cpu, comm, prepared, factors: all, rooms, products, fresh, .. } = self;
        for (m, own) in factors.iter().enumerate() {
            if m == mode || fresh[m] {
                continue;
            }
            let group = tensor.modes[m].group(*comm);
            let [ghosts, given] = &mut rooms[m];
            tensor.modes[m].halo.fetch(&group, &[own.as_ref()], [given, ghosts], || Ok(()))?;
            if let Some(all) = &mut all[m] {
                let rows = own.iter_rows().chain(ghosts.data().chunks_exact(own.cols()));
                all.iter_rows_mut().zip(rows).for_each(|(to, from)| to.copy_from_slice(from));
            }
            fresh[m] = true;
        }
        // Its turn changes it.
        fresh[mode] = false;
        let views: Vec<MatRef<'_, T>> =
            all.iter().zip(factors).map(|(all, own)| all.as_ref().unwrap_or(own).as_ref()).collect();
        let to = products[mode].as_mut().unwrap_or(out).as_mut();
        let done = match prepared {
            Some(prepared) => cpu.mttkrp(prepared, &views, mode, to),
            None => {
                to.into_data().fill(T::ZERO);
                Ok(())
            }
        };
        comm.agree(done.map_err(Error::from))?;
        let (group, halo, [terms, given]) =
            (tensor.modes[mode].group(*comm), &tensor.modes[mode].halo, &mut rooms[mode]);
        if let Some(product) = &products[mode] {
            terms.fill(&[product.as_ref()], out.rows()..product.rows());
            out.iter_rows_mut().zip(product.iter_rows()).for_each(|(to, from)| to.copy_from_slice(from));
        }
        halo.give(&group, terms, given, &mut [out.as_mut()], |_| Ok(()))
    }
}

impl<T: Element> CpShare<T> for Share<'_, T> {
    fn rows(&self) -> Vec<Range<usize>> {
        self.tensor.rows()
    }

    fn norm_squared(&self) -> f64 {
        self.tensor.norm_squared
    }

    fn product(&mut self, factors: &[Mat<T>], mode: usize, out: &mut Mat<T>) -> sparsimd::Result<()> {
        let done = self.exchange_and_multiply(factors, mode, out);
        self.keep(done)
    }

    fn sum(&mut self, numbers: &mut [f64]) -> sparsimd::Result<()> {
        let done = self.comm.sum(numbers);
        self.keep(done)
    }
}

//! MTTKRP, the kernel of the CP decomposition: `out = X_(n) (A_{N-1} (.) ... A_{n+1} (.) A_{n-1} ... (.) A_0)`, that is
//! `out[i_n, :] = sum over the nonzeros of x * prod_{m != n} A_m[i_m, :]`.
//!
//! ```text
//! plan    = MttkrpPlan::choose(pattern, machine, rank, memory)     pure
//! tensor  = cpu.prepare_mttkrp(coo, plan)                          re-lays the nonzeros, once
//! cpu.mttkrp(tensor, factors, mode, out)                           as often as there are factors
//! ```
//!
//! Which format serves which mode how:
//!
//! | format | root mode | modes between | leaf mode |
//! | --- | --- | --- | --- |
//! | coordinates, HiCOO, linearised | element-centric (coordinates: row-centric for the mode they are sorted by) | same | same |
//! | CSF, B-CSF, MM-CSF | slice algorithm | slice or fiber algorithm | nonzero algorithm |
//! | tiled | rows in registers, one copy per mode | same | same |
//!
//! No locks and no atomics: tasks that own their rows write them, others add to private windows that are summed in a fixed
//! order. So the result has the same bits for the same plan, whatever the threads do.

mod operands;
mod stored;
mod windows;

use sparsimd_kernels::Scalar;
use sparsimd_kernels::mttkrp::Operands;

use self::operands::{Buffers, Factor, check_shapes, kernel_stride, with_output};
use self::stored::Stored;
use self::windows::Tasks;
use crate::cpu::Cpu;
use crate::dense::{MatMut, MatRef};
use crate::error::{Error, Result};
use crate::formats::CooTensor;
use crate::plan::{MttkrpFormat, MttkrpPlan};

/// A tensor laid out for MTTKRP as an [`MttkrpPlan`] says, with the buffers that its calls reuse.
#[derive(Debug)]
pub struct Mttkrp<T> {
    plan: MttkrpPlan,
    dims: Vec<usize>,
    nnz: usize,
    norm_squared: f64,
    stored: Stored<T>,
    tasks: Vec<Tasks>,
    buffers: Buffers<T>,
}

impl<T: Scalar> Mttkrp<T> {
    /// The plan it follows.
    pub fn plan(&self) -> &MttkrpPlan {
        &self.plan
    }

    /// Length of each mode.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of nonzeros.
    pub fn nnz(&self) -> usize {
        self.nnz
    }

    /// Sum of the squares of all values.
    pub fn norm_squared(&self) -> f64 {
        self.norm_squared
    }

    /// Bytes of all coordinates and pointers.
    pub fn index_bytes(&self) -> usize {
        self.stored.index_bytes()
    }

    /// The algorithm that computes `mode`: `"element"`, `"row"`, `"slice"`, `"fiber"`, `"nonzero"` or, for several trees
    /// with different ones, `"mixed"`.
    ///
    /// # Panics
    /// When there is no such mode, as slice indexing does.
    pub fn algorithm(&self, mode: usize) -> &'static str {
        assert!(mode < self.dims.len(), "mode {mode} of a tensor of order {}", self.dims.len());
        self.stored.algorithm(mode)
    }

    /// Rows of private windows that the tasks of `mode` add up; 0 when every task owns its rows.
    ///
    /// # Panics
    /// When there is no such mode, as slice indexing does.
    pub fn private_rows(&self, mode: usize) -> usize {
        self.tasks[mode].private_rows()
    }
}

impl Cpu {
    /// `coo` laid out as `plan` says.
    ///
    /// # Errors
    /// [`Error::Argument`] when the plan is for a tensor of another order; [`Error::Structure`] when two entries are at
    /// the same place; [`Error::Unavailable`] when the coordinates do not fit the format.
    ///
    /// ```
    /// use sparsimd::{Cpu, CooTensor, Machine, Mat};
    /// use sparsimd::plan::{MttkrpPlan, MttkrpRequest, TensorStats};
    /// # fn main() -> sparsimd::Result<()> {
    /// // 2 at (0, 1, 0) and 3 at (1, 1, 2).
    /// let coo = CooTensor::new(vec![2, 2, 3], vec![vec![0, 1], vec![1, 1], vec![0, 2]], vec![2.0f32, 3.0])?;
    /// let request = MttkrpRequest { rank: 4, value_bytes: 4, threads: 2, memory: None, format: None };
    /// let plan = MttkrpPlan::choose(&TensorStats::of(&coo), &Machine::detect(), request)?;
    /// let cpu = Cpu::builder().threads(2).build()?;
    /// let tensor = cpu.prepare_mttkrp(&coo, &plan)?;
    /// let factors = [2, 2, 3].map(|rows| Mat::from_fn(rows, 4, |i, _| (i + 1) as f32).expect("small"));
    /// let views = [factors[0].as_ref(), factors[1].as_ref(), factors[2].as_ref()];
    /// let mut out = Mat::zeros(2, 4)?;
    /// cpu.mttkrp(&tensor, &views, 0, out.as_mut())?;
    /// assert_eq!((out.row(0)[0], out.row(1)[0]), (2.0 * 2.0 * 1.0, 3.0 * 2.0 * 3.0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn prepare_mttkrp<T: Scalar>(&self, coo: &CooTensor<T>, plan: &MttkrpPlan) -> Result<Mttkrp<T>> {
        if plan.modes.len() != coo.order() {
            let detail = format!("for a tensor of order {}, not {}", plan.modes.len(), coo.order());
            return Err(Error::argument("plan", detail));
        }
        self.install(|| {
            let stored = Stored::new(coo, plan)?;
            let row_bytes = kernel_stride::<T>(plan.rank) * size_of::<T>();
            let tasks = (0..coo.order())
                .map(|mode| {
                    let mut count = plan.tasks.max(1);
                    loop {
                        let tasks = Tasks::new(stored.tasks(mode, count), coo.dims()[mode]);
                        // Windows beyond the budget: fewer tasks. One task per tree cannot be had with fewer.
                        if count == 1 || tasks.private_rows().saturating_mul(row_bytes) <= plan.window_bytes {
                            return tasks;
                        }
                        count = count.div_ceil(2);
                    }
                })
                .collect();
            Ok(Mttkrp {
                plan: plan.clone(),
                dims: coo.dims().to_vec(),
                nnz: coo.nnz(),
                norm_squared: coo.values().iter().map(|x| x.to_f64() * x.to_f64()).sum(),
                stored,
                tasks,
                buffers: Buffers::default(),
            })
        })
    }

    /// `out[i_mode, :] = sum over the nonzeros of x * prod_{m != mode} factors[m][i_m, :]`.
    ///
    /// `factors[m]` has the length of mode m in rows and R columns, `out` the length of `mode` and R columns; the factor of
    /// `mode` is not read. The same plan gives the same bits.
    ///
    /// # Errors
    /// [`Error::Shape`] when an operand does not fit the tensor or R differs; [`Error::Argument`] for a mode out of range
    /// and rank 0.
    pub fn mttkrp<T: Scalar>(
        &self,
        tensor: &Mttkrp<T>,
        factors: &[MatRef<'_, T>],
        mode: usize,
        out: MatMut<'_, T>,
    ) -> Result<()> {
        check_shapes(&tensor.dims, mode, factors, &out)?;
        let stride = kernel_stride::<T>(out.cols());
        let buffers = &tensor.buffers;
        self.install(|| {
            let padded: Vec<Option<Factor<'_, T>>> =
                factors.iter().enumerate().map(|(m, &f)| (m != mode).then(|| Factor::new(f, buffers))).collect();
            let factor_rows =
                Pointers(padded.iter().map(|f| f.as_ref().map_or(std::ptr::null(), Factor::as_ptr)).collect());
            with_output(out, buffers, |rows| {
                let shared = &factor_rows;
                tensor.tasks[mode].run(rows, stride, buffers, |task, row0| {
                    let operands =
                        Operands { factors: shared.get(), stride, out: row0, ahead: tensor.plan.modes[mode].ahead };
                    // SAFETY: the stride is whole cache lines, so whole registers; the formats hold coordinates below the
                    // dims, which `check_shapes` compared with the operands' rows; `run` gives the task rows of its own
                    // window, which contains every row that its part names.
                    unsafe { tensor.stored.compute(self.arch(), task, mode, operands) };
                });
            });
            padded.into_iter().flatten().for_each(|factor| factor.release(buffers));
        });
        Ok(())
    }

    /// [`Cpu::prepare_mttkrp`] with the plan that [`MttkrpPlan::choose`] makes for this machine and a format (or none, to
    /// have it chosen), at rank `rank`.
    ///
    /// # Errors
    /// As [`MttkrpPlan::choose`] and [`Cpu::prepare_mttkrp`].
    pub fn prepare_mttkrp_as<T: Scalar>(
        &self,
        coo: &CooTensor<T>,
        rank: usize,
        format: Option<MttkrpFormat>,
    ) -> Result<Mttkrp<T>> {
        let request = crate::plan::MttkrpRequest {
            rank,
            value_bytes: size_of::<T>(),
            threads: self.threads(),
            memory: None,
            format,
        };
        let stats = self.install(|| crate::plan::TensorStats::of(coo));
        let plan = MttkrpPlan::choose(&stats, &crate::machine::Machine::detect(), request)?;
        self.prepare_mttkrp(coo, &plan)
    }
}

/// Rows 0 of the factors, read by many threads.
struct Pointers<T>(Vec<*const T>);
// SAFETY: the factors are only read, and outlive the call that shares them.
unsafe impl<T: Sync> Sync for Pointers<T> {}

impl<T> Pointers<T> {
    fn get(&self) -> &[*const T] {
        &self.0
    }
}

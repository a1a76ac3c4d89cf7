//! MTTKRP, the kernel of the CP decomposition: `out = X_(n) (A_{N-1} (.) ... A_{n+1} (.) A_{n-1} ... (.) A_0)`, that is
//! `out[i_n, :] = sum over the nonzeros of x * prod_{m != n} A_m[i_m, :]`.
//!
//! ```text
//! plan    = MttkrpPlan::choose(stats, machine, options, target)     pure
//! tensor  = cpu.prepare_planned(coo, plan)                          re-lays the nonzeros, once
//! cpu.mttkrp(tensor, factors, mode, out)                            as often as there are factors
//! ```
//!
//! Which format serves which mode how:
//!
//! | format | root mode | modes between | leaf mode |
//! | --- | --- | --- | --- |
//! | coordinates, HiCOO, linearised | element-centric (coordinates: row-centric for the mode they are sorted by) | same | same |
//! | CSF, B-CSF, MM-CSF | slice algorithm (one CSF per mode: element-centric if asked for) | slice or fiber algorithm | nonzero algorithm |
//! | tiled | rows in registers, one copy per mode | same | same |
//! | joint | all modes at once from the same factors ([`Cpu::mttkrp_all`]); one by one as coordinates | same | same |
//! | tree | from partial products that a sweep shares between modes ([`Cpu::mttkrp_sweep`]) | same | same |
//!
//! No locks and no atomics: tasks that own their rows write them, others add to privatised outputs that are summed in a
//! fixed order. So the result has the same bits for the same plan, whatever the threads do.

mod counts;
mod cuts;
mod measure;
mod operands;
mod part;
mod privatised;
mod stored;
mod streamed;
mod sweep;
mod tree;

use sparsimd_kernels::{Scalar, Stored as Element};

pub use self::counts::MttkrpCounts;
use self::operands::{Buffers, Factor, check_shapes, padded, pointers, release, with_output};
use self::part::{Call, Part};
use self::stored::Stored;
pub use self::streamed::StreamedTensor;
#[cfg(feature = "decomp")]
pub(crate) use self::sweep::SweepState;
use self::tree::Tree;
use crate::cpu::Cpu;
use crate::dense::{MatMut, MatRef};
use crate::error::{Error, Result};
use crate::formats::CooTensor;
use crate::plan::{Effort, MttkrpAlgorithm, MttkrpPlan, TensorOptions, TensorStats};

/// A tensor laid out for MTTKRP as an [`MttkrpPlan`] says, with the buffers that its calls reuse.
#[derive(Debug)]
pub struct MttkrpTensor<T> {
    plan: MttkrpPlan,
    dims: Vec<usize>,
    nnz: usize,
    norm_squared: f64,
    body: Body<T>,
    buffers: Buffers<T>,
}

/// What the outputs are computed from.
#[derive(Debug)]
enum Body<T> {
    /// Every mode from the nonzeros.
    Modes(Box<Part<T>>),
    /// Modes in groups, by way of partial products.
    Tree(Tree<T>),
}

impl<T: Scalar> MttkrpTensor<T> {
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
        match &self.body {
            Body::Modes(part) => part.stored.index_bytes(),
            Body::Tree(tree) => tree.index_bytes(),
        }
    }

    /// The algorithm that computes `mode`; none for several trees with different ones, and where there is no such mode.
    pub fn algorithm(&self, mode: usize) -> Option<MttkrpAlgorithm> {
        match &self.body {
            _ if mode >= self.dims.len() => None,
            Body::Modes(part) => part.stored.algorithm(mode),
            // Both steps sum rows of the output in registers.
            Body::Tree(_) => Some(MttkrpAlgorithm::Row),
        }
    }

    /// Rows of privatised outputs that the tasks of `mode` add up; 0 when every task owns its rows.
    ///
    /// # Panics
    /// When there is no such mode, as slice indexing does.
    pub fn privatised_rows(&self, mode: usize) -> usize {
        match &self.body {
            Body::Modes(part) => part.privatised_rows(mode),
            Body::Tree(tree) => tree.group(mode).privatised_rows(mode),
        }
    }

    /// What one pass serves all modes of, if the format has it.
    fn joint(&self) -> Option<&Part<T>> {
        match &self.body {
            Body::Modes(part) => Some(&**part).filter(|part| part.is_joint()),
            Body::Tree(_) => None,
        }
    }

    /// The modes in the order in which [`Cpu::mttkrp_sweep`] computes them.
    pub fn sweep_order(&self) -> Vec<usize> {
        match &self.body {
            Body::Modes(_) => (0..self.dims.len()).collect(),
            Body::Tree(tree) => tree.groups().iter().flat_map(|group| group.modes().iter().copied()).collect(),
        }
    }
}

impl Cpu {
    /// Prepares `coo` for MTTKRP with the options' rank, as [`MttkrpPlan::choose`] finds best on this executor's machine.
    ///
    /// # Errors
    /// As [`Cpu::plan_tensor`] and [`Cpu::prepare_planned`].
    ///
    /// ```
    /// use sparsimd::{Cpu, CooTensor, Mat};
    /// use sparsimd::plan::TensorOptions;
    /// # fn main() -> sparsimd::Result<()> {
    /// // 2 at (0, 1, 0) and 3 at (1, 1, 2).
    /// let coo = CooTensor::new(vec![2, 2, 3], vec![vec![0, 1], vec![1, 1], vec![0, 2]], vec![2.0f32, 3.0])?;
    /// let cpu = Cpu::new()?;
    /// let tensor = cpu.prepare_tensor(&coo, &TensorOptions::new(4))?;
    /// let factors = [2, 2, 3].map(|rows| Mat::from_fn(rows, 4, |i, _| (i + 1) as f32).expect("small"));
    /// let views = [factors[0].as_ref(), factors[1].as_ref(), factors[2].as_ref()];
    /// let mut out = Mat::zeros(2, 4)?;
    /// cpu.mttkrp(&tensor, &views, 0, out.as_mut())?;
    /// assert_eq!((out.row(0)[0], out.row(1)[0]), (2.0 * 2.0 * 1.0, 3.0 * 2.0 * 3.0));
    /// # Ok(())
    /// # }
    /// ```
    #[inline(never)]
    pub fn prepare_tensor<T: Scalar>(&self, coo: &CooTensor<T>, options: &TensorOptions) -> Result<MttkrpTensor<T>> {
        match options.effort {
            Effort::Estimate => self.prepare_planned(coo, &self.plan_tensor(coo, options)?),
            Effort::Measure => self.prepare_tensor_measured(coo, options),
        }
    }

    /// The plan that [`Cpu::prepare_tensor`] follows.
    ///
    /// # Errors
    /// As [`MttkrpPlan::choose`].
    #[inline(never)]
    pub fn plan_tensor<T: Scalar>(&self, coo: &CooTensor<T>, options: &TensorOptions) -> Result<MttkrpPlan> {
        let stats = self.install(|| TensorStats::of(coo));
        MttkrpPlan::choose(&stats, self.machine(), options, &self.target::<T>())
    }

    /// Prepares `coo` as `plan` says, which may have been made for another tensor of the same dimensions.
    ///
    /// # Errors
    /// [`Error::Argument`] when the plan is for other dimensions; [`Error::Structure`] when two entries have the same
    /// coordinates; [`Error::Unavailable`] when the coordinates do not fit the format.
    #[inline(never)]
    pub fn prepare_planned<T: Scalar>(&self, coo: &CooTensor<T>, plan: &MttkrpPlan) -> Result<MttkrpTensor<T>> {
        if plan.dims != coo.dims() {
            let detail = format!("is for a tensor of {:?}, not of {:?}", plan.dims, coo.dims());
            return Err(Error::argument("plan", detail));
        }
        self.install(|| {
            let body = match &plan.tree {
                Some(tree) => Body::Tree(Tree::new(coo, tree, plan)?),
                None => {
                    let prefetch_distance = plan.modes.iter().map(|mode| mode.prefetch_distance).collect();
                    Body::Modes(Box::new(Part::new(Stored::new(coo, plan)?, coo.dims(), prefetch_distance, plan)))
                }
            };
            Ok(MttkrpTensor {
                plan: plan.clone(),
                dims: coo.dims().to_vec(),
                nnz: coo.nnz(),
                norm_squared: coo.values().iter().map(|x| x.to_f64() * x.to_f64()).sum(),
                body,
                buffers: Buffers::default(),
            })
        })
    }

    /// `out[i_mode, :] = sum over the nonzeros of x * prod_{m != mode} factors[m][i_m, :]`.
    ///
    /// `factors[m]` has the length of mode m in rows and R columns, `out` the length of `mode` and R columns; the factor of
    /// `mode` is not read. The same plan gives the same bits.
    ///
    /// Factors may store bf16 or f16 ([`Stored`](crate::Stored)): the tensor's values, the products and `out` are f32 then. A
    /// tensor is best prepared for them, by [`TensorOptions::factors`].
    ///
    /// # Errors
    /// [`Error::Shape`] when an operand does not fit the tensor or R differs; [`Error::Argument`] for a mode out of range
    /// and rank 0.
    #[inline(never)]
    pub fn mttkrp<'a, D: Element>(
        &self,
        tensor: &MttkrpTensor<D::Scalar>,
        factors: &[MatRef<'a, D>],
        mode: usize,
        out: MatMut<'_, D::Scalar>,
    ) -> Result<()> {
        check_shapes(&tensor.dims, mode, factors, &out)?;
        let buffers = &tensor.buffers;
        let call = Call::new(self, out.cols(), buffers);
        // Rows of factors and of the result may have to be copied.
        let rows: usize = tensor.dims.iter().sum();
        let work = (tensor.nnz * tensor.dims.len()).saturating_add(rows).saturating_mul(out.cols());
        self.install_loops(work < self.alone(), || {
            with_output(out, buffers, |rows| match &tensor.body {
                Body::Modes(part) => {
                    let all = padded(factors, mode, |f| Factor::new(f, buffers));
                    // SAFETY: the stride is whole cache lines; `check_shapes` compared the operands' rows with the modes'
                    // lengths.
                    unsafe { part.run(call, mode, &pointers(&all), rows) };
                    release(all, buffers);
                }
                Body::Tree(tree) => {
                    let group = tree.group(mode);
                    let y = group.products(call, factors);
                    group.output(call, mode, &y, factors, rows);
                    buffers.give(y);
                }
            });
        });
        Ok(())
    }
}

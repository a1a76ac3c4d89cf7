//! FusedMM of heads and its gradients.

use std::ops::Range;

use super::CpuHandle;
use super::handle::{self, Handle, Place};
use super::matrix::CsrHandle;
use super::plan::strategy_of;
use super::product::function_of;
use super::status::{Failure, Outcome, Status, guard};
use super::value::{Either, Element, Family};
use super::view::{mat, mat_mut, slice, slice_mut};
use crate::dense::{MatMut, addresses};
use crate::ops::{Differentiable, EdgeWeighting, FusedGradient};
use crate::plan::{Op, PlanOptions};
use sparsimd_kernels::Scalar;

/// A matrix prepared for an operation and its gradients.
#[derive(Debug)]
pub struct DifferentiableHandle(());

pub(super) struct Differentiables;
impl Family for Differentiables {
    const NAME: &'static str = "differentiable";
    type Of<T: Scalar> = Differentiable<T>;
}

impl Handle for DifferentiableHandle {
    type Value = Either<Differentiables>;
    const NAME: &'static str = "differentiable";
    const TAG: u64 = u64::from_le_bytes(*b"simddiff");
}

/// How FusedMM of heads weighs edges.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Weighting {
    /// A sparsimd_edge.
    pub edge: u32,
    /// 0: scores are products of rows of C and B. 1: scores are sums of one number for each row and one for each column.
    pub sums: u32,
    /// Heads, side by side in the columns of each dense matrix.
    pub heads: usize,
    /// The factor of a softmax, or the slope of a leaky rectifier.
    pub parameter: f64,
    /// Probability that a weight is dropped, from 0 to below 1.
    pub dropout: f64,
    /// Decides with the number of the edge and head which are dropped.
    pub seed: u64,
}

/// Prepares the matrix for about `reuse` runs of sparsimd_fusedmm_heads_f32() and sparsimd_fusedmm_gradient_f32() on dense operands of `n`
/// columns, by a sparsimd_path, with its transpose.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_differentiable_create(
    cpu: *const CpuHandle,
    csr: *const CsrHandle,
    n: usize,
    path: u32,
    reuse: usize,
    differentiable: *mut *mut DifferentiableHandle,
) -> Status {
    guard(|| {
        // SAFETY: by the rules of the interface.
        let (place, cpu, csr) = unsafe { (Place::new(differentiable)?, handle::get(cpu)?, handle::get(csr)?) };
        let (strategy, effort) = strategy_of(path)?;
        let options = PlanOptions::new(Op::FusedMm, n).strategy(strategy).reuse(reuse).effort(effort);
        place.put(match csr {
            Either::F32(matrix) => Either::F32(cpu.prepare_differentiable(matrix.sparse(), &options)?),
            Either::F64(matrix) => Either::F64(cpu.prepare_differentiable(matrix.sparse(), &options)?),
        });
        Ok(())
    })
}

/// Frees it. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_differentiable_destroy(differentiable: *mut DifferentiableHandle) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { handle::destroy(differentiable) })
}

/// A dense matrix of an argument list: its first element and its row stride.
type Dense<T> = (*const T, usize);
type DenseMut<T> = (*mut T, usize);

/// The operands that the operation and its gradient share.
struct Given<'a, T: Scalar> {
    a: &'a Differentiable<T>,
    weights: EdgeWeighting<'a, T>,
    d: crate::dense::MatRef<'a, T>,
    inputs: Vec<Range<usize>>,
}

impl<'a, T: Element> Given<'a, T> {
    /// # Safety
    /// By the rules of the interface.
    unsafe fn new(
        a: *const DifferentiableHandle,
        weighting: *const Weighting,
        [left, right]: [Dense<T>; 2],
        [n, p]: [usize; 2],
        bias: *const T,
        d: Dense<T>,
    ) -> Outcome<Self> {
        // SAFETY: by the caller's promise.
        unsafe {
            let a = handle::get(a)?.of::<T>()?;
            let [weighting] = slice("weighting", weighting, 1)? else {
                return Err(Failure::argument("weighting", "is one"));
            };
            let (pattern, sums) = (a.pattern(), weighting.sums != 0);
            let n = if sums { weighting.heads } else { n };
            let left = mat(if sums { "a" } else { "c" }, left.0, pattern.rows(), n, left.1)?;
            let right = mat("b", right.0, pattern.cols(), n, right.1)?;
            let d = mat("d", d.0, pattern.cols(), p, d.1)?;
            let mut inputs = vec![addresses(left.data()), addresses(right.data()), addresses(d.data())];
            let edge = function_of(weighting.edge, T::from_f64(weighting.parameter))?;
            let mut weights = match sums {
                true => EdgeWeighting::sums(edge, left, right),
                false => EdgeWeighting::dots(edge, left, right).heads(weighting.heads),
            };
            if !bias.is_null() {
                let bias = slice("bias", bias, pattern.nnz())?;
                inputs.push(addresses(bias));
                weights = weights.bias(bias);
            }
            Ok(Self { a, weights: weights.dropout(weighting.dropout, weighting.seed), d, inputs })
        }
    }

    /// A result, which overlaps no input and no result before.
    ///
    /// # Safety
    /// By the rules of the interface.
    unsafe fn result<'m>(&mut self, name: &str, data: DenseMut<T>, rows: usize, cols: usize) -> Outcome<MatMut<'m, T>> {
        // SAFETY: by the caller's promise.
        let mut result = unsafe { mat_mut(name, data.0, rows, cols, data.1, &self.inputs)? };
        self.inputs.push(addresses(result.reborrow().into_data()));
        Ok(result)
    }

    /// Numbers by nonzero, unless null, likewise.
    ///
    /// # Safety
    /// By the rules of the interface.
    unsafe fn numbers<'m>(&mut self, name: &str, data: *mut T) -> Outcome<Option<&'m mut [T]>> {
        if data.is_null() {
            return Ok(None);
        }
        // SAFETY: by the caller's promise.
        let numbers = unsafe { slice_mut(name, data, self.a.pattern().nnz(), &self.inputs)? };
        self.inputs.push(addresses(numbers));
        Ok(Some(numbers))
    }
}

unsafe fn forward<T: Element>(
    cpu: *const CpuHandle,
    given: Outcome<Given<'_, T>>,
    p: usize,
    e: DenseMut<T>,
    lse: *mut T,
) -> Outcome {
    let mut given = given?;
    let (rows, heads) = (given.a.pattern().rows(), given.weights.head_count());
    // SAFETY: by the rules of the interface.
    let (cpu, e, lse) = unsafe {
        let e = given.result("e", e, rows, p)?;
        let lse = if lse.is_null() || !given.weights.is_softmax() {
            None
        } else {
            Some(given.result("lse", (lse, heads), rows, heads)?)
        };
        (handle::get(cpu)?, e, lse)
    };
    cpu.fusedmm_heads(given.a, &given.weights, given.d, e, lse)?;
    Ok(())
}

/// Where the gradients go.
struct Results<T> {
    left: DenseMut<T>,
    right: DenseMut<T>,
    d: DenseMut<T>,
    values: *mut T,
    bias: *mut T,
}

unsafe fn backward<T: Element>(
    cpu: *const CpuHandle,
    given: Outcome<Given<'_, T>>,
    p: usize,
    lse: *const T,
    de: Dense<T>,
    out: Results<T>,
) -> Outcome {
    let mut given = given?;
    let pattern = given.a.pattern();
    let (rows, cols, heads) = (pattern.rows(), pattern.cols(), given.weights.head_count());
    let n = given.weights.operand_columns();
    // SAFETY: by the rules of the interface.
    unsafe {
        let cpu = handle::get(cpu)?;
        let lse = if lse.is_null() { None } else { Some(mat("lse", lse, rows, heads, heads)?) };
        let de = mat("de", de.0, rows, p, de.1)?;
        given.inputs.extend(lse.iter().chain([&de]).map(|x| addresses(x.data())));
        let out = FusedGradient {
            left: given.result("dleft", out.left, rows, n)?,
            right: given.result("dright", out.right, cols, n)?,
            d: given.result("dd", out.d, cols, p)?,
            values: given.numbers("dvalues", out.values)?,
            bias: given.numbers("dbias", out.bias)?,
        };
        cpu.fusedmm_gradient(given.a, &given.weights, given.d, lse, de, out)?;
    }
    Ok(())
}

/// E_ih = sum over the nonzeros p = (i, j) of w_ph D_jh for each head h of the weighting: D dense K x p, E dense M x p. Scores are C_ih . B_jh
/// (`left` is C, dense M x n, `right` B, dense K x n) or a_ih + b_jh (`left` is a, M x heads, `right` b, K x heads; `n` is not looked at).
/// `bias` is null or has one number for each nonzero, added to the logits of a softmax. `lse` is null or receives M x heads numbers, the
/// logarithms of each row's sum of exponentials, which the gradient needs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_fusedmm_heads_f32(
    cpu: *const CpuHandle,
    differentiable: *const DifferentiableHandle,
    weighting: *const Weighting,
    n: usize,
    left: *const f32,
    ldleft: usize,
    right: *const f32,
    ldright: usize,
    bias: *const f32,
    p: usize,
    d: *const f32,
    ldd: usize,
    e: *mut f32,
    lde: usize,
    lse: *mut f32,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe {
        let given = Given::new(differentiable, weighting, [(left, ldleft), (right, ldright)], [n, p], bias, (d, ldd));
        forward(cpu, given, p, (e, lde), lse)
    })
}

/// The gradients of sparsimd_fusedmm_heads_f32() with the same operands, `lse` of it (not looked at without a softmax) and `de`, the gradient
/// of E: `dleft`, `dright` and `dd` are as large as `left`, `right` and `d`; `dvalues` and `dbias` are null or have one number for each
/// nonzero, where the edge function uses values and where there is a bias.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_fusedmm_gradient_f32(
    cpu: *const CpuHandle,
    differentiable: *const DifferentiableHandle,
    weighting: *const Weighting,
    n: usize,
    left: *const f32,
    ldleft: usize,
    right: *const f32,
    ldright: usize,
    bias: *const f32,
    p: usize,
    d: *const f32,
    ldd: usize,
    lse: *const f32,
    de: *const f32,
    ldde: usize,
    dleft: *mut f32,
    lddleft: usize,
    dright: *mut f32,
    lddright: usize,
    dd: *mut f32,
    lddd: usize,
    dvalues: *mut f32,
    dbias: *mut f32,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe {
        let given = Given::new(differentiable, weighting, [(left, ldleft), (right, ldright)], [n, p], bias, (d, ldd));
        let (left, right, d) = ((dleft, lddleft), (dright, lddright), (dd, lddd));
        backward(cpu, given, p, lse, (de, ldde), Results { left, right, d, values: dvalues, bias: dbias })
    })
}

/// As sparsimd_fusedmm_heads_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_fusedmm_heads_f64(
    cpu: *const CpuHandle,
    differentiable: *const DifferentiableHandle,
    weighting: *const Weighting,
    n: usize,
    left: *const f64,
    ldleft: usize,
    right: *const f64,
    ldright: usize,
    bias: *const f64,
    p: usize,
    d: *const f64,
    ldd: usize,
    e: *mut f64,
    lde: usize,
    lse: *mut f64,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe {
        let given = Given::new(differentiable, weighting, [(left, ldleft), (right, ldright)], [n, p], bias, (d, ldd));
        forward(cpu, given, p, (e, lde), lse)
    })
}

/// As sparsimd_fusedmm_gradient_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_fusedmm_gradient_f64(
    cpu: *const CpuHandle,
    differentiable: *const DifferentiableHandle,
    weighting: *const Weighting,
    n: usize,
    left: *const f64,
    ldleft: usize,
    right: *const f64,
    ldright: usize,
    bias: *const f64,
    p: usize,
    d: *const f64,
    ldd: usize,
    lse: *const f64,
    de: *const f64,
    ldde: usize,
    dleft: *mut f64,
    lddleft: usize,
    dright: *mut f64,
    lddright: usize,
    dd: *mut f64,
    lddd: usize,
    dvalues: *mut f64,
    dbias: *mut f64,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe {
        let given = Given::new(differentiable, weighting, [(left, ldleft), (right, ldright)], [n, p], bias, (d, ldd));
        let (left, right, d) = ((dleft, lddleft), (dright, lddright), (dd, lddd));
        backward(cpu, given, p, lse, (de, ldde), Results { left, right, d, values: dvalues, bias: dbias })
    })
}

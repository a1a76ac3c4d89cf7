//! TEW, element by element of two tensors, and TS, of a tensor and a number; both on stored entries only.

use std::cmp::Ordering;

use sparsimd_kernels::{Arithmetic, Scalar, Second, elementwise};

use super::broadcast::{common_dims, looked_up, repeated};
use crate::cpu::Cpu;
use crate::error::{Error, Result};
use crate::formats::{CooTensor, HiCoo};
use crate::parallel;
use crate::plan::streams;

/// Elements of one task: some 10 us of memory traffic.
const TASK: usize = 1 << 16;

impl Cpu {
    /// y = x op z of the values of two tensors with the same pattern, in any format that stores them in the same order.
    ///
    /// # Errors
    /// [`Error::Shape`] when the slices differ in length.
    #[inline(never)]
    pub fn tew_values<T: Scalar>(&self, op: Arithmetic, x: &[T], z: &[T], y: &mut [T]) -> Result<()> {
        if z.len() != x.len() || y.len() != x.len() {
            let detail = format!("{} and {} values for a result of {}", x.len(), z.len(), y.len());
            return Err(Error::shape("tew", detail));
        }
        self.elementwise(op, x, Second::Values(z), y);
        Ok(())
    }

    /// y = x op s of the values of a tensor in any format.
    ///
    /// # Errors
    /// [`Error::Shape`] when the slices differ in length; [`Error::Argument`] for a division by 0.
    pub fn ts_values<T: Scalar>(&self, op: Arithmetic, x: &[T], s: T, y: &mut [T]) -> Result<()> {
        if y.len() != x.len() {
            return Err(Error::shape("ts", format!("{} values for a result of {}", x.len(), y.len())));
        }
        if op == Arithmetic::Div && s == T::ZERO {
            return Err(Error::argument("s", "division by 0"));
        }
        self.elementwise(op, x, Second::Number(s), y);
        Ok(())
    }

    #[inline(never)]
    pub(crate) fn elementwise<T: Scalar>(&self, op: Arithmetic, x: &[T], z: Second<'_, T>, y: &mut [T]) {
        let operands = if matches!(z, Second::Values(_)) { 3 } else { 2 };
        let stream = streams(self.machine(), size_of_val(y).saturating_mul(operands));
        self.install_loops(y.len() < TASK, || {
            parallel::chunks_mut(y, TASK, |task, y| {
                let part = task * TASK..task * TASK + y.len();
                let x = &x[part.clone()];
                let z = match z {
                    Second::Values(z) => Second::Values(&z[part]),
                    number => number,
                };
                elementwise(self.arch(), op, x, z, y, stream);
            });
        });
    }

    /// Y = X op s on the stored entries: an entry that X does not store stays 0, also where 0 op s would not be 0.
    ///
    /// # Errors
    /// [`Error::Argument`] for a division by 0.
    pub fn ts<T: Scalar>(&self, op: Arithmetic, x: &CooTensor<T>, s: T) -> Result<CooTensor<T>> {
        let mut y = vec![T::ZERO; x.nnz()];
        self.ts_values(op, x.values(), s, &mut y)?;
        x.with_values(y)
    }

    /// As [`Cpu::ts`], in HiCOO or gHiCOO.
    ///
    /// # Errors
    /// As [`Cpu::ts`].
    pub fn ts_hicoo<T: Scalar>(&self, op: Arithmetic, x: &HiCoo<T>, s: T) -> Result<HiCoo<T>> {
        let mut y = vec![T::ZERO; x.nnz()];
        self.ts_values(op, x.values(), s, &mut y)?;
        x.with_values(y)
    }

    /// Y = X op Z by elements. With the same entries in the same order (checked) only the values are touched; else copies
    /// are sorted and merged, and Y comes in natural order.
    ///
    /// A smaller tensor is repeated along the modes in which it has length 1; shapes are aligned at their last modes, and a
    /// tensor of lower order has length 1 in the first ones. Sums and differences then store every repetition.
    ///
    /// Entries that only one tensor stores: the other's is 0. So add and sub give the union of the patterns, mul the
    /// intersection, div the pattern of X, which must be within that of Z. Results that happen to be 0 are stored.
    ///
    /// # Errors
    /// [`Error::Shape`] when the dims differ in a mode in which neither is 1; [`Error::Structure`] when an entry occurs twice in a
    /// tensor; [`Error::Memory`]; [`Error::Argument`] when an entry of X would be divided by one that Z does not store, naming its place.
    #[inline(never)]
    pub fn tew<T: Scalar>(&self, op: Arithmetic, x: &CooTensor<T>, z: &CooTensor<T>) -> Result<CooTensor<T>> {
        if x.dims() != z.dims() {
            return self.install(|| merge_broadcast(op, x, z));
        }
        if self.install_loops(x.nnz() < TASK, || x.same_coords(z)) {
            let mut y = vec![T::ZERO; x.nnz()];
            self.tew_values(op, x.values(), z.values(), &mut y)?;
            return x.with_values(y);
        }
        self.install(|| merge(op, x, z))
    }

    /// Y = X op Z of two tensors with the same entries in HiCOO or gHiCOO with the same blocks.
    ///
    /// # Errors
    /// [`Error::Shape`] when the patterns differ.
    pub fn tew_hicoo<T: Scalar>(&self, op: Arithmetic, x: &HiCoo<T>, z: &HiCoo<T>) -> Result<HiCoo<T>> {
        if !x.same_pattern(z) {
            return Err(Error::shape("tew", "the tensors differ in entries or blocks; convert them to coordinates"));
        }
        let mut y = vec![T::ZERO; x.nnz()];
        self.tew_values(op, x.values(), z.values(), &mut y)?;
        x.with_values(y)
    }
}

/// Entries of a stretch of the result.
struct Part<T> {
    coords: Vec<Vec<u32>>,
    values: Vec<T>,
}

/// Entry `p` of `x` against entry `q` of `z`.
fn compare<T: Scalar>(x: &CooTensor<T>, p: usize, z: &CooTensor<T>, q: usize) -> Ordering {
    let mut modes = x.all_coords().iter().zip(z.all_coords()).map(|(x, z)| x[p].cmp(&z[q]));
    modes.find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
}

/// X op Z of different shapes.
fn merge_broadcast<T: Scalar>(op: Arithmetic, x: &CooTensor<T>, z: &CooTensor<T>) -> Result<CooTensor<T>> {
    let dims = common_dims(x.dims(), z.dims())?;
    match op {
        Arithmetic::Mul | Arithmetic::Div if x.dims() == dims => looked_up(op, x, z),
        Arithmetic::Mul if z.dims() == dims => looked_up(op, z, x),
        _ => merge(op, &repeated(x, &dims)?, &repeated(z, &dims)?),
    }
}

/// X op Z of different patterns: both sorted, cut at the same places, merged in parallel.
fn merge<T: Scalar>(op: Arithmetic, x: &CooTensor<T>, z: &CooTensor<T>) -> Result<CooTensor<T>> {
    let natural: Vec<usize> = (0..x.order()).collect();
    let sorted = |t: &CooTensor<T>| -> Result<CooTensor<T>> {
        let mut t = t.clone();
        t.sort(&natural)?;
        t.check_sorted_unique()?;
        Ok(t)
    };
    let (x, z) = (&sorted(x)?, &sorted(z)?);
    // Every task gets a run of X, and those of Z before the next run's first entry.
    let before = |p: usize| {
        let (mut low, mut high) = (0, z.nnz());
        while low < high {
            let middle = (low + high) / 2;
            if compare(x, p, z, middle).is_gt() { low = middle + 1 } else { high = middle }
        }
        low
    };
    let mut cuts = vec![(0, 0)];
    cuts.extend((TASK..x.nnz()).step_by(TASK).map(|p| (p, before(p))));
    cuts.push((x.nnz(), z.nnz()));
    let part = |t: usize| merge_part(op, x, cuts[t].0..cuts[t + 1].0, z, cuts[t].1..cuts[t + 1].1);
    let parts = parallel::map_tasks(cuts.len() - 1, part).into_iter().collect::<Result<Vec<Part<T>>>>()?;
    let coords = (0..x.order()).map(|m| parts.iter().flat_map(|part| part.coords[m].iter().copied()).collect());
    let values = parts.iter().flat_map(|part| part.values.iter().copied()).collect();
    Ok(CooTensor::from_checked(x.dims().to_vec(), coords.collect(), values))
}

fn merge_part<T: Scalar>(
    op: Arithmetic,
    x: &CooTensor<T>,
    mut p: std::ops::Range<usize>,
    z: &CooTensor<T>,
    mut q: std::ops::Range<usize>,
) -> Result<Part<T>> {
    let mut out = Part { coords: vec![Vec::new(); x.order()], values: Vec::new() };
    let mut push = |from: &CooTensor<T>, at: usize, value: T| {
        out.coords.iter_mut().zip(from.all_coords()).for_each(|(out, from)| out.push(from[at]));
        out.values.push(value);
    };
    while !p.is_empty() || !q.is_empty() {
        let order = match (p.is_empty(), q.is_empty()) {
            (true, _) => Ordering::Greater,
            (_, true) => Ordering::Less,
            _ => compare(x, p.start, z, q.start),
        };
        match order {
            Ordering::Less => {
                match op {
                    Arithmetic::Add | Arithmetic::Sub => push(x, p.start, x.values()[p.start]),
                    Arithmetic::Mul => {}
                    Arithmetic::Div => {
                        let place = x.places().place(p.start);
                        return Err(Error::argument(
                            "z",
                            format!("X has an entry at {place:?}, Z has none: division by 0"),
                        ));
                    }
                }
                p.start += 1;
            }
            Ordering::Greater => {
                match op {
                    Arithmetic::Add => push(z, q.start, z.values()[q.start]),
                    Arithmetic::Sub => push(z, q.start, -z.values()[q.start]),
                    Arithmetic::Mul | Arithmetic::Div => {}
                }
                q.start += 1;
            }
            Ordering::Equal => {
                let (a, b) = (x.values()[p.start], z.values()[q.start]);
                let value = match op {
                    Arithmetic::Add => a + b,
                    Arithmetic::Sub => a - b,
                    Arithmetic::Mul => a * b,
                    Arithmetic::Div => a / b,
                };
                push(x, p.start, value);
                p.start += 1;
                q.start += 1;
            }
        }
    }
    Ok(out)
}

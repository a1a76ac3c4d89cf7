//! Compressed sparse fibers (Smith and Karypis): a tensor as a forest, one level per mode, in any order of the modes.
//!
//! The nodes of level 0 are the nonempty slices of the first mode in the order, those of the last level the nonzeros;
//! the children of a node are the coordinates that occur below it. Every level but the last has pointers to its
//! children, `children(l, n) = ptr[l][n] .. ptr[l][n + 1]`, which are nodes of level `l + 1`.

use std::sync::Arc;

use sparsimd_kernels::Scalar;

use super::coo_tensor::CooTensor;
use crate::error::{Error, Result};
use crate::memory::{self, copied, zeros};
use crate::parallel;

/// Nonzeros of one parallel task of the construction: large enough that counting per level costs nothing.
const TASK: usize = 1 << 16;

/// Where the nonzeros of a tensor in CSF are.
///
/// Invariants, held by construction and trusted by every kernel:
/// - `mode_order` names each mode once; level `l` holds coordinates of mode `mode_order[l]`, each below its dimension;
/// - `ptr[l]` starts at 0, strictly increases (no node is empty), has one entry more than level `l` has nodes, and ends
///   at the number of nodes of level `l + 1`; siblings ascend strictly unless the pattern was split (B-CSF).
#[derive(Debug, PartialEq, Eq)]
pub struct CsfPattern {
    dims: Vec<usize>,
    mode_order: Vec<usize>,
    ptr: Vec<Vec<usize>>,
    idx: Vec<Vec<u32>>,
}

/// A sparse tensor by fibers: a shared [`CsfPattern`] and one value per node of its last level.
#[derive(Clone, Debug, PartialEq)]
pub struct Csf<T> {
    pattern: Arc<CsfPattern>,
    values: Vec<T>,
}

impl CsfPattern {
    /// The pattern of the places `coords` (one array per mode), which ascend in `mode_order`.
    ///
    /// # Errors
    /// [`Error::Structure`] naming the first two entries at the same place.
    fn from_sorted(dims: &[usize], mode_order: &[usize], coords: &[Vec<u32>]) -> Result<Self> {
        let order = dims.len();
        let nnz = coords[0].len();
        let levels: Vec<&[u32]> = mode_order.iter().map(|&mode| coords[mode].as_slice()).collect();
        // The first level at which entry p differs from the one before: it opens a node on that level and all below.
        let opens = |p: usize| match p {
            0 => 0,
            _ => levels.iter().position(|c| c[p] != c[p - 1]).unwrap_or(order),
        };
        let tasks = nnz.div_ceil(TASK);
        let range = |task: usize| task * TASK..nnz.min((task + 1) * TASK);
        let counts = parallel::map_tasks(tasks, |task| {
            let mut count = vec![0usize; order];
            for p in range(task) {
                let first = opens(p);
                if first == order {
                    let place: Vec<u32> = coords.iter().map(|c| c[p]).collect();
                    return Err(Error::structure("CSF", format!("two entries at the place {place:?}")));
                }
                count[first] += 1;
            }
            // Opening level l opens everything below it.
            for l in 1..order {
                count[l] += count[l - 1];
            }
            Ok(count)
        });
        let counts = counts.into_iter().collect::<Result<Vec<_>>>()?;
        let total = |l: usize| counts.iter().map(|count| count[l]).sum::<usize>();
        let mut idx: Vec<Vec<u32>> = (0..order).map(|l| zeros("CSF", total(l))).collect::<Result<_>>()?;
        let mut ptr: Vec<Vec<usize>> = (0..order - 1).map(|l| zeros("CSF", total(l) + 1)).collect::<Result<_>>()?;
        for l in 0..order - 1 {
            *ptr[l].last_mut().expect("one entry more than nodes") = idx[l + 1].len();
        }

        // Each task fills its own stretch of every level.
        let mut rest_idx: Vec<&mut [u32]> = idx.iter_mut().map(Vec::as_mut_slice).collect();
        let mut rest_ptr: Vec<&mut [usize]> = ptr.iter_mut().map(Vec::as_mut_slice).collect();
        let mut start = vec![0usize; order];
        let mut jobs = Vec::with_capacity(tasks);
        for (task, count) in counts.iter().enumerate() {
            let own_idx: Vec<_> = (0..order).map(|l| take_front(&mut rest_idx[l], count[l])).collect();
            let own_ptr: Vec<_> = (0..order - 1).map(|l| take_front(&mut rest_ptr[l], count[l])).collect();
            jobs.push((task, start.clone(), own_idx, own_ptr));
            start.iter_mut().zip(count).for_each(|(s, c)| *s += c);
        }
        parallel::consume(jobs, |(task, start, mut own_idx, mut own_ptr)| {
            let mut next = vec![0usize; order];
            for p in range(task) {
                for l in opens(p)..order {
                    own_idx[l][next[l]] = levels[l][p];
                    if l + 1 < order {
                        own_ptr[l][next[l]] = start[l + 1] + next[l + 1];
                    }
                    next[l] += 1;
                }
            }
        });
        Ok(Self { dims: dims.to_vec(), mode_order: mode_order.to_vec(), ptr, idx })
    }

    /// The same tensor with every node of level `order - 2` (a fiber) that has more than `longest` nonzeros repeated as
    /// often as needed, so that none has more; the nonzeros keep their order.
    pub(crate) fn split_fibers(&self, longest: usize) -> Self {
        let order = self.order();
        let mut ptr: Vec<_> = self.ptr.iter().map(|level| copied(level)).collect();
        let mut idx: Vec<_> = self.idx.iter().map(|level| copied(level)).collect();
        if let Some(level) = order.checked_sub(2)
            && !parallel::all(self.nodes(level), |fiber| self.children(level, fiber).len() <= longest)
        {
            // Pieces before each fiber, by tasks: each one counts its own, then starts where the ones before it end.
            let fibers = self.nodes(level);
            let pieces = |fiber: usize| self.children(level, fiber).len().div_ceil(longest);
            let task = |t: usize| t * TASK..fibers.min((t + 1) * TASK);
            let tasks = fibers.div_ceil(TASK);
            let counts: Vec<usize> = parallel::map_tasks(tasks, |t| task(t).map(pieces).sum());
            let total = counts.iter().sum();
            (ptr[level], idx[level]) = (vec![0; total + 1], vec![0; total]);
            ptr[level][total] = self.nnz();
            let mut before = vec![0; fibers + 1];
            before[fibers] = total;
            let (mut rest_ptr, mut rest_idx) = (&mut ptr[level][..total], &mut idx[level][..]);
            let mut rest_before = &mut before[..fibers];
            let mut start = 0;
            let mut jobs = Vec::with_capacity(tasks);
            for (t, &count) in counts.iter().enumerate() {
                let own = (take_front(&mut rest_ptr, count), take_front(&mut rest_idx, count));
                jobs.push((t, start, own, take_front(&mut rest_before, task(t).len())));
                start += count;
            }
            parallel::consume(
                jobs,
                |(t, start, (own_ptr, own_idx), before): (_, _, (&mut [usize], &mut [u32]), &mut [usize])| {
                    let mut next = 0;
                    for (fiber, before) in task(t).zip(before) {
                        *before = start + next;
                        for first in self.children(level, fiber).step_by(longest) {
                            (own_ptr[next], own_idx[next]) = (first, self.idx[level][fiber]);
                            next += 1;
                        }
                    }
                },
            );
            if level > 0 {
                parallel::chunks_mut(&mut ptr[level - 1], TASK, |_, part| {
                    part.iter_mut().for_each(|child| *child = before[*child])
                });
            }
        }
        Self { dims: self.dims.clone(), mode_order: self.mode_order.clone(), ptr, idx }
    }

    /// The part of the tree below some nodes of level 0: the slices of a range.
    #[cfg(feature = "vulkan")]
    fn slices(&self, slices: std::ops::Range<usize>) -> Self {
        let (mut ptr, mut idx) = (Vec::new(), vec![self.idx[0][slices.clone()].to_vec()]);
        let mut nodes = slices;
        for (level, children) in self.ptr.iter().enumerate() {
            let first = children[nodes.start];
            ptr.push(children[nodes.start..=nodes.end].iter().map(|child| child - first).collect());
            nodes = first..children[nodes.end];
            idx.push(self.idx[level + 1][nodes.clone()].to_vec());
        }
        Self { dims: self.dims.clone(), mode_order: self.mode_order.clone(), ptr, idx }
    }

    /// First nonzero below each node of level 0, and the end of the last one's.
    pub(crate) fn slice_ptr(&self) -> Vec<usize> {
        let mut slices: Vec<usize> = (0..=self.nodes(0)).collect();
        for children in &self.ptr {
            slices.iter_mut().for_each(|node| *node = children[*node]);
        }
        slices
    }

    /// Number of modes, which is the number of levels.
    pub fn order(&self) -> usize {
        self.dims.len()
    }

    /// Length of each mode.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The mode of each level, root first.
    pub fn mode_order(&self) -> &[usize] {
        &self.mode_order
    }

    /// The level of `mode`; [`CsfPattern::order`] when there is no such mode.
    pub fn level_of(&self, mode: usize) -> usize {
        self.mode_order.iter().position(|&m| m == mode).unwrap_or(self.order())
    }

    /// Number of nodes of `level`: nonempty slices at level 0, fibers at `order - 2`, nonzeros at `order - 1`.
    ///
    /// # Panics
    /// When `level` is not below [`CsfPattern::order`], as slice indexing does.
    pub fn nodes(&self, level: usize) -> usize {
        self.idx[level].len()
    }

    /// Number of nonzeros.
    pub fn nnz(&self) -> usize {
        self.idx[self.order() - 1].len()
    }

    /// Coordinate of each node of `level`.
    ///
    /// # Panics
    /// When `level` is not below [`CsfPattern::order`], as slice indexing does.
    pub fn idx(&self, level: usize) -> &[u32] {
        &self.idx[level]
    }

    /// Start of each node's children in level `level + 1`, and the end of the last one's.
    ///
    /// # Panics
    /// When `level` is not below the last one, as slice indexing does.
    pub fn ptr(&self, level: usize) -> &[usize] {
        &self.ptr[level]
    }

    /// The nodes of level `level + 1` below `node`.
    ///
    /// # Panics
    /// When there is no such node, or the level is the last one, as slice indexing does.
    pub fn children(&self, level: usize, node: usize) -> std::ops::Range<usize> {
        self.ptr[level][node]..self.ptr[level][node + 1]
    }

    /// Bytes of the coordinates (4 each) and pointers (8 each) of all levels.
    pub fn index_bytes(&self) -> usize {
        let indices: usize = self.idx.iter().map(Vec::len).sum();
        let pointers: usize = self.ptr.iter().map(Vec::len).sum();
        indices * size_of::<u32>() + pointers * size_of::<usize>()
    }

    /// The coordinate arrays of all nonzeros, one per mode, in the order of the last level.
    fn expand(&self) -> Vec<Vec<u32>> {
        let mut coords = vec![Vec::new(); self.order()];
        // Nonzeros below each node of the level at hand, found bottom-up.
        let mut below: Vec<usize> = (0..=self.nnz()).collect();
        for l in (0..self.order()).rev() {
            if l + 1 < self.order() {
                below = self.ptr[l].iter().map(|&child| below[child]).collect();
            }
            let mut indices = Vec::with_capacity(self.nnz());
            for (node, &i) in self.idx[l].iter().enumerate() {
                indices.resize(below[node + 1], i);
            }
            coords[self.mode_order[l]] = indices;
        }
        coords
    }
}

/// The first `n` elements, which leave `rest`.
fn take_front<'a, U>(rest: &mut &'a mut [U], n: usize) -> &'a mut [U] {
    let (front, back) = std::mem::take(rest).split_at_mut(n);
    *rest = back;
    front
}

impl<T: Scalar> Csf<T> {
    /// The tensor `coo` with the levels in `mode_order`, root first. Runs in the rayon pool of the caller.
    ///
    /// # Errors
    /// [`Error::Argument`] when `mode_order` does not name every mode once; [`Error::Structure`] when two entries are at
    /// the same place.
    #[inline(never)]
    pub fn from_coo(coo: &CooTensor<T>, mode_order: &[usize]) -> Result<Self> {
        // A copy is sorted only when need be.
        let sorted;
        let source = if coo.is_sorted(mode_order)? {
            coo
        } else {
            coo.ensure("CSF", coo.entry_bytes())?;
            let mut copy = coo.clone();
            copy.sort(mode_order)?;
            sorted = copy;
            &sorted
        };
        // At most as many nodes in each level as there are nonzeros.
        let each = coo.order() * (size_of::<u32>() + size_of::<usize>()) + size_of::<T>();
        memory::ensure("CSF", coo.nnz().saturating_mul(each))?;
        let pattern = CsfPattern::from_sorted(source.dims(), mode_order, source.all_coords())?;
        Ok(Self { pattern: Arc::new(pattern), values: source.values().to_vec() })
    }

    /// The tensor with `values` on `pattern`, in the order of its last level.
    ///
    /// # Errors
    /// [`Error::Structure`] when the number of values is not the number of nonzeros.
    pub fn new(pattern: Arc<CsfPattern>, values: Vec<T>) -> Result<Self> {
        if values.len() != pattern.nnz() {
            let detail = format!("{} values for a pattern of {} nonzeros", values.len(), pattern.nnz());
            return Err(Error::structure("CSF", detail));
        }
        Ok(Self { pattern, values })
    }

    /// The same tensor with every fiber of more than `longest` nonzeros as several nodes.
    pub(crate) fn split_fibers(self, longest: usize) -> Self {
        let pattern = &self.pattern;
        let level = pattern.order().saturating_sub(2);
        let short = |fiber: usize| pattern.children(level, fiber).len() <= longest;
        if pattern.order() < 2 || parallel::all(pattern.nodes(level), short) {
            return self;
        }
        Self { pattern: Arc::new(pattern.split_fibers(longest)), values: self.values }
    }

    /// The part of the tree below some nodes of level 0: the slices of a range, which keep their coordinates.
    #[cfg(feature = "vulkan")]
    pub(crate) fn slices(&self, slices: std::ops::Range<usize>) -> Self {
        let nonzeros = self.pattern.slice_ptr();
        let values = self.values[nonzeros[slices.start]..nonzeros[slices.end]].to_vec();
        Self { pattern: Arc::new(self.pattern.slices(slices)), values }
    }

    /// Where the nonzeros are.
    pub fn pattern(&self) -> &Arc<CsfPattern> {
        &self.pattern
    }

    /// Number of nonzeros.
    pub fn nnz(&self) -> usize {
        self.values.len()
    }

    /// The value of each nonzero, in the order of the last level.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The value of each nonzero, to be changed in place.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// The same tensor as coordinates, sorted in this tensor's order of the modes.
    #[inline(never)]
    pub fn to_coo(&self) -> CooTensor<T> {
        CooTensor::new(self.pattern.dims.clone(), self.pattern.expand(), self.values.clone())
            .expect("a pattern holds a tensor's coordinates")
    }
}

/// The order of the modes that starts with `root` and goes on with the others, shortest first: the most compressed one
/// that has `root` at its root.
pub fn rooted_mode_order(dims: &[usize], root: usize) -> Vec<usize> {
    let mut modes: Vec<usize> = (0..dims.len()).filter(|&mode| mode != root).collect();
    sort_by_length(&mut modes, dims);
    modes.insert(0, root);
    modes
}

/// Sorts `modes` by their lengths `dims`, the shortest first, equal ones in their order.
pub(crate) fn sort_by_length(modes: &mut [usize], dims: &[usize]) {
    modes.sort_by_key(|&mode| dims[mode]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_a_tree_are_its_parts() {
        let x = small();
        let tree = Csf::from_coo(&x, &[2, 0, 1]).unwrap();
        let slice_ptr = tree.pattern.slice_ptr();
        assert_eq!((slice_ptr.len(), slice_ptr[4]), (5, 6));
        for (start, end) in (0..=4).flat_map(|end| (0..=end).map(move |start| (start, end))) {
            let got = tree.slices(start..end).to_coo();
            let whole = tree.to_coo();
            let nonzeros = slice_ptr[start]..slice_ptr[end];
            assert_eq!((got.dims(), got.values()), (x.dims(), &whole.values()[nonzeros.clone()]));
            assert!((0..3).all(|mode| got.coords(mode) == &whole.coords(mode)[nonzeros.clone()]), "{start}..{end}");
        }
    }

    /// The tensor of 6 nonzeros below slices 0 and 2 of mode 0; value = position.
    fn small() -> CooTensor<f32> {
        let coords = vec![vec![2, 0, 0, 2, 2, 0], vec![1, 1, 1, 0, 1, 0], vec![3, 0, 2, 1, 0, 3]];
        CooTensor::new(vec![3, 2, 4], coords, (0..6).map(|p| p as f32).collect()).unwrap()
    }

    #[test]
    fn levels_of_a_small_tensor() {
        let csf = Csf::from_coo(&small(), &[0, 1, 2]).unwrap();
        let pattern = csf.pattern();
        assert_eq!(pattern.idx(0), [0, 2]);
        assert_eq!(pattern.ptr(0), [0, 2, 4]);
        assert_eq!(pattern.idx(1), [0, 1, 0, 1]);
        assert_eq!(pattern.ptr(1), [0, 1, 3, 4, 6]);
        assert_eq!(pattern.idx(2), [3, 0, 2, 1, 0, 3]);
        assert_eq!(csf.values(), [5.0, 1.0, 2.0, 3.0, 4.0, 0.0]);
        assert_eq!(pattern.index_bytes(), 4 * (2 + 4 + 6) + 8 * (3 + 5));
        assert_eq!(pattern.level_of(2), 2);
    }

    #[test]
    fn to_coo_gives_the_same_tensor_in_every_mode_order() {
        for mode_order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut expected = small();
            expected.sort(&mode_order).unwrap();
            assert_eq!(Csf::from_coo(&small(), &mode_order).unwrap().to_coo(), expected);
        }
    }

    #[test]
    fn many_tasks_give_the_levels_of_one() {
        // 5 tasks, with fibers and slices that cross their borders.
        let n = 4 * TASK + 77;
        let coord = |shift: u32, mask: usize| (0..n).map(|p| ((p >> shift) & mask) as u32).collect::<Vec<_>>();
        let coords = vec![coord(17, 7), coord(15, 3), coord(3, 4095), coord(0, 7)];
        let coo = CooTensor::new(vec![8, 4, 4096, 8], coords, (0..n).map(|p| p as f64).collect()).unwrap();
        let csf = Csf::from_coo(&coo, &[0, 1, 2, 3]).unwrap();
        assert_eq!((csf.pattern().nodes(0), csf.pattern().nodes(1)), (3, 9));
        assert_eq!(csf.pattern().nodes(2), n.div_ceil(8));
        assert_eq!(csf.to_coo(), coo);
    }

    #[test]
    fn orders_one_and_two_and_no_entries() {
        let line = CooTensor::new(vec![5], vec![vec![3, 1]], vec![1.0f64, 2.0]).unwrap();
        let csf = Csf::from_coo(&line, &[0]).unwrap();
        assert_eq!((csf.pattern().idx(0), csf.values()), (&[1u32, 3][..], &[2.0, 1.0][..]));
        let empty = CooTensor::new(vec![5, 6, 7], vec![vec![]; 3], Vec::<f64>::new()).unwrap();
        let csf = Csf::from_coo(&empty, &[2, 0, 1]).unwrap();
        assert_eq!((csf.nnz(), csf.pattern().nodes(0), csf.pattern().ptr(0)), (0, 0, &[0usize][..]));
        assert_eq!(csf.to_coo(), empty);
    }

    #[test]
    fn refuses_duplicates_and_bad_orders() {
        let twice = CooTensor::new(vec![2, 2], vec![vec![1, 1], vec![0, 0]], vec![1.0f32, 2.0]).unwrap();
        let message = Csf::from_coo(&twice, &[1, 0]).unwrap_err().to_string();
        assert!(message.contains("[1, 0]"), "{message}");
        assert!(Csf::from_coo(&small(), &[0, 1]).is_err());
        assert!(Csf::from_coo(&small(), &[0, 1, 1]).is_err());
        let pattern = Csf::from_coo(&small(), &[0, 1, 2]).unwrap().pattern().clone();
        assert!(Csf::new(pattern, vec![0.0f32; 5]).is_err());
    }

    #[test]
    fn split_fibers_keep_the_tensor() {
        let csf = Csf::from_coo(&small(), &[0, 1, 2]).unwrap();
        let split = csf.pattern().split_fibers(1);
        assert_eq!((split.ptr(0), split.idx(1)), (&[0usize, 3, 6][..], &[0u32, 1, 1, 0, 1, 1][..]));
        assert_eq!(split.ptr(1), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(Csf::new(Arc::new(split), csf.values().to_vec()).unwrap().to_coo(), csf.to_coo());
        assert_eq!(csf.pattern().split_fibers(2), **csf.pattern());
    }

    #[test]
    fn shortest_modes_first_below_the_root() {
        assert_eq!(rooted_mode_order(&[9, 4, 7, 4], 2), [2, 1, 3, 0]);
    }
}

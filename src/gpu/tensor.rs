//! Sparse tensors and stacked factor matrices in device memory.

use sparsimd_gpu_host::{Buffer, Pod};

use super::blocks::Blocks;
use super::elements::COUNTED;
use super::operands::GpuMat;
use super::sparse::TaskBuffers;
use super::{DeviceScalar, Gpu};
use crate::dense::MatRef;
use crate::error::{Error, Result};
use crate::formats::{CooTensor, Csf};
use crate::plan::{DeviceTasks, MttkrpAlgorithm, MttkrpFormat};

/// Nonzeros of a fiber at most: longer ones are cut, as B-CSF does, so that items are of similar work.
const LONGEST_FIBER: usize = 256;
/// Items of a task at most: fibers, or nonzeros.
const ITEMS: usize = 256;

/// A sparse tensor in device memory, ready for MTTKRP in every mode.
///
/// It holds trees of fibers, or blocks ([`Gpu::tensor_of_blocks`]). Each tree serves the modes it was made for by the algorithm that its levels allow: the root's mode by the
/// slice algorithm, modes between by the fiber algorithm, the leaves' by the nonzero algorithm.
pub struct GpuTensor<T> {
    pub(super) gpu: Gpu,
    pub(super) dims: Vec<usize>,
    pub(super) nnz: usize,
    pub(super) norm_squared: f64,
    format: MttkrpFormat,
    pub(super) unit: Unit,
    pub(super) trees: Vec<Tree<T>>,
    /// Instead of trees.
    pub(super) blocks: Option<Box<Blocks<T>>>,
}

/// What is computed at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A row of the output or a part of a long one, by a team of lanes.
    Row,
    /// A run of nonzeros, which is added to shared rows atomically: trees have no routes.
    Run,
    /// An element of the output, by one lane: every mode has one tree, with the mode at its root.
    Element,
}

/// The nonzeros of one tree.
pub(super) struct Tree<T> {
    /// Coordinates of a fiber in the table.
    pub(super) levels: usize,
    /// First nonzero of each fiber, and the end of the last.
    pub(super) ptr: Buffer<u32>,
    /// Coordinates of each fiber, as rows of the stacked factors.
    pub(super) table: Buffer<u32>,
    /// The leaf's coordinate of each nonzero, as a row of the stacked factors.
    pub(super) leaf: Buffer<u32>,
    pub(super) values: Buffer<T>,
    /// For each mode, how this tree computes it, if it does.
    pub(super) routes: Vec<Option<Route>>,
}

/// How a tree computes one mode.
pub(super) struct Route {
    /// Whether items are fibers; else they are nonzeros.
    pub(super) fibers: bool,
    /// The level that is the output's row; the number of levels when that is the leaf's.
    pub(super) skip: usize,
    /// The items sorted by output row, unless they are so by themselves.
    pub(super) order: Option<Buffer<u32>>,
    /// Fiber of each nonzero, where items are nonzeros.
    pub(super) fiber_of: Option<Buffer<u32>>,
    pub(super) tasks: TaskBuffers,
}

/// The factor matrices of a decomposition in device memory, one below the other.
#[derive(Debug)]
pub struct GpuFactors<T: DeviceScalar> {
    pub(super) stack: GpuMat<T>,
    pub(super) dims: Vec<usize>,
}

/// Where each mode's rows start in the stack.
pub(super) fn bases(dims: &[usize]) -> impl Iterator<Item = usize> {
    dims.iter().scan(0, |next, d| {
        let base = *next;
        *next += d;
        Some(base)
    })
}

impl Gpu {
    /// The factor matrices in device memory. `factors[m]` is I_m x R.
    ///
    /// # Errors
    /// [`Error::Shape`] when the ranks differ, [`Error::Argument`] for no factors or rank 0, [`Error::Device`] when memory
    /// runs out.
    #[inline(never)]
    pub fn factors<T: DeviceScalar>(&self, factors: &[MatRef<'_, T>]) -> Result<GpuFactors<T>> {
        let rank = factors.first().map_or(0, |f| f.cols());
        let dims: Vec<usize> = factors.iter().map(|f| f.rows()).collect();
        self.factors_but(factors.len(), &dims, factors, rank)
    }

    /// The factor matrices of a tensor of `dims`, that of mode `skip` left as zeros.
    pub(crate) fn factors_but<T: DeviceScalar>(
        &self,
        skip: usize,
        dims: &[usize],
        factors: &[MatRef<'_, T>],
        rank: usize,
    ) -> Result<GpuFactors<T>> {
        let mut made = GpuFactors { stack: self.zeros(dims.iter().sum(), rank)?, dims: dims.to_vec() };
        for (mode, &f) in factors.iter().enumerate().filter(|&(mode, _)| mode != skip) {
            made.set(mode, f)?;
        }
        Ok(made)
    }

    /// The tensor of several trees that together hold each nonzero once: [`MmCsf`](crate::formats::MmCsf), CSF-ONE. Every tree
    /// serves every mode.
    ///
    /// # Errors
    /// [`Error::Structure`] for no trees, order 1 or trees of different dims, [`Error::Device`] when a tree is larger than what
    /// a kernel can see or memory runs out.
    #[inline(never)]
    pub fn tensor_of_parts<T: DeviceScalar>(&self, trees: &[Csf<T>]) -> Result<GpuTensor<T>> {
        let format = if trees.len() == 1 { MttkrpFormat::CsfOne } else { MttkrpFormat::MmCsf };
        let mut made = self.tensor_of(trees, format, Unit::Row, |_, _| true)?;
        made.norm_squared = trees.iter().map(|tree| squares(tree.values())).sum();
        Ok(made)
    }

    /// The tensor of one tree for each mode, which is the tree's root: CSF-ALL. The slice algorithm serves every mode.
    ///
    /// # Errors
    /// As [`Gpu::tensor_of_parts`].
    #[inline(never)]
    pub fn tensor_of_all<T: DeviceScalar>(&self, trees: &[Csf<T>]) -> Result<GpuTensor<T>> {
        self.tensor_of_roots(trees, Unit::Row)
    }

    /// [`Gpu::tensor_of_all`], computed by rows or by elements.
    pub(crate) fn tensor_of_roots<T: DeviceScalar>(&self, trees: &[Csf<T>], unit: Unit) -> Result<GpuTensor<T>> {
        let serves = |csf: &Csf<T>, mode| csf.pattern().mode_order()[0] == mode;
        let mut made = self.tensor_of(trees, MttkrpFormat::CsfAll, unit, serves)?;
        made.norm_squared = trees.first().map_or(0.0, |tree| squares(tree.values()));
        Ok(made)
    }

    fn tensor_of<T: DeviceScalar>(
        &self,
        trees: &[Csf<T>],
        format: MttkrpFormat,
        unit: Unit,
        serves: impl Fn(&Csf<T>, usize) -> bool,
    ) -> Result<GpuTensor<T>> {
        let Some(first) = trees.first() else {
            return Err(Error::structure("CSF", "a tensor on the device needs a tree"));
        };
        let dims = first.pattern().dims().to_vec();
        let mut made = GpuTensor::empty(self, dims.clone(), format, unit);
        for csf in trees {
            let pattern = csf.pattern();
            if pattern.dims() != dims || pattern.order() < 2 {
                return Err(Error::structure("CSF", format!("a tree of dims {:?} among {dims:?}", pattern.dims())));
            }
            let host = HostTree::of_csf(csf, &dims);
            made.trees.push(self.tree(&host, csf.values(), &dims, unit, |mode| serves(csf, mode))?);
            made.nnz += csf.nnz();
        }
        Ok(made)
    }

    /// The tensor straight from its coordinates: items are nonzeros, sorted for each mode by a list (the element- and row-centric
    /// algorithms in one: rows are cut into tasks of equal length). A tensor larger than what a kernel can see is cut.
    ///
    /// # Errors
    /// [`Error::Structure`] for order 1, [`Error::Device`] when memory runs out.
    #[inline(never)]
    pub fn tensor<T: DeviceScalar>(&self, coo: &CooTensor<T>) -> Result<GpuTensor<T>> {
        self.coordinates(coo, Unit::Row)
    }

    /// The tensor straight from its coordinates, for MTTKRP by atomic additions: no lists, so a third of the memory and less, and
    /// the sums are added in whatever order the device runs its tasks: the last bits differ from call to call.
    ///
    /// # Errors
    /// As [`Gpu::tensor`], and [`Error::Unavailable`] for f64 and on a device without atomic addition of 32-bit floats.
    #[inline(never)]
    pub fn tensor_atomic<T: DeviceScalar>(&self, coo: &CooTensor<T>) -> Result<GpuTensor<T>> {
        if T::DOUBLE || !self.info().atomic_add_f32 {
            let feature = if T::DOUBLE { "shaderBufferFloat64AtomicAdd" } else { "shaderBufferFloat32AtomicAdd" };
            let detail = format!("{}: needs {feature}", self.info().name);
            return Err(Error::Unavailable { what: "MTTKRP by atomic additions", detail });
        }
        self.coordinates(coo, Unit::Run)
    }

    fn coordinates<T: DeviceScalar>(&self, coo: &CooTensor<T>, unit: Unit) -> Result<GpuTensor<T>> {
        if coo.order() < 2 {
            return Err(Error::structure("COO", "MTTKRP needs a tensor of order 2 or more"));
        }
        let dims = coo.dims().to_vec();
        let most = self.shape::<T>().max_len / coo.order().max(4);
        let mut made = GpuTensor::empty(self, dims.clone(), MttkrpFormat::Coo, unit);
        (made.nnz, made.norm_squared) = (coo.nnz(), squares(coo.values()));
        for start in (0..coo.nnz()).step_by(most.max(1)) {
            let range = start..(start + most).min(coo.nnz());
            let host = HostTree::of_coo(coo, range.clone());
            made.trees.push(self.tree(&host, &coo.values()[range], &dims, unit, |_| unit != Unit::Run)?);
        }
        Ok(made)
    }

    fn tree<T: DeviceScalar>(
        &self,
        host: &HostTree,
        values: &[T],
        dims: &[usize],
        unit: Unit,
        serves: impl Fn(usize) -> bool,
    ) -> Result<Tree<T>> {
        // Elements are not put together of parts.
        let items = if unit == Unit::Element { usize::MAX } else { ITEMS };
        let most = self.shape::<T>().max_len;
        if values.len().max(host.table.len()) > most {
            let detail = format!("{}: a tree of {} nonzeros, more than {most}", self.info().name, values.len());
            return Err(Error::Device { detail });
        }
        let routes = (0..dims.len()).map(|mode| {
            if !serves(mode) {
                return Ok(None);
            }
            let route = host.route(mode, dims[mode], items);
            if unit == Unit::Element {
                // A step for each nonzero, and for each fiber and its coordinates.
                let steps = |&[_, start, end, _]: &[u32; 4]| {
                    let nonzeros = host.ptr[end as usize] - host.ptr[start as usize];
                    COUNTED * (nonzeros as usize + (end - start) as usize * (host.levels.len() + 1))
                };
                self.check_steps("MTTKRP by elements", route.tasks.tasks.iter().map(steps))?;
            }
            let order = route.order.as_deref().map(|order| self.array(order)).transpose()?;
            let fiber_of = route.fiber_of.as_deref().map(|fiber_of| self.array(fiber_of)).transpose()?;
            let tasks = TaskBuffers::new(self, &route.tasks)?;
            Ok(Some(Route { fibers: route.fiber_of.is_none(), skip: route.skip, order, fiber_of, tasks }))
        });
        let routes = routes.collect::<Result<_>>()?;
        Ok(Tree {
            levels: host.levels.len(),
            ptr: self.array(&host.ptr)?,
            table: self.array(&host.table)?,
            leaf: self.array(&host.leaf)?,
            values: self.array(values)?,
            routes,
        })
    }

    /// An array of a tensor in device memory.
    pub(super) fn array<W: Pod>(&self, data: &[W]) -> Result<Buffer<W>> {
        let mut buffer = Buffer::new(self.device(), data.len(), "tensor")?;
        self.timed_upload(|s| s.stream.upload(&mut buffer, 0, data))?;
        Ok(buffer)
    }
}

/// Sum of the squares.
pub(super) fn squares<T: DeviceScalar>(values: &[T]) -> f64 {
    values.iter().map(|x| x.to_f64() * x.to_f64()).sum()
}

impl<T: DeviceScalar> GpuTensor<T> {
    pub(super) fn empty(gpu: &Gpu, dims: Vec<usize>, format: MttkrpFormat, unit: Unit) -> Self {
        Self { gpu: gpu.clone(), dims, nnz: 0, norm_squared: 0.0, format, unit, trees: Vec::new(), blocks: None }
    }

    /// The trees that compute `mode`, and how.
    pub(super) fn routes(&self, mode: usize) -> impl Iterator<Item = (&Tree<T>, &Route)> {
        self.trees.iter().filter_map(move |tree| Some((tree, tree.routes[mode].as_ref()?)))
    }

    /// Length of each mode.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of nonzeros stored: with CSF-ALL each counts once for every mode.
    pub fn nnz(&self) -> usize {
        self.nnz
    }

    /// Bytes of coordinates, pointers and lists in device memory.
    pub fn index_bytes(&self) -> usize {
        let tree = |t: &Tree<T>| t.ptr.len() + t.table.len() + t.leaf.len();
        let lists = |r: &Route| r.order.as_ref().map_or(0, Buffer::len) + r.fiber_of.as_ref().map_or(0, Buffer::len);
        let words = |t: &Tree<T>| tree(t) + t.routes.iter().flatten().map(lists).sum::<usize>();
        let blocks = self.blocks.as_deref().map_or(0, Blocks::index_words);
        size_of::<u32>() * (blocks + self.trees.iter().map(words).sum::<usize>())
    }

    /// Sum of the squares of the tensor's values.
    pub fn norm_squared(&self) -> f64 {
        self.norm_squared
    }

    /// How it is stored.
    pub fn format(&self) -> MttkrpFormat {
        self.format
    }

    /// The algorithm that computes `mode`: row or atomic on coordinates, slice, element, fiber or nonzero on trees, element on blocks, as
    /// on the processor; none for several trees with different ones, and where there is no such mode.
    pub fn algorithm(&self, mode: usize) -> Option<MttkrpAlgorithm> {
        if mode >= self.dims.len() {
            return None;
        }
        match self.unit {
            Unit::Row if self.blocks.is_some() => return Some(MttkrpAlgorithm::Element),
            Unit::Row => {}
            Unit::Run => return Some(MttkrpAlgorithm::Atomic),
            Unit::Element => return Some(MttkrpAlgorithm::Element),
        }
        let mut algorithms = self.routes(mode).map(|(_, route)| match route.fibers {
            _ if self.format == MttkrpFormat::Coo => MttkrpAlgorithm::Row,
            true if route.skip == 0 => MttkrpAlgorithm::Slice,
            true => MttkrpAlgorithm::Fiber,
            false => MttkrpAlgorithm::Nonzero,
        });
        // A tensor without nonzeros needs no algorithm.
        let first = algorithms.next().unwrap_or(MttkrpAlgorithm::Row);
        algorithms.all(|algorithm| algorithm == first).then_some(first)
    }
}

impl<T: DeviceScalar> GpuFactors<T> {
    /// Replaces the factor of `mode`; the others stay where they are.
    ///
    /// # Errors
    /// [`Error::Argument`] when there is no such mode, [`Error::Shape`], [`Error::Device`] when the copy fails.
    pub fn set(&mut self, mode: usize, factor: MatRef<'_, T>) -> Result<()> {
        let Some(base) = bases(&self.dims).nth(mode) else {
            return Err(Error::argument("mode", format!("{mode} of {} factors", self.dims.len())));
        };
        if factor.rows() != self.dims[mode] {
            let detail = format!("factor {mode} has {} rows, on the device {}", factor.rows(), self.dims[mode]);
            return Err(Error::shape("GpuFactors::set", detail));
        }
        self.stack.upload_rows(base, factor)
    }

    /// Columns of every factor.
    pub fn rank(&self) -> usize {
        self.stack.cols()
    }
}

/// A tree as arrays, before it is uploaded.
struct HostTree {
    /// The mode of each level of the table.
    levels: Vec<usize>,
    /// The mode of the leaves; `None` where the table has all modes and each nonzero is a fiber (COO).
    leaf_mode: Option<usize>,
    ptr: Vec<u32>,
    table: Vec<u32>,
    leaf: Vec<u32>,
    bases: Vec<usize>,
}

/// [`Route`] before it is uploaded.
struct HostRoute {
    skip: usize,
    order: Option<Vec<u32>>,
    fiber_of: Option<Vec<u32>>,
    tasks: DeviceTasks,
}

impl HostTree {
    fn of_csf<T: DeviceScalar>(csf: &Csf<T>, dims: &[usize]) -> Self {
        let pattern = csf.pattern().split_fibers(LONGEST_FIBER);
        let bases: Vec<usize> = bases(dims).collect();
        let modes = pattern.mode_order();
        let (last, levels) = (pattern.order() - 2, &modes[..modes.len() - 1]);
        let mut table = vec![0; pattern.nodes(last) * levels.len()];
        // Each node writes its coordinate into the rows of all fibers below it.
        for (level, &mode) in levels.iter().enumerate() {
            for node in 0..pattern.nodes(level) {
                let (mut first, mut end) = (node, node + 1);
                for l in level..last {
                    (first, end) = (pattern.ptr(l)[first], pattern.ptr(l)[end]);
                }
                let row = (bases[mode] + pattern.idx(level)[node] as usize) as u32;
                (first..end).for_each(|fiber| table[fiber * levels.len() + level] = row);
            }
        }
        let leaf_mode = modes[last + 1];
        Self {
            levels: levels.to_vec(),
            leaf_mode: Some(leaf_mode),
            ptr: pattern.ptr(last).iter().map(|&p| p as u32).collect(),
            table,
            leaf: pattern.idx(last + 1).iter().map(|&k| (bases[leaf_mode] + k as usize) as u32).collect(),
            bases,
        }
    }

    fn of_coo<T: DeviceScalar>(coo: &CooTensor<T>, range: std::ops::Range<usize>) -> Self {
        let bases: Vec<usize> = bases(coo.dims()).collect();
        let table = range.clone().flat_map(|p| {
            let bases = &bases;
            (0..coo.order()).map(move |m| (bases[m] + coo.coords(m)[p] as usize) as u32)
        });
        let table = table.collect();
        let ptr = (0..=range.len() as u32).collect();
        Self { levels: (0..coo.order()).collect(), leaf_mode: None, ptr, table, leaf: Vec::new(), bases }
    }

    /// The items of `mode`, whose length is `dim`, by output row, at most `items` to a task.
    fn route(&self, mode: usize, dim: usize, items: usize) -> HostRoute {
        let fibers = self.ptr.len() - 1;
        let base = self.bases[mode] as u32;
        let skip = self.levels.iter().position(|&m| m == mode).unwrap_or(self.levels.len());
        let by_fiber = |item: usize| (self.table[item * self.levels.len() + skip] - base) as usize;
        // COO's fibers are its nonzeros, and go the nonzeros' way.
        if self.leaf_mode.is_some() && skip < self.levels.len() {
            let (row_ptr, order) = sort_items(fibers, dim, by_fiber);
            // The root's mode comes sorted.
            let order = (skip > 0).then_some(order);
            return HostRoute { skip, order, fiber_of: None, tasks: DeviceTasks::of_items(&row_ptr, items) };
        }
        let (fiber_of, (row_ptr, order)) = if self.leaf_mode.is_some() {
            let fiber_of = (0..fibers as u32).flat_map(|f| {
                let nonzeros = self.ptr[f as usize]..self.ptr[f as usize + 1];
                nonzeros.map(move |_| f)
            });
            (fiber_of.collect(), sort_items(self.leaf.len(), dim, |p| (self.leaf[p] - base) as usize))
        } else {
            ((0..fibers as u32).collect(), sort_items(fibers, dim, by_fiber))
        };
        HostRoute { skip, order: Some(order), fiber_of: Some(fiber_of), tasks: DeviceTasks::of_items(&row_ptr, items) }
    }
}

/// Counting sort of items by row, stable: (start of each row, items).
pub(crate) fn sort_items(count: usize, rows: usize, row_of: impl Fn(usize) -> usize) -> (Vec<usize>, Vec<u32>) {
    let mut row_ptr = vec![0; rows + 1];
    (0..count).for_each(|i| row_ptr[row_of(i) + 1] += 1);
    (0..rows).for_each(|r| row_ptr[r + 1] += row_ptr[r]);
    let mut next = row_ptr.clone();
    let mut order = vec![0; count];
    for i in 0..count {
        let slot = &mut next[row_of(i)];
        order[*slot] = i as u32;
        *slot += 1;
    }
    (row_ptr, order)
}

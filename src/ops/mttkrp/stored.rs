//! The formats behind one interface: tasks for a mode, and the computation of one task.

use std::ops::Range;

use sparsimd_kernels::mttkrp::{
    BlocksView, CsfView, EntriesView, JointOperands, JointView, OffsetsView, Operands, TILED_MOST_DISTANCE, TiledView,
    Write, extract_coordinates, extract_coordinates_wide, mttkrp_blocks, mttkrp_csf, mttkrp_entries, mttkrp_joint,
    mttkrp_tiled,
};
use sparsimd_kernels::{Arch, Scalar, Stored as Element};

use super::cuts::{longest_fiber, slice_tasks, snap_to_rows, sub_slice_tasks, tree_tasks};
use super::privatised::{Task, row_range};
use crate::cut;
use crate::error::{Error, Result};
use crate::formats::{
    Alto, AltoKeys, Bcsf, CooTensor, Csf, CsfKind, CsfSet, DEFAULT_BLOCK_BITS, HiCoo, MAX_ORDER, MmCsf, Offsets, Tiled,
    TiledTask, rooted_mode_order,
};
use crate::plan::{ModePlan, MttkrpAlgorithm, MttkrpFormat, MttkrpPlan, joint_root};

/// Nonzeros whose coordinates are decoded at a time: their coordinates of 4 modes fill 4 KiB of L1.
const BATCH: usize = 256;

/// A tensor in the format of a plan.
#[derive(Debug)]
pub(super) enum Stored<T> {
    /// One copy for all modes, sorted by mode `first` and then by the others in order, or one for each mode, sorted by that
    /// mode first.
    Coo {
        copies: Vec<CooTensor<T>>,
        first: usize,
        /// Whether the nonzeros of a row that are neighbours are summed in registers.
        by_rows: bool,
    },
    CsfSet(CsfSet<T>),
    /// One per mode, which is at the level of the algorithm that was asked for.
    Trees(Vec<Csf<T>>),
    /// One per mode, root first, of whose rows a task computes one register of columns.
    Elements(CsfSet<T>),
    /// One per mode, root first.
    Bcsf(Vec<Bcsf<T>>),
    MmCsf(MmCsf<T>),
    HiCoo(HiCoo<T>),
    Alto(Alto<T>),
    /// One per mode.
    Tiled(Vec<Tiled<T>>),
}

impl<T: Scalar> Stored<T> {
    pub(super) fn new(coo: &CooTensor<T>, plan: &MttkrpPlan) -> Result<Self> {
        let order = coo.order();
        let longest = longest_fiber(coo.nnz(), plan.tasks);
        // A tensor of order 1 has neither fibers nor tiles: all formats are its list.
        let format = if order == 1 { MttkrpFormat::Coo } else { plan.format };
        Ok(match format {
            MttkrpFormat::Coo | MttkrpFormat::Joint => {
                let sorted = |first: usize| {
                    let mut copy = coo.clone();
                    let rest = (0..order).filter(|&mode| mode != first);
                    copy.sort(&std::iter::once(first).chain(rest).collect::<Vec<_>>())?;
                    copy.check_sorted_unique()?;
                    Ok(copy)
                };
                let first = if format == MttkrpFormat::Joint { joint_root(coo.dims()) } else { 0 };
                let all = plan.algorithm == Some(MttkrpAlgorithm::Row) && format == MttkrpFormat::Coo;
                let copies = if all { 0..order } else { first..first + 1 };
                let by_rows = plan.algorithm != Some(MttkrpAlgorithm::Element);
                Self::Coo { copies: copies.map(sorted).collect::<Result<_>>()?, first, by_rows }
            }
            MttkrpFormat::CsfAll => match plan.algorithm {
                Some(algorithm @ (MttkrpAlgorithm::Fiber | MttkrpAlgorithm::Nonzero)) => {
                    let tree = |mode| {
                        Ok(Csf::from_coo(coo, &mode_order_for(coo.dims(), mode, algorithm))?.split_fibers(longest))
                    };
                    Self::Trees((0..order).map(tree).collect::<Result<_>>()?)
                }
                Some(MttkrpAlgorithm::Element) => Self::Elements(CsfSet::from_coo(coo, CsfKind::All)?),
                _ => Self::CsfSet(CsfSet::from_coo(coo, CsfKind::All)?.split_fibers(longest)),
            },
            MttkrpFormat::CsfOne => Self::CsfSet(CsfSet::from_coo(coo, CsfKind::One)?.split_fibers(longest)),
            MttkrpFormat::CsfTwo => Self::CsfSet(CsfSet::from_coo(coo, CsfKind::Two)?.split_fibers(longest)),
            MttkrpFormat::Bcsf => {
                let rooted = |mode| Bcsf::from_coo(coo, &rooted_mode_order(coo.dims(), mode), plan.bcsf_limits);
                Self::Bcsf((0..order).map(rooted).collect::<Result<_>>()?)
            }
            MttkrpFormat::MmCsf => Self::MmCsf(MmCsf::from_coo(coo, plan.partition)?.split_fibers(longest)),
            MttkrpFormat::HiCoo => Self::HiCoo(HiCoo::new(coo, DEFAULT_BLOCK_BITS)?),
            MttkrpFormat::Alto => Self::Alto(Alto::from_coo(coo)?),
            MttkrpFormat::Tiled => {
                let of_mode = |(mode, plan): (usize, &ModePlan)| match &plan.tiles {
                    Some(spec) if spec.mode == mode => Tiled::from_coo(coo, spec),
                    _ => Err(Error::argument("plan", format!("has no tiles for the output of mode {mode}"))),
                };
                Self::Tiled(plan.modes.iter().enumerate().map(of_mode).collect::<Result<_>>()?)
            }
            MttkrpFormat::Tree => return Err(Error::argument("plan", "the format is tree, but there is no tree")),
        })
    }

    /// The list as it is: its nonzeros may be in any order.
    pub(super) fn as_is(coo: CooTensor<T>) -> Self {
        Self::Coo { copies: vec![coo], first: 0, by_rows: true }
    }

    /// The list that [`Stored::as_is`] was given.
    pub(super) fn into_list(self) -> Result<CooTensor<T>> {
        match self {
            Self::Coo { mut copies, .. } if copies.len() == 1 => Ok(copies.swap_remove(0)),
            _ => Err(Error::argument("stored", "is not one list")),
        }
    }

    pub(super) fn index_bytes(&self) -> usize {
        match self {
            Self::Coo { copies, .. } => copies.iter().map(CooTensor::index_bytes).sum(),
            Self::CsfSet(set) | Self::Elements(set) => set.index_bytes(),
            Self::Trees(all) => all.iter().map(|tree| tree.pattern().index_bytes()).sum(),
            Self::Bcsf(all) => all.iter().map(Bcsf::index_bytes).sum(),
            Self::MmCsf(mm) => mm.index_bytes(),
            Self::HiCoo(hicoo) => hicoo.index_bytes(),
            Self::Alto(alto) => alto.index_bytes(),
            Self::Tiled(all) => all.iter().map(Tiled::index_bytes).sum(),
        }
    }

    /// The algorithm that computes `mode`; none for several trees with different ones.
    pub(super) fn algorithm(&self, mode: usize) -> Option<MttkrpAlgorithm> {
        let of_tree = |csf: &Csf<T>| match (csf.pattern().level_of(mode), csf.pattern().order()) {
            (0, _) => MttkrpAlgorithm::Slice,
            (level, order) if level + 1 == order => MttkrpAlgorithm::Nonzero,
            (level, order) if level + 2 == order => MttkrpAlgorithm::Fiber,
            _ => MttkrpAlgorithm::Slice,
        };
        Some(match self {
            Self::Coo { .. } if self.sums_rows(mode) => MttkrpAlgorithm::Row,
            Self::Coo { .. } | Self::HiCoo(_) | Self::Alto(_) | Self::Elements(_) => MttkrpAlgorithm::Element,
            Self::CsfSet(set) => of_tree(set.tree(mode)),
            Self::Trees(all) => of_tree(&all[mode]),
            Self::Bcsf(_) => MttkrpAlgorithm::Slice,
            Self::MmCsf(mm) => {
                let mut algorithms = mm.trees().iter().map(of_tree);
                let first = algorithms.next()?;
                return algorithms.all(|algorithm| algorithm == first).then_some(first);
            }
            Self::Tiled(_) => MttkrpAlgorithm::Row,
        })
    }

    /// The tree that a task of `mode` names.
    fn tree(&self, mode: usize, copy: usize) -> Option<&Csf<T>> {
        match self {
            Self::CsfSet(set) | Self::Elements(set) => Some(set.tree(mode)),
            Self::Trees(all) => Some(&all[mode]),
            Self::Bcsf(all) => Some(all[mode].csf()),
            Self::MmCsf(mm) => Some(&mm.trees()[copy]),
            _ => None,
        }
    }

    /// Whether neighbours in a row of `mode`'s output are summed in registers: in a list that is sorted by the mode.
    pub(super) fn sums_rows(&self, mode: usize) -> bool {
        matches!(self, Self::Coo { copies, first, by_rows } if *by_rows && (copies.len() > 1 || mode == *first))
    }

    /// Whether tasks compute some columns of their rows, which no other task has.
    pub(super) fn by_columns(&self) -> bool {
        matches!(self, Self::Elements(_))
    }

    /// About `count` tasks of equal weight for the output of `mode`.
    pub(super) fn tasks(&self, mode: usize, count: usize) -> Vec<Task> {
        let flat = |n: usize, rows: &[u32]| {
            let parts = cut::ranges(n, count, |p| p).into_iter();
            parts.map(|part| Task::new(0, part.clone(), row_range(&rows[part]))).collect::<Vec<_>>()
        };
        match self {
            Self::Coo { copies, first, .. } => {
                let coo = list_of(copies, mode);
                let rows = coo.coords(mode);
                let mut parts = cut::ranges(coo.nnz(), count, |p| p);
                // One list has the same parts for every mode.
                snap_to_rows(&mut parts, if copies.len() > 1 { rows } else { coo.coords(*first) });
                parts.into_iter().map(|part| Task::new(0, part.clone(), row_range(&rows[part]))).collect()
            }
            Self::Alto(alto) => flat(alto.nnz(), &alto.expand(mode)),
            Self::HiCoo(hicoo) => {
                let ptr = hicoo.pattern().ptr();
                let rows = hicoo.pattern().expand(mode);
                let parts = cut::ranges(hicoo.pattern().num_blocks(), count, |block| ptr[block]).into_iter();
                parts.map(|part| Task::new(0, part.clone(), row_range(&rows[ptr[part.start]..ptr[part.end]]))).collect()
            }
            Self::CsfSet(set) => tree_tasks(0, set.tree(mode).pattern(), mode, count),
            Self::Elements(set) => slice_tasks(set.tree(mode).pattern(), count),
            Self::Trees(all) => tree_tasks(0, all[mode].pattern(), mode, count),
            Self::Bcsf(all) => sub_slice_tasks(&all[mode], count),
            Self::MmCsf(mm) => {
                let share = |tree: &Csf<T>| (count * tree.nnz()).div_ceil(mm.nnz().max(1)).max(1);
                let trees = mm.trees().iter().enumerate();
                trees.flat_map(|(copy, tree)| tree_tasks(copy, tree.pattern(), mode, share(tree))).collect()
            }
            Self::Tiled(all) => {
                let tasks = all[mode].tasks().iter().enumerate();
                let of_task = |(copy, task): (usize, &TiledTask<T>)| Task {
                    overwrites: task.one_run_per_row(),
                    ..Task::new(copy, 0..task.tiles().len(), task.rows())
                };
                tasks.map(of_task).collect()
            }
        }
    }

    /// Adds what `task` contributes to `mode`'s output, or overwrites its rows with it as `write` says, if the task can.
    ///
    /// # Safety
    /// Stride and columns of `operands` are whole registers of `arch`; the factors of all modes but `mode` have a row for
    /// every coordinate; the output's rows begin at cache lines, and these columns of those in the task's range are writable
    /// and used by nobody else.
    pub(super) unsafe fn compute<D: Element<Scalar = T>>(
        &self,
        arch: Arch,
        task: &Task,
        mode: usize,
        operands: Operands<'_, D>,
        write: Write,
    ) {
        if let Some(tree) = self.tree(mode, task.copy) {
            // SAFETY: the caller's promise; the pattern's invariants are the view's.
            return unsafe { compute_tree(arch, tree, task, mode, operands) };
        }
        match self {
            Self::Tiled(all) => {
                let tiled = &all[mode];
                let part = &tiled.tasks()[task.copy];
                // SAFETY: the caller's promise.
                unsafe { compute_tiled(arch, tiled, part, operands, write) };
            }
            Self::Coo { copies, .. } if copies[0].order() == 1 => {
                let coo = &copies[0];
                for p in task.part.clone() {
                    let row = operands.out.wrapping_add(coo.coords(0)[p] as usize * operands.stride);
                    for column in operands.columns.0..operands.columns.1 {
                        // SAFETY: the row is in the task's range. The product over no factors is 1.
                        unsafe { *row.wrapping_add(column) += coo.values()[p] };
                    }
                }
            }
            Self::Coo { copies, .. } => {
                let coo = list_of(copies, mode);
                let coords = coords_of(coo, &task.part);
                let values = &coo.values()[task.part.clone()];
                let by_rows = self.sums_rows(mode);
                let view = EntriesView { coords: &coords[..coo.order()], values, mode, by_rows };
                // SAFETY: the caller's promise.
                unsafe { mttkrp_entries(arch, view, operands) };
            }
            Self::Alto(alto) => {
                let order = alto.dims().len();
                let decode = |part: Range<usize>, m: usize, out: &mut [u32]| match alto.keys() {
                    AltoKeys::Narrow(keys) => extract_coordinates(&keys[part], alto.masks()[m] as u64, out),
                    AltoKeys::Wide(keys) => extract_coordinates_wide(&keys[part], alto.masks()[m], out),
                };
                // SAFETY: the caller's promise.
                unsafe { compute_decoded(arch, order, alto.values(), task.part.clone(), mode, operands, decode) };
            }
            Self::HiCoo(hicoo) => {
                let pattern = hicoo.pattern();
                let (mut blocks, mut elements): ([&[u32]; MAX_ORDER], [&[u8]; MAX_ORDER]) = Default::default();
                for m in 0..hicoo.order() {
                    (blocks[m], elements[m]) = (pattern.blocks(m), pattern.elements(m));
                }
                let view = BlocksView {
                    ptr: pattern.ptr(),
                    blocks: &blocks[..hicoo.order()],
                    block_bits: pattern.block_bits(),
                    elements: &elements[..hicoo.order()],
                    values: hicoo.values(),
                    mode,
                    part: (task.part.start, task.part.end),
                };
                // SAFETY: the caller's promise; all modes are blocked, so that level m is mode m.
                unsafe { mttkrp_blocks(arch, view, operands) };
            }
            Self::CsfSet(_) | Self::Trees(_) | Self::Elements(_) | Self::Bcsf(_) | Self::MmCsf(_) => {
                unreachable!("trees were computed above")
            }
        }
    }

    /// Adds what `task` contributes to the outputs of all modes; nothing unless there is one list for all of them.
    ///
    /// # Safety
    /// As [`Stored::compute`], for the outputs of all modes.
    pub(super) unsafe fn compute_all(&self, arch: Arch, task: &Task, operands: JointOperands<'_, T>) {
        let Self::Coo { copies, first, .. } = self else { return };
        let coo = &copies[0];
        let coords = coords_of(coo, &task.part);
        let view = JointView { coords: &coords[..coo.order()], values: &coo.values()[task.part.clone()], root: *first };
        // SAFETY: the caller's promise.
        unsafe { mttkrp_joint(arch, view, operands) };
    }
}

/// The coordinates of the nonzeros of `part`.
fn coords_of<'a, T: Scalar>(coo: &'a CooTensor<T>, part: &Range<usize>) -> [&'a [u32]; MAX_ORDER] {
    let mut coords: [&[u32]; MAX_ORDER] = [&[]; MAX_ORDER];
    for (m, slice) in coords.iter_mut().enumerate().take(coo.order()) {
        *slice = &coo.coords(m)[part.clone()];
    }
    coords
}

/// The list that serves `mode`: the only one, or its own.
pub(super) fn list_of<T>(copies: &[CooTensor<T>], mode: usize) -> &CooTensor<T> {
    if copies.len() > 1 { &copies[mode] } else { &copies[0] }
}

/// The order of the modes that makes `algorithm` the one for `mode`: at the root, just above the leaves, or at the leaves;
/// the others from the shortest to the longest.
fn mode_order_for(dims: &[usize], mode: usize, algorithm: MttkrpAlgorithm) -> Vec<usize> {
    let mut order = rooted_mode_order(dims, mode);
    order.remove(0);
    let level = match algorithm {
        MttkrpAlgorithm::Fiber => dims.len().saturating_sub(2),
        MttkrpAlgorithm::Nonzero => dims.len() - 1,
        _ => 0,
    };
    order.insert(level, mode);
    order
}

/// The nonzeros of `part` in batches, whose coordinates `decode(part, mode, out)` writes.
///
/// # Safety
/// As [`Stored::compute`]; what `decode` writes are the tensor's coordinates.
unsafe fn compute_decoded<D: Element>(
    arch: Arch,
    order: usize,
    values: &[D::Scalar],
    part: Range<usize>,
    mode: usize,
    operands: Operands<'_, D>,
    decode: impl Fn(Range<usize>, usize, &mut [u32]),
) {
    let mut coords = [[0u32; BATCH]; MAX_ORDER];
    let mut start = part.start;
    while start < part.end {
        let end = part.end.min(start + BATCH);
        for (m, coords) in coords.iter_mut().enumerate().take(order) {
            decode(start..end, m, &mut coords[..end - start]);
        }
        let mut slices: [&[u32]; MAX_ORDER] = [&[]; MAX_ORDER];
        slices.iter_mut().zip(&coords).for_each(|(slice, coords)| *slice = &coords[..end - start]);
        let view = EntriesView { coords: &slices[..order], values: &values[start..end], mode, by_rows: false };
        // SAFETY: the caller's promise.
        unsafe { mttkrp_entries(arch, view, operands) };
        start = end;
    }
}

/// # Safety
/// As [`Stored::compute`].
unsafe fn compute_tree<D: Element>(
    arch: Arch,
    tree: &Csf<D::Scalar>,
    task: &Task,
    mode: usize,
    operands: Operands<'_, D>,
) {
    let pattern = tree.pattern();
    let order = pattern.order();
    let mut idx: [&[u32]; MAX_ORDER] = [&[]; MAX_ORDER];
    let mut ptr: [&[usize]; MAX_ORDER] = [&[]; MAX_ORDER];
    for l in 0..order {
        idx[l] = pattern.idx(l);
        if l + 1 < order {
            ptr[l] = pattern.ptr(l);
        }
    }
    let view = CsfView {
        mode_order: pattern.mode_order(),
        idx: &idx[..order],
        ptr: &ptr[..order - 1],
        values: tree.values(),
        level: pattern.level_of(mode),
        fibers: (task.part.start, task.part.end),
    };
    // SAFETY: the caller's promise.
    unsafe { mttkrp_csf(arch, view, operands) };
}

/// # Safety
/// As [`Stored::compute`].
unsafe fn compute_tiled<D: Element>(
    arch: Arch,
    tiled: &Tiled<D::Scalar>,
    part: &TiledTask<D::Scalar>,
    operands: Operands<'_, D>,
    write: Write,
) {
    let spec = tiled.spec();
    let offsets = match part.offsets() {
        Offsets::Short { shared, free } => OffsetsView::Short { shared, free },
        Offsets::Long { shared, free } => OffsetsView::Long { shared, free },
    };
    let view = TiledView {
        inputs: &spec.inputs,
        shared: spec.shared,
        tiles: part.tiles(),
        runs: part.runs(),
        offsets,
        values: part.values(),
    };
    // The padding after the offsets is as long as the farthest prefetch.
    let operands = Operands { prefetch_distance: operands.prefetch_distance.min(TILED_MOST_DISTANCE), ..operands };
    // SAFETY: the caller's promise; runs, chunks and offsets are those that the layout's construction wrote.
    unsafe { mttkrp_tiled(arch, view, operands, write) };
}

//! Partial products that several modes share: see [`TreePlan`].
//!
//! Both steps are MTTKRPs themselves. The first one is of the tensor whose modes are the place in the group's modes and all
//! other modes; the second of the tensor of the places, of value 1, whose modes are the output's, the group's others, and
//! the place's own number, with Y as the factor of that last mode.

use sparsimd_kernels::{Scalar, Stored as Element};

use super::operands::Factor;
use super::part::{Call, Part, Pointers};
use super::stored::Stored;
use crate::dense::{Aligned, MatRef};
use crate::error::{Error, Result};
use crate::formats::{CooTensor, Tiled, gather};
use crate::parallel;
use crate::plan::{GroupPlan, MttkrpPlan, TreePlan};

/// The groups of a plan, prepared.
#[derive(Debug)]
pub(super) struct Tree<T> {
    groups: Vec<Group<T>>,
}

/// Modes whose outputs come from the same partial products.
#[derive(Debug)]
pub(super) struct Group<T> {
    modes: Vec<usize>,
    contracted: Vec<usize>,
    /// Rows of Y; for a group of one mode that mode's length.
    places: usize,
    partial: Part<T>,
    /// One for each mode, of a group of several.
    leaves: Vec<Part<T>>,
}

impl<T: Scalar> Tree<T> {
    /// The tensor laid out as `tree`, the tree of `plan`, says. Runs in the rayon pool of the caller.
    pub(super) fn new(coo: &CooTensor<T>, tree: &TreePlan, plan: &MttkrpPlan) -> Result<Self> {
        let mut all: Vec<usize> = tree.groups.iter().flat_map(|group| group.modes.iter().copied()).collect();
        all.sort_unstable();
        if !all.into_iter().eq(0..coo.order()) {
            return Err(Error::argument("plan", "the groups of its tree do not have every mode once"));
        }
        Ok(Self { groups: tree.groups.iter().map(|group| Group::new(coo, group, plan)).collect::<Result<_>>()? })
    }

    /// In the order of a sweep.
    pub(super) fn groups(&self) -> &[Group<T>] {
        &self.groups
    }

    /// The group of `mode`.
    pub(super) fn group(&self, mode: usize) -> &Group<T> {
        self.groups.iter().find(|group| group.modes.contains(&mode)).expect("every mode is in a group")
    }

    pub(super) fn index_bytes(&self) -> usize {
        let of_group = |group: &Group<T>| {
            let leaves: usize = group.leaves.iter().map(|leaf| leaf.stored.index_bytes()).sum();
            group.partial.stored.index_bytes() + leaves
        };
        self.groups.iter().map(of_group).sum()
    }
}

impl<T: Scalar> Group<T> {
    fn new(coo: &CooTensor<T>, group: &GroupPlan, plan: &MttkrpPlan) -> Result<Self> {
        let (modes, contracted) = (group.modes.clone(), group.contracted.clone());
        let mut fits = [&modes[..], &contracted[..]].concat();
        fits.sort_unstable();
        if group.tiles.mode != 0 || modes.is_empty() || contracted.is_empty() || !fits.into_iter().eq(0..coo.order()) {
            return Err(Error::argument("plan", format!("{group:?} does not part {} modes", coo.order())));
        }
        let (own, permutation, coords) = places(coo, &modes)?;
        let count = if let [mode] = modes[..] { coo.dims()[mode] } else { coords[0].len() };
        let take = |mode: &usize| match &permutation {
            Some(permutation) => gather(coo.coords(*mode), permutation),
            None => coo.coords(*mode).to_vec(),
        };
        let merged_coords = std::iter::once(own).chain(contracted.iter().map(take)).collect();
        let merged_values = match &permutation {
            Some(permutation) => gather(coo.values(), permutation),
            None => coo.values().to_vec(),
        };
        let merged_dims: Vec<usize> =
            std::iter::once(count).chain(contracted.iter().map(|&mode| coo.dims()[mode])).collect();
        let merged = CooTensor::from_checked(merged_dims.clone(), merged_coords, merged_values);
        // An entry that occurs twice is named by its place in the caller's tensor.
        let tiled = Tiled::from_coo(&merged, &group.tiles).map_err(|e| coo.check_unique().err().unwrap_or(e))?;
        let partial = Part::new(Stored::Tiled(vec![tiled]), &merged_dims, vec![group.prefetch_distance], plan);
        let leaves = match modes.len() {
            1 => Vec::new(),
            _ => (0..modes.len())
                .map(|at| leaf((coo.dims(), &modes), at, &coords, group.places_distance, plan))
                .collect(),
        };
        Ok(Self { modes, contracted, places: count, partial, leaves })
    }

    /// The modes, in the order of a sweep.
    pub(super) fn modes(&self) -> &[usize] {
        &self.modes
    }

    /// What `mode`'s output is computed by, the partial products included.
    pub(super) fn parts(&self, mode: usize) -> impl Iterator<Item = &Part<T>> {
        let leaf = self.modes.iter().position(|&m| m == mode).and_then(|at| self.leaves.get(at));
        std::iter::once(&self.partial).chain(leaf)
    }

    /// Rows of privatised outputs on the way to `mode`'s output.
    pub(super) fn privatised_rows(&self, mode: usize) -> usize {
        self.parts(mode).map(|part| part.privatised_rows(0)).sum()
    }

    /// Elements that Y takes; 0 for a group of one mode, which has none.
    pub(super) fn product_len(&self, stride: usize) -> usize {
        if self.leaves.is_empty() { 0 } else { self.places * stride }
    }

    /// Y, in a buffer that the caller gives back. The shapes of `factors` have been checked.
    pub(super) fn products<D: Element<Scalar = T>>(&self, call: Call<'_, T>, factors: &[MatRef<'_, D>]) -> Aligned<T> {
        let len = self.product_len(call.stride);
        let mut y = call.buffers.take(len);
        if len > 0 {
            self.contract(call, factors, &mut y[..len]);
        }
        y
    }

    /// The products of the contracted modes' rows, summed by place.
    fn contract<D: Element<Scalar = T>>(&self, call: Call<'_, T>, factors: &[MatRef<'_, D>], rows: &mut [T]) {
        let padded: Vec<_> = self.contracted.iter().map(|&mode| Factor::new(factors[mode], call.buffers)).collect();
        let pointers = std::iter::once(std::ptr::null()).chain(padded.iter().map(Factor::as_ptr)).collect();
        // SAFETY: factors have the lengths of the modes in rows, padded to the stride; mode 0, the place, is the output's,
        // and has as many rows as there are places.
        unsafe { self.partial.run(call, 0, &Pointers(pointers), rows) };
        padded.into_iter().for_each(|factor| factor.release(call.buffers));
    }

    /// The MTTKRP of `mode`, one of the group's, into `rows`; `y` is what [`Group::products`] gave for the same factors of
    /// the other groups.
    pub(super) fn output<D: Element<Scalar = T>>(
        &self,
        call: Call<'_, T>,
        mode: usize,
        y: &[T],
        factors: &[MatRef<'_, D>],
        rows: &mut [T],
    ) {
        if self.leaves.is_empty() {
            return self.contract(call, factors, rows);
        }
        let at = self.modes.iter().position(|&m| m == mode).expect("a mode of the group");
        let others = self.modes.iter().filter(|&&m| m != mode);
        // Y is not narrow, and all rows are of one type.
        let padded: Vec<Factor<'_, T>> = others.map(|&m| Factor::computed(factors[m], call.buffers)).collect();
        let inputs = padded.iter().map(Factor::as_ptr).chain([y.as_ptr()]);
        let pointers = std::iter::once(std::ptr::null()).chain(inputs).collect();
        // SAFETY: as above; Y has a row for every place.
        unsafe { self.leaves[at].run(call, 0, &Pointers(pointers), rows) };
        padded.into_iter().for_each(|factor| factor.release(call.buffers));
    }
}

/// For each nonzero its place in `modes`, the order of the nonzeros that this is in (none for their own), and the
/// coordinates of the places. The place in one mode is the coordinate itself.
#[allow(clippy::type_complexity, reason = "used once, two lines above")]
fn places<T: Scalar>(coo: &CooTensor<T>, modes: &[usize]) -> Result<(Vec<u32>, Option<Vec<usize>>, Vec<Vec<u32>>)> {
    if let [mode] = modes[..] {
        return Ok((coo.coords(mode).to_vec(), None, Vec::new()));
    }
    let permutation = coo.places().sorted_permutation(modes);
    let opens =
        |q: usize| q == 0 || modes.iter().any(|&m| coo.coords(m)[permutation[q - 1]] != coo.coords(m)[permutation[q]]);
    let heads = parallel::filter(coo.nnz(), opens);
    if heads.len() > u32::MAX as usize {
        let detail = format!("the nonzeros have {} places in modes {modes:?}, more than 2^32 - 1", heads.len());
        return Err(Error::Unavailable { what: "a tree of partial products", detail });
    }
    let mut own = vec![0; coo.nnz()];
    for (place, &head) in heads.iter().enumerate() {
        own[head..heads.get(place + 1).copied().unwrap_or(coo.nnz())].fill(place as u32);
    }
    let of_mode = |&m: &usize| parallel::map(heads.len(), |place| coo.coords(m)[permutation[heads[place]]]);
    let coords = modes.iter().map(of_mode).collect();
    Ok((own, Some(permutation), coords))
}

/// The places of a group, sorted by its mode number `at`, partial products prefetched `distance` places ahead.
fn leaf<T: Scalar>(
    (dims, modes): (&[usize], &[usize]),
    at: usize,
    coords: &[Vec<u32>],
    distance: usize,
    plan: &MttkrpPlan,
) -> Part<T> {
    let n = coords[0].len();
    let order = std::iter::once(at).chain((0..modes.len()).filter(|&other| other != at));
    let mut levels: Vec<Vec<u32>> = order.clone().map(|level| coords[level].clone()).collect();
    let mut leaf_dims: Vec<usize> = order.map(|level| dims[modes[level]]).collect();
    levels.push((0..n as u32).collect());
    leaf_dims.push(n);
    let places = CooTensor::from_checked(leaf_dims.clone(), levels, vec![T::ONE; n]);
    // A stable sort by the output's rows alone: inside a row Y is read upwards.
    let permutation = places.places().sorted_permutation(&[0]);
    let sorted = places.all_coords().iter().map(|level| gather(level, &permutation)).collect();
    let sorted = CooTensor::from_checked(leaf_dims.clone(), sorted, vec![T::ONE; n]);
    Part::new(Stored::as_is(sorted), &leaf_dims, vec![distance], plan)
}

//! `sparsimd stats FILE`.

use std::path::PathBuf;

use serde::Serialize;
use sparsimd::formats::{
    Alto, Bcsf, BcsfLimits, Csf, CsfKind, CsfSet, DEFAULT_BLOCK_BITS, FiberCoo, HiCoo, MmCsf, MmCsfStrategy,
    rooted_mode_order,
};
use sparsimd::io::TensorFormat;
use sparsimd::{CooTensor, Cpu, Error, Result};

use super::tensor::read_file;
use super::{Verdict, matrix_stats, output};

/// Fibers longer than this are counted apart, as in the MM-CSF paper.
const LONG: usize = 10_000;

/// Arguments of `stats`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Matrix: .mtx or .smtx, .gz may follow; or tensor: .tns, .tns.gz or .tnsb
    file: PathBuf,
    /// Dense columns that the plans of a matrix are for
    #[arg(short = 'n', value_name = "N", default_value_t = 128)]
    n: usize,
    /// Coordinates of a text file start at 0 instead of 1
    #[arg(long)]
    zero_based: bool,
    /// Add up entries at the same place instead of refusing the file
    #[arg(long)]
    sum_duplicates: bool,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl Args {
    /// The operand as the user named it.
    pub fn operand(&self) -> String {
        self.file.display().to_string()
    }
}

/// What one mode looks like.
#[derive(Debug, Serialize)]
struct Mode {
    mode: usize,
    dim: usize,
    /// Coordinates of the mode that have a nonzero.
    slices: usize,
    nnz_per_slice: f64,
    longest_slice: usize,
    /// Slices of 1, 2, 3 to 4, 5 to 8, ... nonzeros.
    slice_histogram: Vec<usize>,
    /// Lines along the mode that have a nonzero.
    fibers: usize,
    nnz_per_fiber: f64,
    longest_fiber: usize,
    fibers_over_10k: usize,
    /// Fibers of 1, 2, 3 to 4, 5 to 8, ... nonzeros.
    fiber_histogram: Vec<usize>,
}

/// Bytes of a format's indices, and how many fibers it stores.
#[derive(Debug, Serialize)]
pub struct Storage {
    pub format: &'static str,
    index_bytes: usize,
    bytes_per_nnz: f64,
    /// Null where the format has no fibers.
    pub fibers: Option<usize>,
    /// Bytes as a share of those of one CSF, and of one CSF for each mode; null for order 1, which has neither.
    of_csf_one: Option<f64>,
    of_csf_all: Option<f64>,
    /// Nonzeros in each of the format's trees, by the mode at their leaves; null where it has no trees.
    trees: Option<Vec<TreeShare>>,
}

/// A tree of a format: where its storage goes.
#[derive(Debug, Serialize)]
struct TreeShare {
    /// Modes from the root to the leaves.
    modes: Vec<usize>,
    /// Nodes of each level; those of the last one are the nonzeros.
    nodes: Vec<usize>,
}

impl TreeShare {
    fn of(tree: &Csf<f32>) -> Self {
        let pattern = tree.pattern();
        let nodes = (0..pattern.order()).map(|level| pattern.nodes(level)).collect();
        Self { modes: pattern.mode_order().to_vec(), nodes }
    }
}

#[derive(Debug, Serialize)]
struct Stats {
    order: usize,
    dims: Vec<usize>,
    nnz: usize,
    density: f64,
    modes: Vec<Mode>,
    storage: Vec<Storage>,
}

/// Reads the matrix or tensor and prints what it looks like.
pub fn run(args: &Args) -> Result<Verdict> {
    let cpu = Cpu::new()?;
    if TensorFormat::of(&args.file).is_err() {
        if args.zero_based || args.sum_duplicates {
            let detail = "--zero-based and --sum-duplicates are for tensors".to_owned();
            return Err(Error::Argument { name: "file", detail });
        }
        let stats = matrix_stats::of(&cpu, &args.file, args.n)?;
        match args.json {
            true => output::json(&stats)?,
            false => output::line(&stats.text())?,
        }
        return Ok(Verdict::Good);
    }
    let stats = cpu.install(|| -> Result<Stats> {
        let x: CooTensor<f32> = read_file(&args.file, args.zero_based, args.sum_duplicates)?;
        Ok(Stats {
            order: x.order(),
            dims: x.dims().to_vec(),
            nnz: x.nnz(),
            density: x.dims().iter().fold(x.nnz() as f64, |d, &dim| d / dim.max(1) as f64),
            modes: (0..x.order()).map(|mode| of_mode(&x, mode)).collect::<Result<_>>()?,
            storage: storage(&x)?,
        })
    })?;
    if args.json {
        output::json(&stats)?;
    } else {
        output::line(&text(&stats))?;
    }
    Ok(Verdict::Good)
}

fn of_mode(x: &CooTensor<f32>, mode: usize) -> Result<Mode> {
    // Sorted, not counted by coordinate: the mode may be far longer than there are nonzeros.
    let by_slice = x.sorted_permutation(&rooted_mode_order(x.dims(), mode))?;
    let (mut slices, mut longest_slice, mut slice_histogram) = (0, 0, Vec::new());
    for slice in by_slice.chunk_by(|&p, &q| x.coords(mode)[p] == x.coords(mode)[q]) {
        (slices, longest_slice) = (slices + 1, longest_slice.max(slice.len()));
        count(&mut slice_histogram, slice.len());
    }
    drop(by_slice);
    let fibers = FiberCoo::new(x.try_clone()?, mode)?;
    let lens = || fibers.ptr().windows(2).map(|w| w[1] - w[0]);
    let mut fiber_histogram = Vec::new();
    lens().for_each(|len| count(&mut fiber_histogram, len));
    let mean = |n: usize| x.nnz() as f64 / n.max(1) as f64;
    Ok(Mode {
        mode,
        dim: x.dims()[mode],
        slices,
        nnz_per_slice: mean(slices),
        longest_slice,
        slice_histogram,
        fibers: fibers.num_fibers(),
        nnz_per_fiber: mean(fibers.num_fibers()),
        longest_fiber: lens().max().unwrap_or(0),
        fibers_over_10k: lens().filter(|&len| len > LONG).count(),
        fiber_histogram,
    })
}

/// Adds one of `len` nonzeros to the bins.
fn count(bins: &mut Vec<usize>, len: usize) {
    let bin = len.next_power_of_two().trailing_zeros() as usize;
    bins.resize(bins.len().max(bin + 1), 0);
    bins[bin] += 1;
}

/// The formats' index storage, values left out: they take the same room everywhere.
pub fn storage(x: &CooTensor<f32>) -> Result<Vec<Storage>> {
    let mut all = Vec::new();
    let mut add = |format, index_bytes: usize, fibers, trees: Option<Vec<TreeShare>>| {
        let bytes_per_nnz = index_bytes as f64 / x.nnz().max(1) as f64;
        all.push(Storage { format, index_bytes, bytes_per_nnz, fibers, of_csf_one: None, of_csf_all: None, trees });
    };
    add("coo", x.index_bytes(), None, None);
    // These two are refused where the coordinates of a place need more than 128 bits.
    for (name, bytes) in [
        ("hicoo", HiCoo::new(x, DEFAULT_BLOCK_BITS).map(|tensor| tensor.index_bytes())),
        ("alto", Alto::from_coo(x).map(|tensor| tensor.index_bytes())),
    ] {
        match bytes {
            Ok(bytes) => add(name, bytes, None, None),
            Err(error @ Error::Memory { .. }) => return Err(error),
            Err(_) => {}
        }
    }
    if x.order() >= 2 {
        let level = x.order() - 2;
        for (name, kind) in [("csf-all", CsfKind::All), ("csf-one", CsfKind::One), ("csf-two", CsfKind::Two)] {
            let set = CsfSet::from_coo(x, kind)?;
            let fibers = set.trees().iter().map(|tree| tree.pattern().nodes(level)).sum();
            add(name, set.index_bytes(), Some(fibers), Some(set.trees().iter().map(TreeShare::of).collect()));
        }
        let (mut bytes, mut fibers, mut trees) = (0, 0, Vec::new());
        for mode in 0..x.order() {
            let tree = Bcsf::from_coo(x, &rooted_mode_order(x.dims(), mode), BcsfLimits::default())?;
            bytes += tree.index_bytes();
            fibers += tree.csf().pattern().nodes(level);
            trees.push(TreeShare::of(tree.csf()));
        }
        add("bcsf-all", bytes, Some(fibers), Some(trees));
        for (name, strategy) in [("mmcsf", MmCsfStrategy::Static), ("mmcsf-dyn", MmCsfStrategy::Dynamic)] {
            let tensor = MmCsf::from_coo(x, strategy)?;
            let trees = tensor.trees().iter().map(TreeShare::of).collect();
            add(name, tensor.index_bytes(), Some(tensor.fibers()), Some(trees));
        }
        let bytes_of =
            |name| all.iter().find(|s: &&Storage| s.format == name).map_or(1, |s| s.index_bytes.max(1)) as f64;
        let (one, every) = (bytes_of("csf-one"), bytes_of("csf-all"));
        for storage in &mut all {
            storage.of_csf_one = Some(storage.index_bytes as f64 / one);
            storage.of_csf_all = Some(storage.index_bytes as f64 / every);
        }
    }
    Ok(all)
}

fn text(stats: &Stats) -> String {
    use std::fmt::Write;
    let dims = stats.dims.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
    let mut out = format!("{dims}, {} nonzeros, density {:.3e}\n\n", stats.nnz, stats.density);
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "mode {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "dim", "slices", "nnz/slice", "longest", "fibers", "nnz/fiber", "longest", ">10000"
    );
    for m in &stats.modes {
        let _ = writeln!(
            out,
            "{:>4} {:>10} {:>10} {:>10.2} {:>10} {:>10} {:>10.2} {:>10} {:>10}",
            m.mode,
            m.dim,
            m.slices,
            m.nnz_per_slice,
            m.longest_slice,
            m.fibers,
            m.nnz_per_fiber,
            m.longest_fiber,
            m.fibers_over_10k
        );
    }
    let mut histogram = |what: &str, of: fn(&Mode) -> &[usize]| {
        let _ = writeln!(out, "\n{what} by nonzeros: up to 1, 2, 4, 8, ...");
        for m in &stats.modes {
            let bins = of(m).iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
            let _ = writeln!(out, "{:>4} {bins}", m.mode);
        }
    };
    histogram("slices", |m| &m.slice_histogram);
    histogram("fibers", |m| &m.fiber_histogram);
    let _ = writeln!(
        out,
        "\n{:<10} {:>12} {:>10} {:>12} {:>8} {:>8}",
        "indices", "MiB", "B/nonzero", "fibers", "/csf-one", "/csf-all"
    );
    let share = |x: Option<f64>| x.map_or_else(|| "-".to_owned(), |x| format!("{x:.3}"));
    for s in &stats.storage {
        let fibers = s.fibers.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let mib = s.index_bytes as f64 / f64::from(1 << 20);
        let (one, all) = (share(s.of_csf_one), share(s.of_csf_all));
        let _ = writeln!(out, "{:<10} {mib:>12.3} {:>10.2} {fibers:>12} {one:>8} {all:>8}", s.format, s.bytes_per_nnz);
    }
    let _ = writeln!(
        out,
        "\ntrees: modes from the root to the leaves, nodes of each level (4 B each, 8 B more above the leaves)"
    );
    for s in &stats.storage {
        for tree in s.trees.iter().flatten() {
            let join = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
            let _ = writeln!(out, "{:<10} {}: {}", s.format, join(&tree.modes), join(&tree.nodes));
        }
    }
    out.truncate(out.trim_end().len());
    out
}

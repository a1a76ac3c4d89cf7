//! What the tensor commands share: where the tensor comes from, how to run, and how the outcome is reported.

use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use serde::Serialize;
use sparsimd::formats::{BcsfLimits, MmCsfStrategy};
use sparsimd::generate::TensorSpec;
use sparsimd::io::{Duplicates, ReadOptions, read_tensor};
use sparsimd::plan::TensorOptions;
use sparsimd::{CooTensor, Error, Result, Scalar};

use super::device::{Place, Ran};
use super::numa::{Numa, Paged};
use super::output;
use super::progress::Progress;
use super::reorder::Reordered;
use super::timing::{Check, Dtype, Speed, StoredDtype};

/// `--tensor FILE | --generate NAME`, and how to understand them.
#[derive(Debug, clap::Args)]
pub struct Source {
    #[command(flatten)]
    origin: Origin,
    /// Coordinates of a text file start at 0 instead of 1
    #[arg(long, requires = "tensor")]
    zero_based: bool,
    /// Add up entries at the same place instead of refusing the file
    #[arg(long, requires = "tensor")]
    sum_duplicates: bool,
    /// Seed of everything random: the tensor, and dense operands uniform in [-0.5, 0.5)
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Origin {
    /// Tensor from a file: .tns, .tns.gz or .tnsb
    #[arg(long, value_name = "FILE")]
    tensor: Option<PathBuf>,
    /// Generated tensor: a name (regS, irr2L4d, skew3d, ...) or MODEL:DIMS:NNZ, such as skew:100x80x60:5000
    #[arg(long, value_name = "NAME")]
    generate: Option<TensorSpec>,
}

impl Source {
    /// The tensor as the user named it.
    pub fn operand(&self) -> Option<String> {
        let generated = |spec: &TensorSpec| format!("--generate with {} nonzeros of {:?}", spec.nnz, spec.dims);
        let file = self.origin.tensor.as_ref().map(|path| path.display().to_string());
        file.or_else(|| self.origin.generate.as_ref().map(generated))
    }

    /// Reads or makes the tensor, in the rayon pool of the caller.
    pub fn load<T: Scalar>(&self) -> Result<CooTensor<T>> {
        match (&self.origin.tensor, &self.origin.generate) {
            (Some(path), _) => read_file(path, self.zero_based, self.sum_duplicates),
            (None, Some(spec)) => spec.generate(self.seed),
            (None, None) => Err(Error::Argument {
                name: "tensor",
                detail: "neither a file nor a generated one is given".to_owned(),
            }),
        }
    }
}

impl Source {
    /// The file, which must be a .tnsb, for what the option `name` asks for.
    pub fn file(&self, name: &'static str) -> Result<&std::path::Path> {
        match self.origin.tensor.as_deref() {
            Some(path) if path.extension().is_some_and(|ending| ending == "tnsb") => Ok(path),
            _ => Err(Error::Argument { name, detail: "tensors that are read in passes are .tnsb files".to_owned() }),
        }
    }

    /// A second tensor, from a file like the first one's.
    pub fn load_beside<T: Scalar>(&self, path: &std::path::Path) -> Result<CooTensor<T>> {
        read_file(path, self.zero_based, self.sum_duplicates)
    }
}

/// Reads a tensor file with a progress bar.
pub fn read_file<T: Scalar>(path: &std::path::Path, zero_based: bool, sum_duplicates: bool) -> Result<CooTensor<T>> {
    let progress = Progress::of(path);
    let update = |done, total| progress.update(done, total);
    let duplicates = if sum_duplicates { Duplicates::Sum } else { Duplicates::Refuse };
    read_tensor(path, zero_based, duplicates, ReadOptions::default().progress(&update))
}

/// `--mode M|all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modes {
    /// Every mode in turn.
    All,
    /// This one.
    One(usize),
}

impl FromStr for Modes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            _ => text.parse().map(Self::One).map_err(|_| "neither a mode, counted from 0, nor `all`".to_owned()),
        }
    }
}

/// Storage of the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TensorFormat {
    /// What the plan says.
    Auto,
    /// Coordinates, sorted.
    Coo,
    /// One compressed tree for each mode.
    CsfAll,
    /// One compressed tree.
    CsfOne,
    /// Two compressed trees.
    CsfTwo,
    /// Balanced trees: long fibers and slices split.
    Bcsf,
    /// Nonzeros shared out to trees of several mode orders.
    Mmcsf,
    /// Blocks with 8-bit coordinates in Morton order.
    Hicoo,
    /// One integer for all coordinates.
    Alto,
    /// One copy for each mode, cut into tiles that fit a cache.
    Tiled,
    /// Partial products that several modes of a sweep share.
    Tree,
    /// One list for all modes at once, from the same factors.
    Joint,
}

/// `--partition static|dynamic|MODE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition(pub MmCsfStrategy);

impl FromStr for Partition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(match text {
            "static" => MmCsfStrategy::Static,
            "dynamic" => MmCsfStrategy::Dynamic,
            mode => MmCsfStrategy::Single(
                mode.parse().map_err(|_| "neither static, nor dynamic, nor a mode, counted from 0".to_owned())?,
            ),
        }))
    }
}

/// `--limits FIBER:SLICE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits(pub BcsfLimits);

impl FromStr for Limits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once(':').and_then(|(fiber, slice)| Some((fiber.parse().ok()?, slice.parse().ok()?)));
        let (longest_fiber, heaviest) = numbers.ok_or("not two numbers of nonzeros, such as 128:4096")?;
        Ok(Self(BcsfLimits { longest_fiber, heaviest }))
    }
}

/// How the trees of a format are made.
#[derive(Debug, clap::Args)]
pub struct Trees {
    /// How mixed-mode trees share the nonzeros: by the fibers' whole lengths (static), by what is left of them, or all in the tree
    /// with this mode at the leaves [default: dynamic]
    #[arg(long, value_name = "static|dynamic|MODE")]
    partition: Option<Partition>,
    /// Most nonzeros of a fiber and of a part of a slice in balanced trees: longer ones are split [default: 128:4096]
    #[arg(long, value_name = "FIBER:SLICE")]
    limits: Option<Limits>,
}

impl Trees {
    /// The name of an argument that is given, if one is.
    pub fn given(&self) -> Option<&'static str> {
        self.partition.map(|_| "partition").or(self.limits.map(|_| "limits"))
    }

    /// The same tensor options with these trees, which need the format that has them.
    pub fn of(&self, format: TensorFormat, mut options: TensorOptions) -> Result<TensorOptions> {
        let refused = |name, detail: &str| Err(Error::Argument { name, detail: detail.to_owned() });
        match self.partition {
            None => {}
            Some(Partition(partition)) if format == TensorFormat::Mmcsf => options = options.partition(partition),
            Some(_) => return refused("partition", "only mixed-mode trees are parted: --format mmcsf"),
        }
        match self.limits {
            None => {}
            Some(Limits(limits)) if format == TensorFormat::Bcsf => options = options.bcsf_limits(limits),
            Some(_) => return refused("limits", "only balanced trees have limits: --format bcsf"),
        }
        Ok(options)
    }
}

/// How the work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Algorithm {
    /// What the plan says.
    Auto,
    /// One register of columns at a time (ttm, and mttkrp on csf-all); on lists, each nonzero adds to its row (mttkrp).
    Element,
    /// Nonzeros of one row of the output in a run.
    Row,
    /// Slices of a tree that has the mode at its root.
    Slice,
    /// Fibers, of a tree that has the mode above its leaves (mttkrp) or along the mode (ttm, ttv).
    Fiber,
    /// Nonzeros of a tree that has the mode at its leaves.
    Nonzero,
}

/// What every tensor operation takes.
#[derive(Debug, clap::Args)]
pub struct Common {
    #[command(flatten)]
    pub source: Source,
    /// Mode to work on, counted from 0, or all in turn
    #[arg(long, value_name = "M|all", default_value = "all")]
    pub mode: Modes,
    /// Columns of the dense matrices
    #[arg(long, value_name = "R", default_value_t = 32)]
    pub rank: usize,
    /// Storage of the tensor
    #[arg(long, value_enum, default_value_t = TensorFormat::Auto)]
    pub format: TensorFormat,
    /// How the work is cut
    #[arg(long, value_enum, default_value_t = Algorithm::Auto)]
    pub alg: Algorithm,
    /// Element type; bf16 and f16 are for the dense operands of mttkrp and ttm, with values in f32
    #[arg(long, value_enum, default_value_t = StoredDtype::F32)]
    pub dtype: StoredDtype,
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub executor: Paged,
    /// Measured runs [default: as many as fit a second, at least 5]
    #[arg(long, value_name = "R")]
    pub repeat: Option<usize>,
    /// Compare with a naive loop in double precision
    #[arg(long)]
    pub verify: bool,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

impl Common {
    /// The modes to work on, of a tensor of `order`.
    pub fn modes(&self, order: usize) -> Result<Vec<usize>> {
        match self.mode {
            Modes::All => Ok((0..order).collect()),
            Modes::One(mode) if mode < order => Ok(vec![mode]),
            Modes::One(mode) => Err(Error::Argument {
                name: "mode",
                detail: format!("{mode} is not below the tensor's order, {order}"),
            }),
        }
    }

    /// The element type of `op`, which has no narrow ones.
    pub fn wide_dtype(&self, op: &str) -> Result<Dtype> {
        match self.dtype {
            StoredDtype::F32 => Ok(Dtype::F32),
            StoredDtype::F64 => Ok(Dtype::F64),
            StoredDtype::Bf16 | StoredDtype::F16 => Err(self.no_dtype(op)),
        }
    }

    /// The error that `op` has no such element type.
    pub fn no_dtype(&self, op: &str) -> Error {
        let name = self.dtype.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        Error::Argument { name: "dtype", detail: format!("{op} has no element type {name}") }
    }

    /// An error: `op` does not exist on the chosen format or by the chosen algorithm.
    pub fn unsupported(&self, op: &str) -> Error {
        let name =
            |value: Option<clap::builder::PossibleValue>| value.map(|v| v.get_name().to_owned()).unwrap_or_default();
        let (format, alg) = (name(self.format.to_possible_value()), name(self.alg.to_possible_value()));
        Error::Argument { name: "format", detail: format!("{op} has no variant for format {format}, algorithm {alg}") }
    }
}

/// The outcome of a tensor operation: times of a sweep over `mode`, and of each mode.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The operation.
    pub op: &'static str,
    /// Number of modes.
    pub order: usize,
    /// Length of each mode.
    pub dims: Vec<usize>,
    /// Stored entries.
    pub nnz: usize,
    /// Columns of the dense matrices; null where there are none.
    pub rank: Option<usize>,
    /// The modes worked on, in order.
    pub mode: Vec<usize>,
    /// Storage of the tensor for each of them.
    pub format: Vec<String>,
    /// How the work was cut for each of them.
    pub alg: Vec<String>,
    /// Bytes of indices of all that is stored for them.
    pub index_bytes: usize,
    /// The shortest run of each of them, in seconds.
    pub mode_min_s: Vec<f64>,
    /// The median run of each of them, in seconds.
    pub mode_median_s: Vec<f64>,
    /// What became of the order of indices; null where none was asked for.
    pub reorder: Option<Reordered>,
    /// What became of pages; null on a device.
    pub numa: Option<Numa>,
    /// Where it ran.
    #[serde(flatten)]
    pub ran: Ran,
    /// Of the sweep: times are sums over the modes.
    #[serde(flatten)]
    pub speed: Speed,
    /// The worst of all modes.
    #[serde(flatten)]
    pub check: Check,
}

impl Report {
    /// Prints the report, as JSON or as text.
    pub fn print(&self, json: bool) -> Result<()> {
        if json {
            return output::json(self);
        }
        let dims = self.dims.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
        let rank = self.rank.map(|rank| format!(", rank {rank}")).unwrap_or_default();
        let mut text = format!(
            "{}: {dims}, {} nonzeros{rank}\nindices  {} bytes, {:.2} per nonzero\n",
            self.op,
            self.nnz,
            self.index_bytes,
            self.index_bytes as f64 / self.nnz.max(1) as f64,
        );
        for (i, mode) in self.mode.iter().enumerate() {
            let (min, median) = (self.mode_min_s[i], self.mode_median_s[i]);
            text += &format!(
                "mode {mode}   {min:.3e} s at best, {median:.3e} s median ({}, {})\n",
                self.format[i], self.alg[i]
            );
        }
        text += &self.reorder.as_ref().map(Reordered::text).unwrap_or_default();
        text += &self.numa.as_ref().map(Numa::text).unwrap_or_default();
        text += &self.ran.text().unwrap_or_default();
        output::line(&format!("{text}{}\n{}", self.speed.text(), self.check.text()))
    }
}

#[cfg(test)]
mod tests {
    use super::Modes;

    #[test]
    fn modes_are_numbers_or_all() {
        assert_eq!("all".parse(), Ok(Modes::All));
        assert_eq!("2".parse(), Ok(Modes::One(2)));
        assert!(["", "-1", "ALL", "1.5"].iter().all(|text| text.parse::<Modes>().is_err()));
    }
}

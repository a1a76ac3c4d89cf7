//! `--mpi`: an operation on the ranks that an MPI launcher has started, and what a launcher must not start.

#[cfg(feature = "mpi")]
mod cp;
#[cfg(feature = "mpi")]
mod gradient;
#[cfg(feature = "mpi")]
mod run;

#[cfg(feature = "mpi")]
pub use run::on_ranks;

use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use sparsimd::{Error, Result};

/// How a command uses many ranks.
#[derive(Debug, clap::Args)]
pub struct Ranks {
    /// Run on the ranks that an MPI launcher starts: mpirun -n 4 sparsimd spmm --mpi ... (a build with the feature mpi)
    #[arg(long, conflicts_with_all = ["reorder", "device", "numa", "effort", "out", "b", "c", "d"])]
    pub mpi: bool,
    /// Which rows of B a rank receives: those that its nonzeros name, or all, block by block; auto chooses
    #[arg(long, value_enum, default_value_t = AlgorithmName::Auto, requires = "mpi")]
    pub algorithm: AlgorithmName,
    /// Ranks that share rows of A and C (dense): auto, or a number that divides the ranks
    #[arg(long, value_name = "auto|C", default_value = "auto", requires = "mpi")]
    pub replication: Replication,
    /// Which rank has which rows of a Matrix Market file: in their order, about as much work each; by METIS (a build with the feature
    /// metis); or the rank of each row, from 0 on, in the lines of FILE. The last two number rows and columns anew
    #[arg(long, value_name = "balanced|metis|FILE", default_value = "balanced", requires = "mpi")]
    pub partition: PartitionName,
}

/// Which rank has which rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionName {
    /// About as much work each
    Balanced,
    /// By METIS
    Metis,
    /// As the file says
    File(PathBuf),
}

impl FromStr for PartitionName {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "balanced" => Self::Balanced,
            "metis" => Self::Metis,
            file => Self::File(file.into()),
        })
    }
}

/// Which rows travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AlgorithmName {
    /// Whichever the plan expects to be faster
    Auto,
    /// The rows that nonzeros name
    Aware,
    /// All rows
    Dense,
}

/// Ranks that share rows; `None` for the plan's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replication(pub Option<usize>);

impl FromStr for Replication {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self(None)),
            number => match number.parse() {
                Ok(c) if c > 0 => Ok(Self(Some(c))),
                _ => Err("neither auto nor a number from 1 on".to_owned()),
            },
        }
    }
}

/// A number that launchers tell the processes that they start: Open MPI's name of it, and that of MPICH, which Slurm's PMI has, too.
fn told(names: [&str; 2]) -> Option<usize> {
    names.iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

/// Whether this process speaks for all that the launcher started.
pub fn speaks() -> bool {
    told(["OMPI_COMM_WORLD_RANK", "PMI_RANK"]).is_none_or(|rank| rank == 0)
}

/// Whether a launcher may have started a command that runs `on_ranks` or not: copies of it would all do the same.
pub fn check_launcher(on_ranks: bool) -> Result<()> {
    let unavailable = |detail: &str| Err(Error::Unavailable { what: "a run on many ranks", detail: detail.to_owned() });
    let many = told(["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]).is_some_and(|size| size > 1);
    match (on_ranks, cfg!(feature = "mpi")) {
        (true, false) => unavailable("this build is without the feature mpi"),
        (false, false) if many => {
            unavailable("a launcher has started several, and this build is without the feature mpi")
        }
        (false, true) if many => unavailable("a launcher has started several, and --mpi is not given"),
        _ => Ok(()),
    }
}

#[cfg(not(feature = "mpi"))]
impl super::matrix::Common {
    /// The error that this build has no ranks, which `check_launcher` has found before.
    pub fn run_on_ranks(&self, _: sparsimd::plan::Op, _: bool) -> Result<super::Verdict> {
        check_launcher(true).map(|()| super::Verdict::Failed)
    }
}

#[cfg(not(feature = "mpi"))]
impl super::cp::Args {
    /// Likewise.
    pub fn run_on_ranks(&self) -> Result<super::Verdict> {
        check_launcher(true).map(|()| super::Verdict::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::Replication;

    #[test]
    fn replications() {
        let parse = |text: &str| text.parse().ok();
        assert_eq!((parse("auto"), parse("4")), (Some(Replication(None)), Some(Replication(Some(4)))));
        for bad in ["", "0", "-1", "two", "1.5"] {
            assert_eq!(parse(bad), None::<Replication>, "{bad}");
        }
    }
}

//! `sparsimd generate NAME|MODEL --out FILE`.

use std::path::PathBuf;

use sparsimd::generate::{DEFAULT_EXPONENT, Initiator, MatrixSpec, Model, TensorSpec, parse_dims};
use sparsimd::io::{Format, Matrix, TensorFormat, write_matrix, write_tensor};
use sparsimd::{Csr, Error, Result, Scalar};

use super::convert::as_matrix;
use super::executor::Executor;
use super::timing::Dtype;
use super::{Verdict, output};

/// Arguments of `generate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A matrix (uniform:MxK@SPARSITY, pruned:MxK@SPARSITY as networks are by magnitude, banded:MxK:DISTANCE@SPARSITY,
    /// blocks:MxK:SIZE@SPARSITY on the diagonal, both full without @SPARSITY, rmat:SCALE:NNZ of 2^SCALE vertices); a named tensor
    /// (regS to irr2L4d, skew3d, skew3d-large, skew4d, vast-like to deli4d-like), MODEL:DIMS:NNZ, or a model with --dims and --nnz:
    /// kron, kron-bernoulli (a draw for every place; NNZ are expected, before places outside DIMS are left out), powerlaw,
    /// powerlaw-slices, skew, best-ttm, best-mttkrp, worst-ttm, worst-mttkrp. What has two modes is written as a matrix, too
    name: String,
    /// File to write: .mtx or .smtx, .gz may follow, for a matrix; .tns, .tns.gz or .tnsb for a tensor
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Lengths of the modes, for a model
    #[arg(long, value_name = "IxJx...")]
    dims: Option<String>,
    /// Number of nonzeros; replaces that of a named tensor
    #[arg(long, value_name = "N")]
    nnz: Option<usize>,
    /// Initiator of kron and kron-bernoulli, such as 2x2:0.9,0.5,0.5,0.1 (row-major) [default: 2x...x2, from 0.9 down to 0.1]
    #[arg(long, value_name = "DIMS:WEIGHTS")]
    initiator: Option<String>,
    /// Exponent of powerlaw and powerlaw-slices: rank k of a mode has probability proportional to k^-E
    #[arg(long, value_name = "E")]
    exponent: Option<f64>,
    /// Modes of powerlaw with uniform coordinates, counted from 0; of powerlaw-slices those along which its slices are [default: the last]
    #[arg(long, value_name = "M,M,...", value_delimiter = ',')]
    dense: Vec<usize>,
    /// Seed
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Element type
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    dtype: Dtype,
    #[command(flatten)]
    executor: Executor,
}

impl Args {
    /// The operand as the user named it.
    pub fn operand(&self) -> String {
        self.name.clone()
    }
}

fn argument(name: &'static str, detail: impl Into<String>) -> Error {
    Error::Argument { name, detail: detail.into() }
}

/// What is made.
enum Spec {
    Matrix(MatrixSpec),
    /// A tensor of order 2 as a matrix.
    TwoModes(TensorSpec),
    Tensor(TensorSpec),
}

/// Makes the matrix or tensor and writes it.
pub fn run(args: &Args) -> Result<Verdict> {
    let spec = described(args)?;
    let cpu = args.executor.cpu()?;
    let text = match args.dtype {
        Dtype::F32 => cpu.install(|| write::<f32>(args, &spec)),
        Dtype::F64 => cpu.install(|| write::<f64>(args, &spec)),
    }?;
    output::line(&format!("{}: {text}", args.out.display()))?;
    Ok(Verdict::Good)
}

/// What the arguments describe, as what can be written to the file.
fn described(args: &Args) -> Result<Spec> {
    let is_matrix = MatrixSpec::MODELS.contains(&args.name.split(':').next().unwrap_or_default());
    if TensorFormat::of(&args.out).is_ok() {
        return match is_matrix {
            true => Err(argument("out", format!("{} is a matrix: for .mtx or .smtx, .gz may follow", args.name))),
            false => spec(args).map(Spec::Tensor),
        };
    }
    Format::of(&args.out)?;
    if is_matrix {
        let given = [args.dims.is_some(), args.nnz.is_some(), args.initiator.is_some(), args.exponent.is_some()];
        if given.contains(&true) || !args.dense.is_empty() {
            return Err(argument(
                "dims",
                format!("{} is whole: options of tensors' models do not go with it", args.name),
            ));
        }
        return args.name.parse().map(Spec::Matrix);
    }
    let spec = spec(args)?;
    match spec.dims.len() {
        2 => Ok(Spec::TwoModes(spec)),
        order => Err(argument("out", format!("{} has {order} modes: for .tns, .tns.gz or .tnsb", args.name))),
    }
}

/// Makes what `spec` describes and writes it; what it is, in words.
fn write<T: Scalar>(args: &Args, spec: &Spec) -> Result<String> {
    let csr: Csr<T> = match spec {
        Spec::Matrix(spec) => spec.generate(args.seed)?,
        Spec::TwoModes(spec) => as_matrix("out", &args.name, spec.generate(args.seed)?)?,
        Spec::Tensor(spec) => {
            let tensor = spec.generate::<T>(args.seed)?;
            write_tensor(&args.out, &tensor)?;
            let dims = tensor.dims().iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
            return Ok(format!("{dims}, {} nonzeros", tensor.nnz()));
        }
    };
    let text = format!("{} x {}, {} nonzeros", csr.rows(), csr.cols(), csr.nnz());
    write_matrix(&args.out, &Matrix::Values(csr))?;
    Ok(text)
}

/// The tensor that the arguments describe.
fn spec(args: &Args) -> Result<TensorSpec> {
    let mut spec: TensorSpec = match (&args.dims, args.nnz) {
        (Some(dims), Some(nnz)) => format!("{}:{dims}:{nnz}", args.name).parse()?,
        (Some(_), None) => return Err(argument("nnz", "--dims goes with --nnz")),
        (None, nnz) => {
            let mut spec: TensorSpec = args.name.parse()?;
            spec.nnz = nnz.unwrap_or(spec.nnz);
            spec
        }
    };
    if let Some(text) = &args.initiator {
        let (Model::Kronecker(given) | Model::KroneckerBernoulli(given)) = &mut spec.model else {
            return Err(argument("initiator", "only kron and kron-bernoulli have one"));
        };
        *given = initiator(text)?;
    }
    if args.exponent.is_some() || !args.dense.is_empty() {
        let (Model::PowerLaw(exponent, dense) | Model::PowerLawSlices(exponent, dense)) = &mut spec.model else {
            return Err(argument("exponent", "only powerlaw and powerlaw-slices have an exponent and dense modes"));
        };
        *exponent = args.exponent.unwrap_or(DEFAULT_EXPONENT);
        if !args.dense.is_empty() {
            dense.clone_from(&args.dense);
        }
    }
    Ok(spec)
}

/// `2x2:0.9,0.5,0.5,0.1`.
fn initiator(text: &str) -> Result<Initiator> {
    let malformed = || argument("initiator", format!("{text} is not of the form 2x2:0.9,0.5,0.5,0.1"));
    let (dims, weights) = text.split_once(':').ok_or_else(malformed)?;
    let dims = parse_dims(dims).ok_or_else(malformed)?;
    let weights: Option<Vec<f64>> = weights.split(',').map(|w| w.trim().parse().ok()).collect();
    Initiator::new(dims, weights.ok_or_else(malformed)?)
}

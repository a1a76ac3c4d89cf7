//! `sparsimd generate NAME|MODEL --out FILE`.

use std::path::PathBuf;

use sparsimd::generate::{DEFAULT_EXPONENT, Initiator, Model, TensorSpec, parse_dims};
use sparsimd::io::{TensorFormat, write_tensor};
use sparsimd::{Cpu, Error, Result, Scalar};

use super::executor::Executor;
use super::timing::Dtype;
use super::{Verdict, output};

/// Arguments of `generate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A named tensor (regS to irr2L4d, skew3d, skew3d-large, skew4d, vast-like to deli4d-like), MODEL:DIMS:NNZ, or a model with
    /// --dims and --nnz: kron, powerlaw, skew, best-ttm, best-mttkrp, worst-ttm, worst-mttkrp
    name: String,
    /// File to write: .tns, .tns.gz or .tnsb
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Lengths of the modes, for a model
    #[arg(long, value_name = "IxJx...")]
    dims: Option<String>,
    /// Number of nonzeros; replaces that of a named tensor
    #[arg(long, value_name = "N")]
    nnz: Option<usize>,
    /// Initiator of kron, such as 2x2:0.9,0.5,0.5,0.1 (row-major) [default: 2x...x2, from 0.9 down to 0.1]
    #[arg(long, value_name = "DIMS:WEIGHTS")]
    initiator: Option<String>,
    /// Exponent of powerlaw: rank k of a mode has probability proportional to k^-E
    #[arg(long, value_name = "E")]
    exponent: Option<f64>,
    /// Modes of powerlaw with uniform coordinates, counted from 0
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

/// Makes the tensor and writes it.
pub fn run(args: &Args) -> Result<Verdict> {
    // Before the work: is there anything that could be written?
    TensorFormat::of(&args.out)?;
    let spec = spec(args)?;
    let cpu = args.executor.cpu()?;
    match args.dtype {
        Dtype::F32 => write::<f32>(args, &spec, &cpu)?,
        Dtype::F64 => write::<f64>(args, &spec, &cpu)?,
    }
    Ok(Verdict::Good)
}

fn write<T: Scalar>(args: &Args, spec: &TensorSpec, cpu: &Cpu) -> Result<()> {
    let tensor = cpu.install(|| -> Result<_> {
        let tensor = spec.generate::<T>(args.seed)?;
        write_tensor(&args.out, &tensor)?;
        Ok(tensor)
    })?;
    let dims = tensor.dims().iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
    output::line(&format!("{}: {dims}, {} nonzeros", args.out.display(), tensor.nnz()))
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
        if !matches!(spec.model, Model::Kronecker(_)) {
            return Err(argument("initiator", "only kron has one"));
        }
        spec.model = Model::Kronecker(initiator(text)?);
    }
    if args.exponent.is_some() || !args.dense.is_empty() {
        let Model::PowerLaw(exponent, dense) = &mut spec.model else {
            return Err(argument("exponent", "only powerlaw has an exponent and dense modes"));
        };
        *exponent = args.exponent.unwrap_or(DEFAULT_EXPONENT);
        dense.clone_from(&args.dense);
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

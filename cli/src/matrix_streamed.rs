//! `--passes MIB`: SpMM and SDDMM of a matrix that stays in its file, with dense operands that stay in theirs.

use std::path::Path;

use sparsimd::generate::uniform_dense;
use sparsimd::io::{DenseFormat, NpyStream, TnsbStream, write_mtx_entries, write_npy_rows};
use sparsimd::ops::DenseRows;
use sparsimd::plan::{NumaPolicy, Strategy};
use sparsimd::{Cpu, Error, Mat, MatRef, Result, Scalar, reference};

use super::Verdict;
use super::device::{DeviceName, Ran};
use super::executor::EffortName;
use super::matrix::{Common, EdgeName, Measured, PathName, dense_bytes};
use super::reorder::Order;
use super::timing::{Check, StoredDtype, Times};

/// `--passes`.
#[derive(Debug, clap::Args)]
pub struct Passes {
    /// MiB of memory for A in a .tnsb file and dense operands in .npy files that may be larger: A is read once, B too where half of the memory
    /// holds it, and the result is written as it is made. --verify needs all of them in memory besides
    #[arg(long = "passes", value_name = "MIB", requires = "matrix")]
    pub mib: Option<usize>,
}

/// What takes results: rows, columns and values of nonzeros.
type Entries<'w, T> = dyn FnMut(&[u32], &[u32], &[T]) -> Result<()> + 'w;

/// The error that `what` has no passes.
pub fn refused(what: &str) -> Error {
    Error::Argument { name: "passes", detail: format!("{what}: sums and dot products alone are computed in passes") }
}

/// A dense operand: in its file, or a random one in memory.
enum Dense<T> {
    File(NpyStream),
    Random(Mat<T>),
}

impl<T: Scalar> Dense<T> {
    fn new(args: &Common, cpu: &Cpu, name: &'static str, rows: usize, which: u64) -> Result<Self> {
        match args.operands.stream(name, rows)? {
            Some(file) => Ok(Self::File(file)),
            None => {
                let seed = args.source.seed.wrapping_add(which);
                cpu.install(|| uniform_dense(rows, args.n, seed)).map(Self::Random)
            }
        }
    }

    fn rows(&self) -> DenseRows<'_, T> {
        match self {
            Self::File(file) => file.into(),
            Self::Random(random) => random.as_ref().into(),
        }
    }
}

/// A pass: the matrix, and the memory that it may take.
struct Pass {
    cpu: Cpu,
    a: TnsbStream,
    dims: [usize; 2],
    memory: usize,
}

impl Pass {
    /// Opens the matrix of `op`, after all options that have no meaning for it have been refused.
    fn open(args: &Common, op: &str, mib: usize) -> Result<Self> {
        let argument = |name, detail: String| Err(Error::Argument { name, detail });
        let planned = args.path != PathName::Auto || args.effort == EffortName::Measure;
        let placed = args.place.device != DeviceName::Cpu || args.ranks.mpi || args.numa != NumaPolicy::Auto;
        if planned || placed || args.reorder != Order::None {
            let detail = "A is used as it is in its file, on the processor, by all threads: not with --path, --effort, --reorder, --numa, \
                          --device or --mpi";
            return argument("passes", detail.to_owned());
        }
        args.check_out(op)?;
        if let Some(out) = &args.out
            && !matches!((DenseFormat::of(out)?, op), (DenseFormat::Npy, _) | (DenseFormat::Mtx, "sddmm"))
        {
            let detail = format!("{}: a dense result that is written as it is made is an .npy file", out.display());
            return argument("out", detail);
        }
        let file = args.source.file().filter(|path| path.extension().is_some_and(|ending| ending == "tnsb"));
        let Some(path) = file else {
            let detail = "a matrix that is read in passes is a .tnsb file (sparsimd convert A.mtx A.tnsb)".to_owned();
            return argument("matrix", detail);
        };
        let cpu = args.executor.cpu()?;
        let a = TnsbStream::open(path)?;
        let Ok(dims) = <[usize; 2]>::try_from(a.dims()) else {
            return argument("matrix", format!("{} has {} modes: a matrix has 2", path.display(), a.dims().len()));
        };
        Ok(Self { cpu, a, dims, memory: mib.saturating_mul(1 << 20) })
    }

    /// Reports `times` runs of `op`, whose dense operands and result have `dense` bytes.
    fn report<T: Scalar>(
        &self,
        args: &Common,
        op: &'static str,
        times: Times,
        check: Check,
        dense: f64,
    ) -> Result<Verdict> {
        let nnz = self.a.nnz();
        let entries = nnz as f64 * (2 * size_of::<u32>() + size_of::<T>()) as f64;
        let done = Measured {
            plan: format!("passes over {}, {} MiB", self.a.path().display(), self.memory >> 20),
            path: Strategy::Direct,
            heads: 1,
            prepare_s: 0.0,
            times,
            check,
            flops: 2.0 * nnz as f64 * args.n as f64,
            bytes: entries + dense,
            numa: None,
            ran: Ran::on_cpu(),
        };
        args.report::<T>(op, &self.cpu, (self.dims[0], self.dims[1], nnz), "passes", done, None)
    }
}

/// C = A B.
pub fn spmm(args: &Common, mib: usize) -> Result<Verdict> {
    match args.dtype {
        StoredDtype::F32 => product::<f32>(args, mib),
        StoredDtype::F64 => product::<f64>(args, mib),
        StoredDtype::Bf16 | StoredDtype::F16 => Err(args.no_dtype("spmm in passes")),
    }
}

fn product<T: Scalar>(args: &Common, mib: usize) -> Result<Verdict> {
    let pass = Pass::open(args, "spmm", mib)?;
    let Pass { cpu, a, dims: [m, k], memory } = &pass;
    let b = Dense::<T>::new(args, cpu, "b", *k, 1)?;
    let mut whole = args.verify.then(|| Mat::<T>::zeros(*m, args.n)).transpose()?;
    let times = Times::cold(args.repeat, || {
        let mut run = |write: &mut dyn FnMut(MatRef<'_, T>) -> Result<()>| {
            cpu.spmm_streamed(a, b.rows(), *memory, |first, rows: MatRef<'_, T>| {
                for (i, row) in (first..).zip(rows.iter_rows()).filter(|_| args.verify) {
                    whole.iter_mut().for_each(|whole| whole.row_mut(i).copy_from_slice(row));
                }
                write(rows)
            })
        };
        match &args.out {
            Some(out) => write_npy_rows(out, &[*m, args.n], run),
            None => run(&mut |_| Ok(())),
        }
    })?;
    let check = match &whole {
        None => Check::NONE,
        Some(c) => {
            let (a, b) = (cpu.install(|| args.source.load::<T>())?, args.operand::<T>(cpu, "b", *k, 1)?);
            let expected = || reference::spmm(T::ONE, &a, b.as_ref(), T::ZERO, c.as_ref())?.deviation(c.as_ref());
            Check::when(true, || cpu.install(expected))?
        }
    };
    pass.report::<T>(args, "spmm", times, check, dense_bytes::<T>(m + k, args.n))
}

/// The entries of C B^T at the nonzeros of A, as they are or times a_ij.
pub fn sddmm(args: &Common, mib: usize) -> Result<Verdict> {
    match args.dtype {
        StoredDtype::F32 => dots::<f32>(args, mib),
        StoredDtype::F64 => dots::<f64>(args, mib),
        StoredDtype::Bf16 | StoredDtype::F16 => Err(args.no_dtype("sddmm in passes")),
    }
}

fn dots<T: Scalar>(args: &Common, mib: usize) -> Result<Verdict> {
    let pass = Pass::open(args, "sddmm", mib)?;
    let Pass { cpu, a, dims: [m, k], memory } = &pass;
    let (c, b) = (Dense::<T>::new(args, cpu, "c", *m, 1)?, Dense::<T>::new(args, cpu, "b", *k, 2)?);
    let scaled = args.edge == EdgeName::Scale;
    let mut all = Vec::new();
    let times = Times::cold(args.repeat, || {
        all.clear();
        let mut run = |write: &mut Entries<'_, T>| {
            let consume = |i: &[u32], j: &[u32], values: &[T]| {
                if args.verify {
                    all.extend_from_slice(values);
                }
                write(i, j, values)
            };
            match scaled {
                true => cpu.sddmm_scaled_streamed(a, c.rows(), b.rows(), *memory, consume),
                false => cpu.sddmm_streamed(a, c.rows(), b.rows(), *memory, consume),
            }
        };
        let is_npy = |out: &Path| matches!(DenseFormat::of(out), Ok(DenseFormat::Npy));
        match &args.out {
            Some(out) if is_npy(out) => write_npy_rows(out, &[a.nnz()], |write| {
                run(&mut |_, _, values| write(MatRef::new(values, values.len(), 1, 1)?))
            }),
            Some(out) => write_mtx_entries(out, (*m, *k), a.nnz(), run),
            None => run(&mut |_, _, _| Ok(())),
        }
    })?;
    let check = if args.verify {
        let a = cpu.install(|| args.source.load::<T>())?;
        let (c, b) = (args.operand::<T>(cpu, "c", *m, 1)?, args.operand::<T>(cpu, "b", *k, 2)?);
        let expected = || reference::sddmm(&a, scaled, c.as_ref(), b.as_ref())?.deviation_of_values(&all);
        Check::when(true, || cpu.install(expected))?
    } else {
        Check::NONE
    };
    let dense = dense_bytes::<T>(m + k, args.n) + dense_bytes::<T>(a.nnz(), 1);
    pass.report::<T>(args, "sddmm", times, check, dense)
}

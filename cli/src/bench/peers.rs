//! The peers of a run: which there are, each with the settings at which it is fastest, and their products on our operands.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use sparsimd::{Cpu, Csr, Error, Mat, MatMut, MatRef, Result, generate};
use sparsimd_peers::{Blas, Gemm, Loaded, Mkl, MklCsr, QUIET, Setting};

use super::genten::GenTen;
use super::package::Package;
use crate::timing::{seconds, timed};
use crate::{Verdict, output};

/// Tells the restarted program which settings were chosen, so that it does not choose again.
const CHOSEN: &str = "SPARSIMD_BENCH_CHOSEN";
/// Rows, columns and depth of the product that settings are compared by.
const PROBE: usize = 1536;
/// How long each is repeated.
const PROBE_TIME: Duration = Duration::from_millis(150);
/// A setting must be this much faster than the library's own choice to be preferred.
const WORTH: f64 = 1.05;

/// Whom to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PeerName {
    /// Nobody
    None,
    /// Intel MKL: dense and sparse products, loaded at run time
    Mkl,
    /// OpenBLAS: dense products, loaded at run time
    Openblas,
    /// The crate sprs: sparse products in one thread (feature rust-peers)
    Sprs,
    /// The crate faer: dense products (feature rust-peers)
    Faer,
    /// The crate gemm: dense products (feature rust-peers)
    Gemm,
    /// cuSPARSE through PyTorch, with --device gpu alone
    Torch,
    /// GenTen through its Python package pygenten, for the suites cp and mttkrp
    Genten,
    /// The Python package pyttb, for the suite mttkrp
    Pyttb,
    /// The Python package tensorly on the package sparse, for the suite mttkrp
    Tensorly,
}

impl PeerName {
    fn loaded(self) -> Option<Loaded> {
        match self {
            Self::Mkl => Some(Loaded::Mkl),
            Self::Openblas => Some(Loaded::OpenBlas),
            _ => None,
        }
    }

    /// Whether it has what is compared.
    pub fn knows(self, subject: Subject) -> bool {
        match self {
            Self::None => true,
            Self::Genten => matches!(subject, Subject::Cp | Subject::Mttkrp),
            Self::Pyttb | Self::Tensorly => subject == Subject::Mttkrp,
            _ => subject == Subject::Matrices,
        }
    }

    pub fn text(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// What peers are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Products with matrices.
    Matrices,
    /// CP-ALS.
    Cp,
    /// MTTKRP.
    Mttkrp,
    /// Nothing: formats are compared with each other.
    Formats,
}

/// A dense product.
pub enum Dense {
    Blas(Blas),
    #[cfg(feature = "rust-peers")]
    Gemm,
    #[cfg(feature = "rust-peers")]
    Faer,
}

/// A library of sparse products.
pub enum SparseLibrary {
    Mkl(Mkl),
    #[cfg(feature = "rust-peers")]
    Sprs,
}

/// A matrix as such a library has inspected it.
pub enum Inspected<'a> {
    Mkl(MklCsr<'a, f32>),
    #[cfg(feature = "rust-peers")]
    Sprs(sparsimd_peers::rust::Sprs<'a>, usize),
}

/// Everybody who is there.
#[derive(Default)]
pub struct Peers {
    /// Dense products by name.
    pub dense: Vec<(&'static str, Dense)>,
    /// Sparse products by name, the one with threads first.
    pub sparse: Vec<(&'static str, SparseLibrary)>,
    /// CP-ALS.
    pub genten: Option<RefCell<GenTen>>,
    /// MTTKRP.
    pub packages: Vec<RefCell<Package>>,
    /// Versions and paths taken, by name.
    pub details: BTreeMap<String, String>,
    /// Who is not there, and why.
    pub absent: Vec<String>,
}

/// What a try of a loaded library says.
#[derive(Serialize, Deserialize)]
struct Probed {
    gflops: f64,
    detail: String,
}

/// Arguments of the hidden command that tries one library with the settings of its environment.
#[derive(Debug, clap::Args)]
pub struct ProbeArgs {
    /// mkl or openblas
    peer: String,
    /// Number of threads
    #[arg(long)]
    threads: usize,
}

/// Loads the library, multiplies, and prints how fast that was.
pub fn probe(args: &ProbeArgs) -> Result<Verdict> {
    let peer = Loaded::ALL.into_iter().find(|peer| peer.name() == args.peer);
    let peer = peer.ok_or_else(|| Error::Argument { name: "peer", detail: format!("{:?} is none", args.peer) })?;
    let missing = |e: sparsimd_peers::Error| Error::Unavailable { what: "the peer", detail: e.to_string() };
    let blas = peer.gemm(args.threads).map_err(missing)?;
    let a = generate::uniform_dense::<f32>(PROBE, PROBE, 1)?;
    let b = generate::uniform_dense::<f32>(PROBE, PROBE, 2)?;
    let mut c = Mat::<f32>::zeros(PROBE, PROBE)?;
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    while best == f64::INFINITY || begin.elapsed() < PROBE_TIME {
        let (shape, a, b, c) = shaped(a.as_ref(), b.as_ref(), false, c.as_mut());
        best = best.min(seconds(|| blas.gemm(shape, a, b, c)).map_err(missing)?);
    }
    output::json(&Probed { gflops: 2e-9 * (PROBE as f64).powi(3) / best, detail: blas.detail().to_owned() })?;
    Ok(Verdict::Good)
}

/// Tries the loaded ones of `names` with each of their settings, in processes of their own (a library reads its settings
/// when it is loaded, and a wrong one may end the process), and starts this program again with the best. Returns only
/// when there is nothing to choose, or when it was chosen already.
pub fn choose_settings(names: &[PeerName], threads: usize) -> Result<()> {
    let loaded: Vec<_> = names.iter().filter_map(|name| name.loaded()).collect();
    if loaded.is_empty() || std::env::var_os(CHOSEN).is_some() {
        return Ok(());
    }
    let again = |source| Error::Io { path: "/proc/self/exe".into(), source };
    let mut command = Command::new(std::env::current_exe().map_err(again)?);
    command.args(std::env::args_os().skip(1)).env(CHOSEN, "1").envs(QUIET.map(|s| (s.name, s.value)));
    for peer in loaded {
        let Some(own) = try_settings(peer, threads, None) else { continue };
        let tries = peer.candidates().iter().filter_map(|&s| Some((s, try_settings(peer, threads, Some(s))?)));
        let best = tries.max_by(|a, b| a.1.gflops.total_cmp(&b.1.gflops));
        let best = best.filter(|(_, probed)| probed.gflops > WORTH * own.gflops);
        if let Some((setting, probed)) = &best {
            output::note(&format!(
                "{}: {:.0} GFLOP/s with {}={}, {:.0} by its own choice",
                peer.name(),
                probed.gflops,
                setting.name,
                setting.value,
                own.gflops
            ));
        }
        with_setting(&mut command, peer, best.map(|(setting, _)| setting));
    }
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        Err(again(command.exec()))
    }
    #[cfg(not(unix))]
    {
        let status = command.status().map_err(again)?;
        std::process::exit(status.code().unwrap_or(2));
    }
}

/// Has `command` run with one of the settings of `peer`, or with none of them: what the environment holds may be somebody's
/// choice for another purpose, and is tried like every other value.
fn with_setting(command: &mut Command, peer: Loaded, setting: Option<Setting>) {
    for candidate in peer.candidates() {
        command.env_remove(candidate.name);
    }
    if let Some(setting) = setting {
        command.env(setting.name, setting.value);
    }
}

/// One try; `None` when it fails, as it does where the library is absent.
fn try_settings(peer: Loaded, threads: usize, setting: Option<Setting>) -> Option<Probed> {
    let mut command = Command::new(std::env::current_exe().ok()?);
    command.args(["bench-probe", peer.name(), "--threads", &threads.to_string()]);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    with_setting(&mut command, peer, setting);
    let done = command.output().ok()?;
    if done.status.success() { serde_json::from_slice(&done.stdout).ok() } else { None }
}

impl Peers {
    /// Loads `names`; who is absent or broken is noted.
    pub fn load(names: &[PeerName], threads: usize) -> Self {
        let mut peers = Self::default();
        for &name in names {
            if let Err(why) = peers.add(name, threads) {
                peers.absent.push(format!("{}: {why}", name.text()));
            }
        }
        peers
    }

    fn add(&mut self, name: PeerName, threads: usize) -> Result<(), String> {
        match name {
            PeerName::None => {}
            PeerName::Genten => {
                let genten = GenTen::start(threads)?;
                self.details.insert("GenTen".to_owned(), genten.detail().to_owned());
                self.genten = Some(RefCell::new(genten));
            }
            PeerName::Pyttb => self.add_package("pyttb", threads)?,
            PeerName::Tensorly => self.add_package("tensorly", threads)?,
            PeerName::Torch => return Err("only with --device gpu".to_owned()),
            PeerName::Mkl => {
                let mkl = Mkl::load(threads).map_err(|e| e.to_string())?;
                self.details.insert("MKL".to_owned(), mkl.blas().detail().to_owned());
                self.dense.push(("MKL gemm", Dense::Blas(mkl.blas().clone())));
                self.sparse.insert(0, ("MKL sparse", SparseLibrary::Mkl(mkl)));
            }
            PeerName::Openblas => {
                let blas = Loaded::OpenBlas.gemm(threads).map_err(|e| e.to_string())?;
                self.details.insert("OpenBLAS".to_owned(), blas.detail().to_owned());
                self.dense.push(("OpenBLAS gemm", Dense::Blas(blas)));
            }
            #[cfg(feature = "rust-peers")]
            PeerName::Sprs => {
                self.details.insert("sprs".to_owned(), "one thread".to_owned());
                self.sparse.push(("sprs", SparseLibrary::Sprs));
            }
            #[cfg(feature = "rust-peers")]
            PeerName::Faer => self.dense.push(("faer gemm", Dense::Faer)),
            #[cfg(feature = "rust-peers")]
            PeerName::Gemm => self.dense.push(("gemm crate", Dense::Gemm)),
            #[cfg(not(feature = "rust-peers"))]
            _ => return Err("this build is without the feature rust-peers".to_owned()),
        }
        Ok(())
    }
}

impl Peers {
    fn add_package(&mut self, name: &'static str, threads: usize) -> Result<(), String> {
        let package = Package::start(name, threads)?;
        self.details.insert(name.to_owned(), package.detail().to_owned());
        self.packages.push(RefCell::new(package));
        Ok(())
    }
}

impl Dense {
    /// C = A B, or A B^T.
    pub fn multiply(
        &self,
        #[cfg_attr(not(feature = "rust-peers"), expect(unused_variables, reason = "loaded peers have own threads"))]
        cpu: &Cpu,
        a: MatRef<'_, f32>,
        b: MatRef<'_, f32>,
        b_transposed: bool,
        c: MatMut<'_, f32>,
    ) -> Result<(), String> {
        let (shape, a, b, c) = shaped(a, b, b_transposed, c);
        match self {
            Self::Blas(blas) => blas.gemm(shape, a, b, c),
            #[cfg(feature = "rust-peers")]
            Self::Gemm => cpu.install(|| sparsimd_peers::rust::gemm(cpu.threads(), shape, a, b, c)),
            #[cfg(feature = "rust-peers")]
            Self::Faer => cpu.install(|| sparsimd_peers::rust::faer(cpu.threads(), shape, a, b, c)),
        }
        .map_err(|e| e.to_string())
    }
}

/// The operands as the peers take them.
fn shaped<'a>(
    a: MatRef<'a, f32>,
    b: MatRef<'a, f32>,
    b_transposed: bool,
    c: MatMut<'a, f32>,
) -> (Gemm, &'a [f32], &'a [f32], &'a mut [f32]) {
    let (m, n, k) = (c.rows(), c.cols(), a.cols());
    let shape = Gemm { m, n, k, lda: a.stride(), ldb: b.stride(), ldc: c.stride(), b_transposed };
    (shape, a.data(), b.data(), c.into_data())
}

impl SparseLibrary {
    /// Has it inspect `a` for products with `n` columns; and the seconds that took.
    pub fn inspect<'a>(&'a self, a: &'a Csr<f32>, n: usize) -> Result<(Inspected<'a>, f64), String> {
        let (pattern, values) = (a.pattern(), a.values());
        let inspect = || match self {
            Self::Mkl(mkl) => MklCsr::new(mkl, (a.rows(), a.cols(), n), pattern.row_ptr(), pattern.col_idx(), values)
                .map(Inspected::Mkl),
            #[cfg(feature = "rust-peers")]
            Self::Sprs => {
                let shape = (a.rows(), a.cols());
                sparsimd_peers::rust::Sprs::new(shape, pattern.row_ptr(), pattern.col_idx(), values)
                    .map(|matrix| Inspected::Sprs(matrix, n))
            }
        };
        timed(inspect).map_err(|e| e.to_string())
    }
}

impl Inspected<'_> {
    /// C = A B.
    pub fn multiply(&self, b: MatRef<'_, f32>, c: MatMut<'_, f32>) -> Result<(), String> {
        let (ldb, ldc) = (b.stride(), c.stride());
        match self {
            Self::Mkl(a) => a.multiply(b.data(), ldb, c.into_data(), ldc),
            #[cfg(feature = "rust-peers")]
            Self::Sprs(a, n) => sparsimd_peers::rust::sprs(a, *n, b.data(), ldb, c.into_data(), ldc),
        }
        .map_err(|e| e.to_string())
    }
}

//! TTM and MTTKRP at both granularities, in the best, the worst and a real-like case, over 1 to 128 columns, under the
//! cache-aware roofline: Figures 2 and 3 of *Exploring the Limits of Cross-Platform Sparse Tensor Processing*.

use std::path::Path;

use sparsimd::formats::Csf;
use sparsimd::formats::Fibers;
use sparsimd::generate::TensorSpec;
use sparsimd::ops::TtmAlgorithm;
use sparsimd::plan::{MttkrpAlgorithm, MttkrpFormat, TensorOptions};
use sparsimd::{CooTensor, Mat, Result, reference};
use sparsimd_measure::{Granularity, TreeCounts};

use super::picture::speeds;
use super::report::{self, Section};
use super::results::{Case, Results};
use super::tensor_device::TensorTarget;
use super::tensors::{Input, Kept, cuts, empty, factors, race, way};
use super::{Bench, Job, Suite};
use crate::machine::ceilings;
use crate::roofline::{Point, Roofline, levels_of};
use crate::timing::timed;

/// Columns of the matrices.
const COLUMNS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Those of the short form.
const QUICK_COLUMNS: [usize; 3] = [1, 16, 128];
/// Columns whose dots are in the pictures.
const SHOWN: [usize; 3] = [1, 16, 128];
/// The figures of each sample.
const INTENSITY: &str = "FLOP per byte";

/// The two methods.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Ttm,
    Mttkrp,
}

impl Method {
    const ALL: [Self; 2] = [Self::Ttm, Self::Mttkrp];

    fn name(self) -> &'static str {
        match self {
            Self::Ttm => "TTM",
            Self::Mttkrp => "MTTKRP",
        }
    }

    /// The mode that it multiplies in, or computes: extremes are made for the last and the first one.
    fn mode(self, order: usize) -> usize {
        match self {
            Self::Ttm => order - 1,
            Self::Mttkrp => 0,
        }
    }
}

/// A tensor and its counts, as the methods on it need them.
struct Stored {
    x: CooTensor<f32>,
    /// Fibers along the mode as leaves.
    csf: Csf<f32>,
    tree: TreeCounts,
}

/// The suite.
pub struct Sycl {
    /// For each method.
    inputs: Vec<(Method, Input)>,
    columns: &'static [usize],
    kept: Kept<Stored>,
}

impl Sycl {
    /// Three inputs for each method; the files below `data` besides.
    ///
    /// # Errors
    /// As [`Input::files`].
    pub fn new(data: Option<&Path>, quick: bool) -> Result<Self> {
        let nnz = if quick { 200_000 } else { 4_000_000 };
        // The worst cases' modes are so long that no row is met twice while a cache would still have it.
        let (long, wide) = if quick { (1 << 17, 1 << 18) } else { (1 << 20, 1 << 22) };
        let made = |method: Method, name: &str, text: String| {
            let spec: TensorSpec = text.parse().ok()?;
            Some((method, Input::Made(name.to_owned(), spec, None)))
        };
        let mut inputs: Vec<_> = [
            made(Method::Ttm, "best", format!("best-ttm:1024x1024x1024:{nnz}")),
            made(Method::Ttm, "worst", format!("worst-ttm:4096x4096x{long}:{nnz}")),
            made(Method::Mttkrp, "best", format!("best-mttkrp:4096x256x256:{nnz}")),
            made(Method::Mttkrp, "worst", format!("worst-mttkrp:{wide}x{long}x{long}:{}", nnz.min(wide))),
        ]
        .into_iter()
        .flatten()
        .collect();
        let real = match data {
            Some(folder) => Input::files(folder)?,
            None => ["vast-like", "nell2-like"].iter().filter_map(|name| Input::made(name, nnz)).collect(),
        };
        for method in Method::ALL {
            inputs.extend(real.iter().map(|input| (method, input.clone())));
        }
        Ok(Self { inputs, columns: if quick { &QUICK_COLUMNS } else { &COLUMNS }, kept: Kept::none() })
    }

    fn spec(&self, job: usize) -> (usize, usize, String) {
        let (at, columns) = (job / self.columns.len(), self.columns[job % self.columns.len()]);
        let (method, input) = &self.inputs[at];
        (at, columns, format!("{} {} C={columns}", method.name(), input.name()))
    }
}

impl Suite for Sycl {
    fn jobs(&self) -> Vec<Job> {
        let job = |job| {
            let (at, columns, id) = self.spec(job);
            Job { id, weight: 1.0 + 1e-8 * self.inputs[at].1.size() * (columns as f64 + 30.0) }
        };
        (0..self.inputs.len() * self.columns.len()).map(job).collect()
    }

    fn run(&mut self, bench: &Bench, job: usize) -> Result<Case> {
        let (at, columns, id) = self.spec(job);
        let (method, input) = &self.inputs[at];
        let stored = self.kept.get(at, || Stored::new(bench, *method, input))?;
        let mut case = empty(&id, method.name(), &input.name(), &stored.x, columns);
        match method {
            Method::Ttm => stored.ttm(bench, columns, &mut case)?,
            Method::Mttkrp => stored.mttkrp(bench, columns, &mut case)?,
        }
        Ok(case)
    }

    fn sections(&self, bench: &Bench, results: &Results, folder: &Path) -> Result<Vec<Section>> {
        let (ceilings, ..) = ceilings(&bench.cpu, false)?;
        let (fma, add) = (ceilings.fma_f32.all, ceilings.add_f32.all);
        let level = |at: Option<&sparsimd_measure::LevelCeiling>| at.map_or(0.0, |level| level.read.all);
        let (near, far) = (level(ceilings.levels.first()), level(ceilings.levels.last()));
        let mut sections = Vec::new();
        for method in Method::ALL {
            let cases: Vec<_> = results.cases.iter().filter(|case| case.op == method.name()).collect();
            let point = |case: &&Case| {
                // The ceilings are the processor's: a device has no figure for this picture.
                let ours = case.samples.iter().filter(|sample| sample.figures.contains_key(INTENSITY));
                let best = ours.max_by(|a, b| a.gflops.total_cmp(&b.gflops))?;
                let intensity = *best.figures.get(INTENSITY)?;
                Some(Point {
                    label: format!("{} {}", case.input, case.n),
                    format: Some("csf-all".to_owned()),
                    intensity,
                    gflops: best.gflops,
                    dram_roof: fma.min(intensity * far),
                    roof: fma.min(intensity * near),
                })
            };
            let points: Vec<_> = cases.iter().filter(|case| SHOWN.contains(&case.n)).filter_map(point).collect();
            let title = format!("{}, {} thread(s), dots: input and columns", method.name(), bench.cpu.threads());
            let own = folder.join(method.name().to_lowercase());
            let [svg, _] =
                Roofline { title, levels: &levels_of(&ceilings), fma, add: Some(add), points: &points }.save(&own)?;
            let text = "Operations and bytes by the paper's Table 2, of the granularity that was faster. Row- and \
                        fiber-centric: a task computes whole rows of the output; element-centric: one register of \
                        columns of them, both on compressed sparse fibers."
                .to_owned();
            let title = format!("Cache-aware roofline of {}", method.name());
            sections.push(Section { title, text: vec![text], pictures: vec![svg], ..Section::default() });
            for input in super::summary::distinct(cases.iter().map(|case| case.input.as_str())) {
                let of_input: Vec<_> = cases.iter().copied().filter(|case| case.input == input).collect();
                let named: Vec<Case> =
                    of_input.iter().map(|&case| Case { input: case.n.to_string(), ..case.clone() }).collect();
                let name = format!("{}-{input}", method.name().to_lowercase());
                let title = format!("{}, {input}: GFLOP/s over columns", method.name());
                sections.extend(speeds(folder, &name, title, "columns", &named.iter().collect::<Vec<_>>())?);
            }
        }
        let text = cuts(self.inputs.iter().map(|(_, input)| input));
        sections.push(Section { title: "Tensors".to_owned(), text, ..Section::default() });
        sections.push(report::table("All cases", results));
        Ok(sections)
    }
}

/// What a device that shares with the processor is compared with besides the processor alone.
fn rivals(bench: &Bench) -> Result<Vec<TensorTarget>> {
    bench.tensors.as_ref().map_or(Ok(Vec::new()), TensorTarget::rivals)
}

impl Stored {
    fn new(bench: &Bench, method: Method, input: &Input) -> Result<Self> {
        let x = input.load(&bench.cpu)?;
        let order = x.order();
        let mode = method.mode(order);
        bench.cpu.install(|| {
            let (leaf_last, root) = match method {
                // Of all orders with the mode as leaf any has the same fibers; the tree is that of the order.
                Method::Ttm => ((0..order).collect::<Vec<_>>(), 0),
                Method::Mttkrp => (sparsimd::formats::rooted_mode_order(x.dims(), mode), mode),
            };
            let csf = Csf::from_coo(&x, &leaf_last)?;
            let nodes = |level| csf.pattern().nodes(level);
            let tree = match method {
                Method::Ttm => TreeCounts::new(nodes(0), nodes(order - 2), x.nnz()),
                Method::Mttkrp => TreeCounts::of(&x, root)?,
            };
            Ok(Self { csf, tree, x })
        })
    }

    fn ttm(&self, bench: &Bench, columns: usize, case: &mut Case) -> Result<()> {
        let (cpu, x, rivals) = (&bench.cpu, &self.x, rivals(bench)?);
        let mode = Method::Ttm.mode(x.order());
        let factors = factors(cpu, x, columns)?;
        let u = factors[mode].as_ref();
        let fibers = Fibers::of_csf(&self.csf)?;
        let places = sparsimd::formats::FiberCoo::from_csf(&self.csf)?.coords().to_vec();
        let expected = cpu.install(|| reference::ttm(x, mode, u, &places))?;
        case.flops = 2.0 * x.nnz() as f64 * columns as f64;
        let mut list = Vec::new();
        for (name, algorithm, granularity) in [
            ("fiber-centric", TtmAlgorithm::Fiber, Granularity::Row),
            ("element-centric", TtmAlgorithm::Element, Granularity::Element),
        ] {
            let mut y = Mat::zeros(fibers.len(), columns)?;
            cpu.ttm_into(fibers, u, algorithm, y.as_mut())?;
            let deviation = cpu.install(|| expected.deviation(y.as_ref()))?;
            way(case, &mut list, name, 0.0, deviation, move || cpu.ttm_into(fibers, u, algorithm, y.as_mut()));
            if let Some(last) = list.last_mut() {
                last.figures.insert(INTENSITY.to_owned(), self.tree.ttm(granularity, columns).intensity());
            }
        }
        let modes = [(mode, fibers, places)];
        for target in bench.tensors.iter().chain(&rivals) {
            for (name, algorithm) in
                [("fiber-centric", TtmAlgorithm::Fiber), ("element-centric", TtmAlgorithm::Element)]
            {
                target.product((cpu, x), case, &mut list, (name, Some(algorithm)), &modes, &factors)?;
            }
        }
        race(bench, case, list)
    }

    /// On the tree rooted at the mode: row by row, and one register of columns of some rows after the other.
    fn mttkrp(&self, bench: &Bench, columns: usize, case: &mut Case) -> Result<()> {
        let (cpu, x, rivals) = (&bench.cpu, &self.x, rivals(bench)?);
        let mode = Method::Mttkrp.mode(x.order());
        let factors = factors(cpu, x, columns)?;
        let views: Vec<_> = factors.iter().map(Mat::as_ref).collect();
        let expected = cpu.install(|| reference::mttkrp(x, &views, mode))?;
        // As the paper counts: a multiply-add for each fiber and each nonzero.
        case.flops = self.tree.mttkrp(Granularity::Row, columns).ops;
        let options = TensorOptions::new(columns).format(MttkrpFormat::CsfAll);
        let prepare = |algorithm| timed(|| cpu.prepare_tensor(x, &options.algorithm(algorithm)));
        let prepared = [
            ("row-centric", prepare(MttkrpAlgorithm::Slice)?, Granularity::Row),
            ("element-centric", prepare(MttkrpAlgorithm::Element)?, Granularity::Element),
        ];
        let (prepared, views) = (&prepared, &views);
        let mut list = Vec::new();
        for (name, (tensor, seconds), granularity) in prepared {
            let mut out = Mat::zeros(x.dims()[mode], columns)?;
            cpu.mttkrp(tensor, views, mode, out.as_mut())?;
            let deviation = cpu.install(|| expected.deviation(out.as_ref()))?;
            let run = move || cpu.mttkrp(tensor, views, mode, out.as_mut());
            way(case, &mut list, name, *seconds, deviation, run);
            if let Some(last) = list.last_mut() {
                last.figures.insert(INTENSITY.to_owned(), self.tree.mttkrp(*granularity, columns).intensity());
            }
        }
        for target in bench.tensors.iter().chain(&rivals) {
            for (name, algorithm) in [("row-centric", None), ("element-centric", Some(MttkrpAlgorithm::Element))] {
                let way = (name, MttkrpFormat::CsfAll, algorithm);
                target.mttkrp((cpu, x), case, &mut list, way, views, &[mode])?;
            }
        }
        race(bench, case, list)
    }
}

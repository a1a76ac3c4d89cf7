//! `sparsimd fpga`.

use std::str::FromStr;

use clap::ValueEnum;
use serde::Serialize;
use sparsimd::formats::{Csf, rooted_mode_order};
use sparsimd::hetero::Split;
use sparsimd::{CooTensor, Error, Result};
use sparsimd_measure::{BOARDS, Board, FpgaOp, FpgaRun, RowStore};

use super::executor::Executor;
use super::fpga_shared::{Shared, Shares};
use super::tensor::Source;
use super::{Verdict, output};

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Op {
    /// Tensor times matrix.
    Ttm,
    /// Tensor times Khatri-Rao product.
    Mttkrp,
}

/// `memory | cache:KIB | on-chip`.
#[derive(Clone, Copy, Debug)]
struct Rows(RowStore);

impl FromStr for Rows {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kib = |kib: &str| kib.parse::<usize>().ok().and_then(|kib| kib.checked_mul(1024));
        match text {
            "memory" => Ok(Self(RowStore::Memory)),
            "on-chip" => Ok(Self(RowStore::OnChip)),
            _ => match text.strip_prefix("cache:").and_then(kib) {
                Some(bytes) => Ok(Self(RowStore::Cache(bytes))),
                None => Err("not memory, cache:KIB or on-chip".to_owned()),
            },
        }
    }
}

/// Arguments of `fpga`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Operation
    #[arg(value_enum)]
    op: Op,
    #[command(flatten)]
    source: Source,
    /// Mode of the product (ttm) or of the result (mttkrp)
    #[arg(long, value_name = "M", default_value_t = 0)]
    mode: usize,
    /// Board: arria10-gx1150 or stratix10-gx2800
    #[arg(long, value_name = "NAME", default_value = "arria10-gx1150")]
    board: String,
    /// Columns of the matrices; a line of the result for each
    #[arg(long, value_name = "C[,C,...]", value_delimiter = ',', required = true)]
    columns: Vec<usize>,
    /// Processing elements
    #[arg(long, value_name = "P", default_value_t = 1)]
    elements: usize,
    /// Where rows of the matrix come from that nonzeros use: memory, cache:KIB (each element has one) or on-chip
    #[arg(long, value_name = "WHERE", default_value = "memory")]
    rows: Rows,
    /// Clock that the design reaches, in MHz [default: the board's highest]
    #[arg(long, value_name = "MHZ")]
    clock: Option<f64>,
    /// Share the work with the processor, which is measured: SHARE of it, from 0 to 1, on the board, or as the rates of both say on a
    /// tenth of it or more
    #[arg(long, value_name = "adaptive|SHARE")]
    share: Option<Split>,
    #[command(flatten)]
    executor: Executor,
    /// Measured runs of the processor [default: as many as fit a second, at least 5]
    #[arg(long, value_name = "R", requires = "share")]
    repeat: Option<usize>,
    /// Compare the processor's part with a naive loop in double precision
    #[arg(long, requires = "share")]
    verify: bool,
    /// One JSON object for each number of columns instead of text
    #[arg(long)]
    json: bool,
}

impl Args {
    /// The operand as the user named it.
    pub fn operand(&self) -> Option<String> {
        self.source.operand()
    }
}

#[derive(Debug, Serialize)]
struct Report {
    op: &'static str,
    board: &'static str,
    clock_mhz: f64,
    mode: usize,
    nnz: usize,
    columns: usize,
    elements: usize,
    /// DSP blocks of all elements.
    dsps: usize,
    /// Seconds that no run is below, by the analytic model.
    model_s: f64,
    /// Seconds of the simulation.
    simulated_s: f64,
    /// Its cycles.
    cycles: u64,
    /// Bytes that the board's memory moved in it.
    bytes: u64,
    model_gflops: f64,
    simulated_gflops: f64,
    /// With the processor beside the board; null where that is not asked for.
    shared: Option<Shared>,
}

/// Simulates the design on the tensor.
pub fn run(args: &Args) -> Result<Verdict> {
    let Some(&board) = Board::named(&args.board) else {
        let names: Vec<&str> = BOARDS.iter().map(|board| board.name).collect();
        return Err(Error::Argument {
            name: "board",
            detail: format!("{} is not one of {}", args.board, names.join(", ")),
        });
    };
    let clock_mhz = args.clock.unwrap_or(board.clock_mhz);
    if !(clock_mhz > 0.0 && clock_mhz.is_finite()) {
        return Err(Error::Argument { name: "clock", detail: format!("{clock_mhz} is not a number above 0") });
    }
    let board = Board { clock_mhz, ..board };
    let cpu = args.executor.cpu()?;
    let x: CooTensor<f32> = cpu.install(|| args.source.load())?;
    if args.mode >= x.order() {
        let detail = format!("{} of a tensor of order {}", args.mode, x.order());
        return Err(Error::Argument { name: "mode", detail });
    }
    let mut mode_order = rooted_mode_order(x.dims(), args.mode);
    let (op, name) = match args.op {
        Op::Ttm => (FpgaOp::Ttm, "ttm"),
        Op::Mttkrp => (FpgaOp::Mttkrp, "mttkrp"),
    };
    if op == FpgaOp::Ttm {
        // Fibers along the mode.
        mode_order.rotate_left(1);
    }
    let csf = cpu.install(|| Csf::from_coo(&x, &mode_order))?;
    let shares = args.share.map(|split| (split, Shares::new(&cpu, &board, op, args.mode, &csf)));
    let mut verdict = Verdict::Good;
    for &columns in &args.columns {
        let run = FpgaRun { op, columns, elements: args.elements, rows: args.rows.0 };
        let times = run.simulate(&board, &csf)?;
        let gflops = |seconds: f64| if seconds > 0.0 { times.flops / seconds / 1e9 } else { 0.0 };
        let share = |(split, shares): &(Split, Shares<'_>)| {
            shares.run(&run, *split, args.source.seed, args.repeat, args.verify)
        };
        let shared = shares.as_ref().map(share).transpose()?;
        if shared.as_ref().is_some_and(|shared| shared.check.verified == Some(false)) {
            verdict = Verdict::Wrong;
        }
        let report = Report {
            op: name,
            board: board.name,
            clock_mhz,
            mode: args.mode,
            nnz: x.nnz(),
            columns,
            elements: args.elements,
            dsps: times.design.dsps * times.design.elements,
            model_s: times.model_s,
            simulated_s: times.simulated_s,
            cycles: times.cycles,
            bytes: times.bytes,
            model_gflops: gflops(times.model_s),
            simulated_gflops: gflops(times.simulated_s),
            shared,
        };
        if args.json {
            output::json(&report)?;
            continue;
        }
        let Report { dsps, model_s, simulated_s, cycles, model_gflops, simulated_gflops, shared, .. } = report;
        output::line(&format!(
            "{name} on {}, {columns} columns, {dsps} DSP blocks at {clock_mhz} MHz: simulated {simulated_s:.3e} s \
             ({cycles} cycles, {simulated_gflops:.2} GFLOP/s), at least {model_s:.3e} s by the model ({model_gflops:.2} GFLOP/s)",
            board.name
        ))?;
        if let Some(shared) = shared {
            output::line(&shared.text(simulated_s))?;
        }
    }
    Ok(verdict)
}

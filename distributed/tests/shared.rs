//! Dense operands in memory that ranks have in common: the products are those by messages, and so are the words that are counted, of which
//! none is in a message.

#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "the tests of one machine use the rest")]
#[path = "../../tests/common/matrices.rs"]
mod matrices;

use matrices::skewed;
use sparsimd::plan::{Op, PlanOptions};
use sparsimd::{Cpu, Csr, CsrRef, Pattern, edge};
use sparsimd_distributed::{
    Algorithm, Blocks, Comm, CountComm, DistCsr, DistMat, Received, Result, Sent, ThreadComm, Traffic, share_rows,
};

/// Ranks that may have memory in common.
struct Together<'a>(&'a dyn Comm);

impl Comm for Together<'_> {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn exchange(&self, sends: &[Sent<'_>], receives: &mut [Received<'_>], work: &mut dyn FnMut()) -> Result<()> {
        self.0.exchange(sends, receives, work)
    }

    fn least(&self, x: u64) -> Result<u64> {
        self.0.least(x)
    }

    fn one_machine(&self) -> bool {
        true
    }
}

fn cpu() -> Cpu {
    Cpu::builder().threads(1).pin(false).build().unwrap()
}

/// Words alone: a softmax's B and D are two messages.
fn payload(traffic: Traffic) -> [usize; 2] {
    [traffic.bytes_sent, traffic.bytes_received]
}

/// What `run` returns on each rank, and the payload that the library counts between its calls of `take`: by messages, and then where all may
/// be in memory.
fn both<R: Send>(
    ranks: usize,
    run: impl Fn(&dyn Comm, &mut dyn FnMut()) -> R + Sync,
) -> [Vec<(R, Vec<[usize; 2]>)>; 2] {
    [false, true].map(|together| {
        ThreadComm::run(ranks, |comm| {
            let below = CountComm::new(comm);
            let memory = Together(&below);
            let comm = CountComm::new(if together { &memory } else { &below });
            let mut counted = Vec::new();
            let result = run(&comm, &mut || {
                // Of each four steps, the third has no messages.
                let carried = payload(below.take());
                assert!(!together || counted.len() % 4 != 2 || carried == [0; 2], "{carried:?}");
                counted.push(payload(comm.take()));
            });
            (result, counted)
        })
    })
}

/// Whether numbers are equal to rounding.
fn near(x: &[f64], y: &[f64]) -> bool {
    x.len() == y.len() && x.iter().zip(y).all(|(x, y)| (x - y).abs() <= 1e-9 * (1.0 + x.abs()))
}

#[test]
fn products_in_common_are_those_by_messages() {
    let a = skewed::<f64>();
    for (ranks, last) in [(1, false), (2, false), (3, false), (3, true), (5, false)] {
        let cut = |n: usize| match last {
            // Ranks without rows.
            true => Blocks::new(vec![0; ranks].into_iter().chain([n]).collect()).unwrap(),
            false => Blocks::even(n, ranks),
        };
        let (rows, cols) = (cut(a.rows()), cut(a.cols()));
        let run = |comm: &dyn Comm, take: &mut dyn FnMut()| {
            let (cpu, rank) = (cpu(), comm.rank());
            let own = CsrRef::from(&a).row_range(rows.range(rank)).unwrap().to_csr();
            let mut dist = DistCsr::new(comm, &rows, &cols, &own, Algorithm::Aware).unwrap();
            let mut all: Vec<f64> = Vec::new();
            for n in [5, 16] {
                if n == 16 {
                    dist.prepare(&cpu, &PlanOptions::new(Op::FusedMm, n)).unwrap();
                }
                let dense = |blocks: &Blocks, by: usize| {
                    DistMat::from_fn(blocks, rank, n, |i, j| ((i * by + 7 * j) % 23) as f64 / 16.0 - 0.6).unwrap()
                };
                let mut b = dense(&cols, 3).into_common(comm).unwrap();
                let (again, d) =
                    (dense(&cols, 3).into_common(comm).unwrap(), dense(&cols, 5).into_common(comm).unwrap());
                let (c, mut out, mut values) = (dense(&rows, 11), dense(&rows, 0), vec![0.0; own.nnz()]);
                take();
                let mut keep = |m: &DistMat<f64>| all.extend(m.local().iter_rows().flatten());
                // Not the same matrix on all ranks, and not all of them: by messages.
                let one = if rank == 0 { &b } else { &again };
                dist.spmm(&cpu, comm, one, &mut out).unwrap();
                keep(&out);
                dist.fusedmm(&cpu, comm, edge::Sigmoid, &c, &b, &dense(&cols, 5), &mut out).unwrap();
                keep(&out);
                take();
                for change in [1.0, 2.0] {
                    b.local_mut().into_data().iter_mut().for_each(|x| *x *= change);
                    dist.spmm(&cpu, comm, &b, &mut out).unwrap();
                    keep(&out);
                }
                dist.fusedmm(&cpu, comm, edge::Sigmoid, &c, &b, &d, &mut out).unwrap();
                keep(&out);
                dist.fusedmm(&cpu, comm, edge::Scale, &c, &b, &b, &mut out).unwrap();
                keep(&out);
                dist.fusedmm(&cpu, comm, edge::Softmax { scale: 0.5 }, &c, &b, &d, &mut out).unwrap();
                keep(&out);
                dist.fusedmm(&cpu, comm, edge::Softmax { scale: 0.5 }, &c, &b, &b, &mut out).unwrap();
                keep(&out);
                for scaled in [false, true] {
                    dist.sddmm(&cpu, comm, scaled, &c, &b, &mut values).unwrap();
                    all.extend(&values);
                }
                take();
                // What does not fit is refused on all ranks.
                let mut narrow = DistMat::zeros(&rows, rank, if rank == ranks - 1 { n - 1 } else { n }).unwrap();
                assert!(dist.spmm(&cpu, comm, &b, &mut narrow).is_err());
                take();
            }
            all
        };
        let [messages, memory] = both(ranks, run);
        for ((expected, wanted), (got, counted)) in messages.into_iter().zip(memory) {
            assert!(near(&expected, &got), "{ranks} ranks");
            assert!(last || got.iter().any(|x| x.abs() > 0.5), "{ranks} ranks");
            // Setting up apart, and the words of an error.
            for step in [1, 2, 5, 6] {
                assert_eq!(wanted[step], counted[step], "{ranks} ranks, step {step}");
            }
            assert!(ranks == 1 || last || counted[2].iter().all(|&n| n > 0), "{ranks} ranks: {counted:?}");
        }
    }
}

#[test]
fn rows_are_cut_by_how_they_are_read() {
    // Ten rows of eight nonzeros, and ninety of none.
    let row_ptr = (0..=100).map(|i: usize| 8 * i.min(10)).collect();
    let pattern = Pattern::new(100, 8, row_ptr, (0..80).map(|p| p % 8).collect()).unwrap();
    let a = Csr::new(pattern, vec![1.0f64; 80]).unwrap();
    let [messages, memory] = both(2, |comm, _| share_rows(comm, &a).unwrap().rows.range(comm.rank()));
    let ranges = |ranks: Vec<(std::ops::Range<usize>, _)>| ranks.into_iter().map(|(rows, _)| rows).collect::<Vec<_>>();
    assert_eq!((ranges(messages), ranges(memory)), (vec![0..40, 40..100], vec![0..10, 10..100]));
}

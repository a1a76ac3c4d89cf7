//! Messages between ranks that an MPI launcher has started: `mpirun -n 4 ranks collectives`; a rank that fails: `ranks panic`; or the
//! memory that reading takes: `ranks read A.mtx`, which prints the most bytes of a rank at a time, those before reading left out.

use std::path::Path;

use sparsimd::Cpu;
use sparsimd_distributed::{Comm, Error, MpiComm, Partition, read_rows};

/// The most memory that this process has had so far, in bytes.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0) * 1024.0
}

fn main() -> Result<(), Error> {
    let mpi = MpiComm::start()?;
    let comm: &dyn Comm = &mpi;
    let (rank, size) = (comm.rank(), comm.size());
    if std::env::args().nth(1).as_deref() == Some("panic") {
        assert_ne!(rank, 1, "a rank that panics");
        // Waits for the one that is gone.
        comm.least(0)?;
    }
    if let [_, what, file] = &std::env::args().collect::<Vec<_>>()[..]
        && what == "read"
    {
        let cpu = Cpu::builder().threads(1).pin(false).build()?;
        let before = peak();
        let read = read_rows::<f32>(&cpu, comm, Path::new(file), &Partition::Balanced)?;
        let mut most = [peak() - before];
        comm.largest(&mut most)?;
        let mut nnz = [read.local.nnz() as f64];
        comm.sum(&mut nnz)?;
        if rank == 0 {
            println!("{} {}", most[0], nnz[0]);
        }
        return Ok(());
    }
    let mut sum = [rank as f64, 1.0];
    comm.sum(&mut sum)?;
    assert_eq!(sum, [(size * (size - 1) / 2) as f64, size as f64]);
    assert_eq!(comm.least(7 + rank as u64)?, 7);
    // Long messages from everybody to everybody, of other lengths for each pair.
    let sends: Vec<Vec<u32>> = (0..size).map(|to| vec![rank as u32; (1 << 16) * to + rank]).collect();
    for (from, received) in comm.all_to_all(&sends)?.into_iter().enumerate() {
        assert_eq!(received, vec![from as u32; (1 << 16) * rank + from]);
    }
    let evens = comm.split(rank % 2)?;
    let mut count = [1.0];
    (&evens as &dyn Comm).sum(&mut count)?;
    assert_eq!(count[0] as usize, (size + (rank + 1) % 2) / 2);
    if rank == 0 {
        println!("{size} ranks: right");
    }
    Ok(())
}

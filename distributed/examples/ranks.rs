//! Messages between ranks that an MPI launcher has started: `mpirun -n 4 ranks collectives`; or a rank that fails: `ranks panic`.

use sparsimd_distributed::{Comm, Error, MpiComm};

fn main() -> Result<(), Error> {
    let mpi = MpiComm::start()?;
    let comm: &dyn Comm = &mpi;
    let (rank, size) = (comm.rank(), comm.size());
    if std::env::args().nth(1).as_deref() == Some("panic") {
        assert_ne!(rank, 1, "a rank that panics");
        // Waits for the one that is gone.
        comm.least(0)?;
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

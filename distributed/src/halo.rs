//! [`Halo`]: the rows that a rank needs of others, its ghosts, and who needs its own.

use std::ops::Range;

use sparsimd::{Mat, MatRef};

use crate::blocks::Blocks;
use crate::comm::Comm;
use crate::dense::{Element, pack, unpack};
use crate::error::Result;

/// An exchange of rows between their owners and those that name them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Halo {
    /// Rank, and which of this rank's rows it needs, counted from this rank's first.
    sends: Vec<(usize, Vec<u32>)>,
    /// Rank, and which ghosts are its rows.
    receives: Vec<(usize, Range<usize>)>,
}

impl Halo {
    /// For the rows `ghosts` of a matrix that is cut into `blocks`: ascending, none of this rank's own.
    pub fn new(comm: &dyn Comm, blocks: &Blocks, ghosts: &[u32]) -> Result<Self> {
        let ends: Vec<usize> =
            (0..blocks.parts()).map(|r| ghosts.partition_point(|&i| (i as usize) < blocks.range(r).end)).collect();
        let of = |r: usize| if r == 0 { 0..ends[0] } else { ends[r - 1]..ends[r] };
        let wanted: Vec<Vec<u32>> = (0..blocks.parts())
            .map(|r| ghosts[of(r)].iter().map(|&i| i - blocks.range(r).start as u32).collect())
            .collect();
        let sends = comm.all_to_all(&wanted)?;
        let some = |(_, rows): &(usize, Vec<u32>)| !rows.is_empty();
        Ok(Self {
            sends: sends.into_iter().enumerate().filter(some).collect(),
            receives: (0..blocks.parts()).map(|r| (r, of(r))).filter(|(_, rows)| !rows.is_empty()).collect(),
        })
    }

    /// Ghosts.
    pub fn ghosts(&self) -> usize {
        self.receives.iter().map(|(_, rows)| rows.len()).sum()
    }

    /// The ghosts' rows of matrices of which this rank has the rows `own`, into `ghosts`; one message carries those of all. What `work`
    /// returns, which runs meanwhile.
    pub fn fetch<T: Element, R>(
        &self,
        comm: &dyn Comm,
        own: &[MatRef<'_, T>],
        ghosts: &mut [Mat<T>],
        work: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let width: usize = own.iter().map(|a| a.cols()).sum();
        let packed: Vec<_> =
            self.sends.iter().map(|(to, rows)| (*to, pack(own, rows.iter().map(|&i| i as usize)))).collect();
        let sends: Vec<_> = packed.iter().map(|(to, data)| (*to, &data[..])).collect();
        let mut received = vec![T::ZERO; self.ghosts() * width];
        let (mut room, mut rest) = (Vec::new(), &mut received[..]);
        for (from, rows) in &self.receives {
            let (part, others) = std::mem::take(&mut rest).split_at_mut(rows.len() * width);
            room.push((*from, part));
            rest = others;
        }
        let result = comm.exchange_during(&sends, room, work)?;
        unpack(&received, ghosts);
        Ok(result)
    }
}

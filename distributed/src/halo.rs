//! [`Halo`]: the rows that a rank needs of others, its ghosts, and who needs its own.

use std::ops::Range;

use sparsimd::{MatMut, MatRef};

use crate::blocks::Blocks;
use crate::comm::Comm;
use crate::count::Traffic;
use crate::dense::{Element, Packed, add, unpack};
use crate::error::Result;

/// An exchange of rows between their owners and those that name them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Halo {
    /// Rank, and which of this rank's rows it needs, counted from this rank's first.
    sends: Vec<(usize, Vec<u32>)>,
    /// Rank, and which ghosts are its rows: all ghosts, in their order.
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

    /// Rows of this rank that others have as ghosts, once for each of them.
    pub fn given(&self) -> usize {
        self.sends.iter().map(|(_, rows)| rows.len()).sum()
    }

    /// Tells `comm` that rows of `width` elements have come and gone without messages: read where they are.
    pub fn note<T>(&self, comm: &dyn Comm, width: usize) {
        let bytes = |rows: usize| rows * width * size_of::<T>();
        comm.note(Traffic {
            messages_sent: self.sends.len(),
            bytes_sent: bytes(self.given()),
            messages_received: self.receives.len(),
            bytes_received: bytes(self.ghosts()),
            ..Traffic::default()
        });
    }

    /// The rows of matrices that others have as ghosts, of which this rank has the rows `own`, go to them in `outgoing` (as many rows as are
    /// [given](Halo::given)), and its own ghosts come into `ghosts`; one message carries those of all matrices. What `work` returns, which
    /// runs meanwhile.
    pub fn fetch<T: Element, R>(
        &self,
        comm: &dyn Comm,
        own: &[MatRef<'_, T>],
        [outgoing, ghosts]: [&mut Packed<T>; 2],
        work: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        outgoing.fill(own, self.sends.iter().flat_map(|(_, rows)| rows).map(|&i| i as usize));
        let (mut sends, mut rest, width) = (Vec::new(), outgoing.data(), outgoing.width());
        for (to, rows) in &self.sends {
            let (part, others) = rest.split_at(rows.len() * width);
            sends.push((*to, part));
            rest = others;
        }
        let room = parts(ghosts.data_mut(), self.receives.iter().map(|(from, rows)| (*from, rows.len() * width)));
        comm.exchange_during(&sends, room, work)
    }

    /// The reverse of [`Halo::fetch`]: `terms` of the ghosts' rows go to their owners, and come for this rank's rows into `incoming`. What `work`
    /// makes of `own` meanwhile is added to: the other ranks' terms, in the order of ranks.
    pub fn give<T: Element, R>(
        &self,
        comm: &dyn Comm,
        terms: &Packed<T>,
        incoming: &mut Packed<T>,
        own: &mut [MatMut<'_, T>],
        work: impl FnOnce(&mut [MatMut<'_, T>]) -> Result<R>,
    ) -> Result<R> {
        let width = terms.width();
        let of = |rows: &Range<usize>| &terms.data()[rows.start * width..rows.end * width];
        let sends: Vec<_> = self.receives.iter().map(|(to, ghosts)| (*to, of(ghosts))).collect();
        let room = parts(incoming.data_mut(), self.sends.iter().map(|(from, rows)| (*from, rows.len() * width)));
        let result = comm.exchange_during(&sends, room, || work(own))?;
        let rows = self.sends.iter().flat_map(|(_, rows)| rows).map(|&i| i as usize);
        unpack(incoming.data(), rows, own, add);
        Ok(result)
    }
}

/// Parts of `data` one after the other, of the lengths that ranks have.
fn parts<T>(data: &mut [T], lens: impl Iterator<Item = (usize, usize)>) -> Vec<(usize, &mut [T])> {
    let (mut all, mut rest) = (Vec::new(), data);
    for (rank, len) in lens {
        let (part, others) = std::mem::take(&mut rest).split_at_mut(len);
        all.push((rank, part));
        rest = others;
    }
    all
}

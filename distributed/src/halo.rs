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

    /// Rows of this rank that others have as ghosts, once for each of them.
    pub fn given(&self) -> usize {
        self.sends.iter().map(|(_, rows)| rows.len()).sum()
    }

    /// The reverse of [`Halo::fetch`]: `product` has terms of this rank's own rows, and after them of its ghosts. The latter go to their
    /// owners; `own` becomes the sum of its rows' terms, in the order of ranks, this one's own first.
    pub fn give<T: Element>(&self, comm: &dyn Comm, product: MatRef<'_, T>, own: &mut Mat<T>) -> Result<()> {
        let (rows, n) = (own.rows(), own.cols());
        let packed: Vec<_> = self
            .receives
            .iter()
            .map(|(to, ghosts)| (*to, pack(&[product], rows + ghosts.start..rows + ghosts.end)))
            .collect();
        let sends: Vec<_> = packed.iter().map(|(to, data)| (*to, &data[..])).collect();
        let mut terms: Vec<Vec<T>> = self.sends.iter().map(|(_, rows)| vec![T::ZERO; rows.len() * n]).collect();
        let room = self.sends.iter().zip(&mut terms).map(|((from, _), data)| (*from, &mut data[..]));
        comm.exchange_during(&sends, room.collect(), || Ok(()))?;
        own.iter_rows_mut().zip(product.iter_rows()).for_each(|(to, from)| to.copy_from_slice(from));
        for ((_, rows), terms) in self.sends.iter().zip(&terms) {
            for (&i, term) in rows.iter().zip(terms.chunks_exact(n)) {
                own.row_mut(i as usize).iter_mut().zip(term).for_each(|(x, &y)| *x += y);
            }
        }
        Ok(())
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

//! [`Comm`]: what ranks need of a transport, and the collective operations that are made of it.
//!
//! A transport carries messages between two ranks and nothing else. The collectives are written here once, so that they add in
//! one fixed order and can be counted, whatever carries their messages.

use bytemuck::{Pod, Zeroable};

use crate::count::Traffic;
use crate::error::{Error, Result};

/// A message to rank `.0`.
pub type Sent<'a> = (usize, &'a [u8]);
/// Room for a message from rank `.0`, of exactly its length.
pub type Received<'a> = (usize, &'a mut [u8]);

/// One of many ranks that exchange messages.
///
/// All ranks call the same operations in the same order. Messages from one rank to another arrive in the order in which they
/// were sent. An operation returns when this rank's part in it is done.
pub trait Comm {
    /// This rank's number, from 0 on.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Sends all of `sends` and receives all of `receives`; `work` runs between their start and their end. No message is empty,
    /// and none is to this rank itself.
    ///
    /// # Errors
    /// [`Error::Message`] when a message does not arrive or has another length.
    fn exchange(&self, sends: &[Sent<'_>], receives: &mut [Received<'_>], work: &mut dyn FnMut()) -> Result<()>;

    /// The least of all ranks' `x`: what agreements are made of. It is not counted as payload.
    ///
    /// # Errors
    /// As [`Comm::exchange`].
    fn least(&self, x: u64) -> Result<u64> {
        least_of(self, x)
    }

    /// Whether all ranks are on one machine and may have memory in common, which then carries rows in place of messages. The same on all
    /// ranks.
    fn one_machine(&self) -> bool {
        false
    }

    /// Learns of messages that memory in common has carried.
    fn note(&self, _traffic: Traffic) {}
}

impl dyn Comm + '_ {
    /// `work`'s result or error, after `sends` and `receives` of elements.
    ///
    /// # Errors
    /// As [`Comm::exchange`], and `work`'s.
    pub fn exchange_during<T: Pod, R>(
        &self,
        sends: &[(usize, &[T])],
        receives: Vec<(usize, &mut [T])>,
        work: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let sends: Vec<Sent<'_>> =
            sends.iter().filter(|(_, data)| !data.is_empty()).map(|&(to, data)| (to, bytes(data))).collect();
        let mut receives: Vec<Received<'_>> = receives
            .into_iter()
            .filter(|(_, room)| !room.is_empty())
            .map(|(from, room)| (from, bytemuck::cast_slice_mut(room)))
            .collect();
        let (mut work, mut result) = (Some(work), None);
        self.exchange(&sends, &mut receives, &mut || result = work.take().map(|work| work()))?;
        match (result, work) {
            (Some(result), _) => result,
            (None, Some(work)) => work(),
            (None, None) => {
                Err(Error::Message { rank: self.rank(), detail: "the work has ended in a panic".to_owned() })
            }
        }
    }

    /// What each rank sent to this one; `sends[r]` goes to rank r. Lengths are exchanged first.
    ///
    /// # Errors
    /// As [`Comm::exchange`].
    pub fn all_to_all<T: Pod>(&self, sends: &[Vec<T>]) -> Result<Vec<Vec<T>>> {
        let me = self.rank();
        let others = || (0..self.size()).filter(move |&r| r != me);
        let lens: Vec<[u64; 1]> = sends.iter().map(|data| [data.len() as u64]).collect();
        let mut counts = vec![[0u64; 1]; self.size()];
        counts[me] = lens[me];
        let sent: Vec<_> = others().map(|r| (r, &lens[r][..])).collect();
        let room = counts.iter_mut().enumerate().filter(|(r, _)| *r != me).map(|(r, count)| (r, &mut count[..]));
        self.exchange_during(&sent, room.collect(), || Ok(()))?;
        let mut received: Vec<Vec<T>> = counts.iter().map(|&[n]| vec![T::zeroed(); n as usize]).collect();
        received[me].copy_from_slice(&sends[me]);
        let sent: Vec<_> = others().map(|r| (r, &sends[r][..])).collect();
        let room = received.iter_mut().enumerate().filter(|(r, _)| *r != me).map(|(r, data)| (r, &mut data[..]));
        self.exchange_during(&sent, room.collect(), || Ok(()))?;
        Ok(received)
    }

    /// The `own` elements of all ranks in the order of ranks; rank r has `lens[r]`.
    ///
    /// # Errors
    /// As [`Comm::exchange`].
    pub fn all_gather<T: Pod>(&self, own: &[T], lens: &[usize]) -> Result<Vec<T>> {
        let me = self.rank();
        let mut all = vec![T::zeroed(); lens.iter().sum()];
        let sends: Vec<_> = (0..self.size()).filter(|&r| r != me).map(|r| (r, own)).collect();
        let (mut room, mut rest) = (Vec::new(), &mut all[..]);
        for (r, &len) in lens.iter().enumerate() {
            let (part, others) = std::mem::take(&mut rest).split_at_mut(len);
            rest = others;
            match r == me {
                true => part.copy_from_slice(own),
                false => room.push((r, part)),
            }
        }
        self.exchange_during(&sends, room, || Ok(()))?;
        Ok(all)
    }

    /// `x` becomes the sum over all ranks, of the same bits on each: additions are those of a tree that depends on the number of
    /// ranks alone.
    ///
    /// # Errors
    /// As [`Comm::exchange`].
    pub fn sum(&self, x: &mut [f64]) -> Result<()> {
        combine(self, x, |a, b| *a += b)
    }

    /// The largest of all ranks' `x`, element by element.
    ///
    /// # Errors
    /// As [`Comm::exchange`].
    pub fn largest(&self, x: &mut [f64]) -> Result<()> {
        combine(self, x, |a, b| *a = b.max(*a))
    }

    /// `result` where all ranks succeeded; else, on every rank, the error of the lowest one that failed. What an earlier agreement has returned
    /// is that rank's still.
    ///
    /// # Errors
    /// [`Error::Rank`]; with one rank, its own error.
    pub fn agree<R>(&self, result: Result<R>) -> Result<R> {
        let (me, size) = (self.rank(), self.size());
        if size == 1 {
            return result;
        }
        let own = match &result {
            Ok(_) => size,
            Err(Error::Rank { rank, .. }) if *rank < size => *rank,
            Err(_) => me,
        };
        let failed = self.least(own as u64)? as usize;
        if failed == size {
            return result;
        }
        let detail = match result {
            Err(Error::Rank { rank, detail }) if rank == failed => detail,
            Err(error) if me == failed => error.to_string(),
            _ => String::new(),
        };
        // Only the failed rank's text has a length; one exchange for it, one for the text.
        let text: Vec<Vec<u8>> =
            (0..size).map(|_| if me == failed { detail.clone().into_bytes() } else { Vec::new() }).collect();
        let texts = self.all_to_all(&text)?;
        Err(Error::Rank { rank: failed, detail: String::from_utf8_lossy(&texts[failed]).into_owned() })
    }

    /// The ranks that gave the same `color` as this one, in their order, as ranks of their own.
    ///
    /// # Errors
    /// As [`Comm::exchange`].
    pub fn split(&self, color: usize) -> Result<Group<'_>> {
        let colors = self.all_gather(&[color as u64], &vec![1; self.size()])?;
        let ranks: Vec<usize> = (0..self.size()).filter(|&r| colors[r] == color as u64).collect();
        Ok(Group::of(self, ranks))
    }
}

/// The bytes of `data`.
fn bytes<T: Pod>(data: &[T]) -> &[u8] {
    bytemuck::cast_slice(data)
}

/// The least of all ranks' `x`, by messages.
fn least_of(comm: &(impl Comm + ?Sized), x: u64) -> Result<u64> {
    let mut least = [x];
    combine(comm, &mut least, |a, b| *a = b.min(*a))?;
    Ok(least[0])
}

/// Combines `x` over all ranks with the commutative `f`, by recursive doubling: the ranks past the largest power of two hand
/// their numbers to those below and get the result back.
fn combine<T: Pod + Zeroable>(comm: &(impl Comm + ?Sized), x: &mut [T], f: impl Fn(&mut T, T)) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let half = 1 << size.max(1).ilog2();
    let mut other = vec![T::zeroed(); x.len()];
    if x.is_empty() || size < 2 {
        return Ok(());
    }
    if rank >= half {
        comm.exchange(&[(rank - half, bytes(x))], &mut [], &mut || ())?;
        return comm.exchange(&[], &mut [(rank - half, bytemuck::cast_slice_mut(x))], &mut || ());
    }
    let paired = rank + half < size;
    let mut take = |from: usize, x: &mut [T], send: bool| -> Result<()> {
        let sends = if send { &[(from, bytes(x))][..] } else { &[] };
        comm.exchange(sends, &mut [(from, bytemuck::cast_slice_mut(&mut other))], &mut || ())?;
        x.iter_mut().zip(&other).for_each(|(x, &other)| f(x, other));
        Ok(())
    };
    if paired {
        take(rank + half, x, false)?;
    }
    let mut bit = 1;
    while bit < half {
        take(rank ^ bit, x, true)?;
        bit *= 2;
    }
    if paired {
        comm.exchange(&[(rank + half, bytes(x))], &mut [], &mut || ())?;
    }
    Ok(())
}

/// Some ranks of a [`Comm`] as ranks of their own. Its messages are its parent's.
pub struct Group<'a> {
    parent: &'a (dyn Comm + 'a),
    ranks: Vec<usize>,
    rank: usize,
}

impl<'a> Group<'a> {
    /// Of `ranks`, which every one of them names in the same order.
    pub(crate) fn of(parent: &'a (dyn Comm + 'a), ranks: Vec<usize>) -> Self {
        let rank = ranks.iter().position(|&r| r == parent.rank()).unwrap_or(0);
        Self { parent, ranks, rank }
    }
}

impl Comm for Group<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.ranks.len()
    }

    fn exchange(&self, sends: &[Sent<'_>], receives: &mut [Received<'_>], work: &mut dyn FnMut()) -> Result<()> {
        let sends: Vec<_> = sends.iter().map(|&(to, data)| (self.ranks[to], data)).collect();
        let mut receives: Vec<_> = receives.iter_mut().map(|(from, room)| (self.ranks[*from], &mut **room)).collect();
        self.parent.exchange(&sends, &mut receives, work)
    }

    fn least(&self, x: u64) -> Result<u64> {
        match self.size() == self.parent.size() {
            // Of the same ranks, in another order.
            true => self.parent.least(x),
            false => least_of(self, x),
        }
    }

    fn one_machine(&self) -> bool {
        self.parent.one_machine()
    }

    fn note(&self, traffic: Traffic) {
        self.parent.note(traffic);
    }
}

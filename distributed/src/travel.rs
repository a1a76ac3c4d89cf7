//! How rows of dense matrices come to the parts of a [`DistCsr`], and results to the ranks that have their rows.

use std::sync::PoisonError;

use sparsimd::{Cpu, Mat, MatMut, MatRef};

use crate::comm::{Comm, Group};
use crate::dense::{Common, Element, Packed, Rows, add, pack, unpack};
use crate::error::Result;
use crate::matrix::{DistCsr, Part, fiber, ring, ring_order};

impl<T: Element> DistCsr<T> {
    /// Zeros for the rows of A here.
    pub(crate) fn zeros(&self, cols: usize) -> Result<Mat<T>> {
        Ok(Mat::zeros(self.here.len(), cols)?)
    }

    /// Likewise, where they are more than this rank's own.
    pub(crate) fn output(&self, cols: usize) -> Result<Option<Mat<T>>> {
        (self.algorithm.replication() > 1).then(|| self.zeros(cols)).transpose()
    }

    /// Room for rows that travel; what an earlier run has left, where it is enough.
    fn room(&self, rows: usize, widths: &[usize]) -> Result<Packed<T>> {
        let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        match rooms.iter().position(|room| room.holds(rows, widths)) {
            Some(k) => {
                let mut room = rooms.swap_remove(k);
                room.reshape(rows, widths);
                Ok(room)
            }
            None => Packed::zeros(rows, widths),
        }
    }

    /// Keeps rooms for the next run, and no others.
    fn keep<const K: usize>(&self, rooms: [Packed<T>; K]) {
        *self.rooms.lock().unwrap_or_else(PoisonError::into_inner) = rooms.into();
    }

    /// Calls `compute` once, with all nonzeros here and the whole of `dense`, if all ranks have that in common and the algorithm is the aware
    /// one, and if the operands, as they were `checked`, are right. Where it is not in common, what was checked comes back. Rows of `width`
    /// elements would have travelled.
    pub(crate) fn in_place(
        &self,
        cpu: &Cpu,
        comm: &dyn Comm,
        (dense, width): (&[Rows<'_, T>], usize),
        checked: Result<()>,
        compute: impl FnOnce(&Part<T>, &[MatRef<'_, T>]) -> Result<()>,
    ) -> Result<Option<Result<()>>> {
        let Some(halo) = &self.halo else { return Ok(Some(checked)) };
        let common: Vec<_> = dense.iter().map(|rows| rows.common).collect();
        let mut checked = Some(checked);
        let done = Common::read(comm, &common, |dense| {
            checked.take().unwrap_or(Ok(()))?;
            compute(self.whole(cpu)?, dense)
        })?;
        if done.is_some() {
            halo.note::<T>(comm, width);
        }
        Ok(checked)
    }

    /// Calls `compute` for each part with the rows of `dense` that it names. Whatever it returns, all messages are exchanged.
    pub(crate) fn each_part(
        &self,
        comm: &dyn Comm,
        dense: &[MatRef<'_, T>],
        mut compute: impl FnMut(usize, &[MatRef<'_, T>]) -> Result<()>,
    ) -> Result<()> {
        let widths: Vec<usize> = dense.iter().map(MatRef::cols).collect();
        if let Some(halo) = &self.halo {
            let rooms = || Ok((self.room(halo.given(), &widths)?, self.room(halo.ghosts(), &widths)?));
            let (mut outgoing, mut ghosts) = comm.agree(rooms())?;
            let done = halo.fetch(comm, dense, [&mut outgoing, &mut ghosts], || Ok(compute(0, dense)))?;
            let done = done.and_then(|()| compute(1, &ghosts.views()?));
            self.keep([outgoing, ghosts]);
            return done;
        }
        let order = ring_order(comm.size(), self.algorithm.replication(), self.rank);
        let (ring, before, after) = self.neighbours(comm);
        let (mut passing, mut next) = comm.agree(self.two_blocks(&order, &widths))?;
        passing.reshape(dense[0].rows(), &widths);
        passing.fill(dense, 0..dense[0].rows());
        let mut done = Ok(());
        for step in 0..order.len() {
            let views = match step {
                0 => dense.to_vec(),
                _ => passing.views()?,
            };
            let failed = done.is_err();
            let mut work = || if failed { Ok(()) } else { compute(step, &views) };
            let Some(&block) = order.get(step + 1) else {
                done = done.and(work());
                break;
            };
            next.reshape(self.cols.range(block).len(), &widths);
            let (sent, room) = (passing.data(), next.data_mut());
            let computed =
                (&ring as &dyn Comm).exchange_during(&[(before, sent)], vec![(after, room)], || Ok(work()))?;
            done = done.and(computed);
            std::mem::swap(&mut passing, &mut next);
        }
        self.keep([passing, next]);
        done
    }

    /// The reverse of [`DistCsr::each_part`]: `compute` makes each part's terms of the rows that it names, and these travel to who has them:
    /// `own` becomes their sum, in an order that depends on the blocks alone.
    pub(crate) fn each_part_reversed(
        &self,
        comm: &dyn Comm,
        own: &mut [MatMut<'_, T>],
        mut compute: impl FnMut(usize, &mut [MatMut<'_, T>]) -> Result<()>,
    ) -> Result<()> {
        let widths: Vec<usize> = own.iter().map(MatMut::cols).collect();
        if let Some(halo) = &self.halo {
            let rooms = || Ok((self.room(halo.given(), &widths)?, self.room(halo.ghosts(), &widths)?));
            let (mut incoming, mut terms) = comm.agree(rooms())?;
            let zeros = |rows: usize| widths.iter().map(|&n| Ok(Mat::zeros(rows, n)?)).collect::<Result<Vec<_>>>();
            let mut far = comm.agree(zeros(halo.ghosts()))?;
            let mut done = compute(1, &mut views(&mut far));
            terms.fill(&far.iter().map(Mat::as_ref).collect::<Vec<_>>(), 0..halo.ghosts());
            drop(far);
            let failed = done.is_err();
            let near = |own: &mut [MatMut<'_, T>]| Ok(if failed { Ok(()) } else { compute(0, own) });
            let computed = halo.give(comm, &terms, &mut incoming, own, near)?;
            done = done.and(computed);
            self.keep([incoming, terms]);
            return done;
        }
        // The block before the own one comes last, after all others: sums of a block end at its owner.
        let order = ring_order(comm.size(), self.algorithm.replication(), self.rank);
        let (ring, before, after) = self.neighbours(comm);
        let longest = order.iter().map(|&block| self.cols.range(block).len()).max().unwrap_or(0);
        let terms = widths.iter().map(|&n| Ok(Mat::zeros(longest, n)?)).collect::<Result<Vec<_>>>();
        let mut terms = comm.agree(terms)?;
        let (mut passing, mut next) = comm.agree(self.two_blocks(&order, &widths))?;
        let mut done = Ok(());
        for step in 0..order.len() {
            let part = (step + 1) % order.len();
            let rows = self.cols.range(order[part]).len();
            next.reshape(rows, &widths);
            let failed = done.is_err();
            let mut work = || {
                let mut views: Vec<MatMut<'_, T>> = Vec::new();
                for a in &mut terms {
                    let (cols, stride) = (a.cols(), a.as_ref().stride());
                    views.push(MatMut::new(a.as_mut().into_data(), rows, cols, stride)?);
                }
                if failed { Ok(()) } else { compute(part, &mut views) }
            };
            let computed = match step {
                0 => {
                    next.data_mut().fill(T::ZERO);
                    work()
                }
                _ => {
                    let (sent, room) = (passing.data(), next.data_mut());
                    (&ring as &dyn Comm).exchange_during(&[(before, sent)], vec![(after, room)], || Ok(work()))?
                }
            };
            done = done.and(computed);
            next.add_rows(&terms);
            std::mem::swap(&mut passing, &mut next);
        }
        unpack(passing.data(), 0..own[0].rows(), own, |to, from| to.copy_from_slice(from));
        self.keep([passing, next]);
        done
    }

    /// The ring of this rank, and in it the ranks that it sends to and receives from.
    fn neighbours<'a>(&self, comm: &'a (dyn Comm + 'a)) -> (Group<'a>, usize, usize) {
        let ring = ring(comm, self.algorithm.replication());
        let (place, length) = (ring.rank(), ring.size());
        (ring, (place + length - 1) % length, (place + 1) % length)
    }

    /// Room for the longest of the blocks `order`, twice.
    fn two_blocks(&self, order: &[usize], widths: &[usize]) -> Result<(Packed<T>, Packed<T>)> {
        let longest = order.iter().map(|&block| self.cols.range(block).len()).max().unwrap_or(0);
        Ok((self.room(longest, widths)?, self.room(longest, widths)?))
    }

    /// The rows of C for the rows of A here; none where they are this rank's own.
    pub(crate) fn gather(&self, comm: &dyn Comm, own: MatRef<'_, T>) -> Result<Option<Mat<T>>> {
        let replication = self.algorithm.replication();
        if replication == 1 {
            return Ok(None);
        }
        let fiber = fiber(comm, replication);
        let first = self.rank / replication * replication;
        let lens: Vec<_> = (0..replication).map(|l| self.rows.range(first + l).len() * own.cols()).collect();
        let mut all = comm.agree(self.zeros(own.cols()))?;
        let packed = (&fiber as &dyn Comm).all_gather(&pack(own, 0..own.rows()), &lens)?;
        unpack(&packed, 0..self.here.len(), &mut [all.as_mut()], |to, from| to.copy_from_slice(from));
        Ok(Some(all))
    }

    /// `own` becomes the sum of the fiber's `shared` in this rank's rows; where there is none, it is the result already.
    pub(crate) fn reduce(&self, comm: &dyn Comm, shared: Option<Mat<T>>, own: MatMut<'_, T>) -> Result<()> {
        let Some(out) = shared else { return Ok(()) };
        let replication = self.algorithm.replication();
        let fiber = fiber(comm, replication);
        let (fiber, first): (&dyn Comm, usize) = (&fiber, self.rank - fiber.rank());
        let rows = |l: usize| {
            let range = self.rows.range(first + l);
            range.start - self.here.start..range.end - self.here.start
        };
        let others = || (0..replication).filter(|&l| l != fiber.rank());
        let packed: Vec<_> = others().map(|l| (l, pack(out.as_ref(), rows(l)))).collect();
        let sends: Vec<_> = packed.iter().map(|(l, data)| (*l, &data[..])).collect();
        let mut received = vec![vec![T::ZERO; own.rows() * own.cols()]; replication];
        received[fiber.rank()] = pack(out.as_ref(), rows(fiber.rank()));
        let room = received.iter_mut().enumerate().filter(|(l, _)| *l != fiber.rank());
        fiber.exchange_during(&sends, room.map(|(l, data)| (l, &mut data[..])).collect(), || Ok(()))?;
        let (rows, mut own) = (own.rows(), [own]);
        unpack(&received[0], 0..rows, &mut own, |to, from| to.copy_from_slice(from));
        received[1..].iter().for_each(|terms| unpack(terms, 0..rows, &mut own, add));
        Ok(())
    }

    /// Hands the values of nonzeros that this rank gave, in their order, to the ranks of the fiber that have the nonzeros: for each part its own.
    pub(crate) fn hand_out(&self, comm: &dyn Comm, values: &[T]) -> Result<Vec<Vec<T>>> {
        let fiber = fiber(comm, self.algorithm.replication());
        let sent: Vec<Vec<T>> = self.gone.iter().map(|places| places.iter().map(|&p| values[p]).collect()).collect();
        let came = (&fiber as &dyn Comm).all_to_all(&sent)?.concat();
        Ok(self.parts.iter().map(|part| part.origin.iter().map(|&p| came[p]).collect()).collect())
    }

    /// Hands the values of nonzeros that came from other ranks back to them, into the order in which this rank gave its own.
    pub(crate) fn give_back(&self, comm: &dyn Comm, came: &[T], values: &mut [T]) -> Result<()> {
        let fiber = fiber(comm, self.algorithm.replication());
        let fiber: &dyn Comm = &fiber;
        let (mut rest, mut sends) = (came, Vec::new());
        for (l, &count) in self.came.iter().enumerate() {
            let (part, others) = rest.split_at(count);
            sends.push((l, part));
            rest = others;
        }
        let mut received: Vec<Vec<T>> = self.gone.iter().map(|places| vec![T::ZERO; places.len()]).collect();
        let (_, mine) = sends.remove(fiber.rank());
        received[fiber.rank()].copy_from_slice(mine);
        let room = received.iter_mut().enumerate().filter(|(l, _)| *l != fiber.rank());
        fiber.exchange_during(&sends, room.map(|(l, data)| (l, &mut data[..])).collect(), || Ok(()))?;
        for (places, data) in self.gone.iter().zip(&received) {
            places.iter().zip(data).for_each(|(&p, &x)| values[p] = x);
        }
        Ok(())
    }
}

/// All of each of `matrices`.
fn views<T: Element>(matrices: &mut [Mat<T>]) -> Vec<MatMut<'_, T>> {
    matrices.iter_mut().map(Mat::as_mut).collect()
}

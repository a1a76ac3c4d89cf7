//! Collective operations on ranks that are threads: results, errors and ends.

use sparsimd_distributed::{Comm, CountComm, Error, ThreadComm};

/// Whether all of `results` are equal.
fn same<R: PartialEq + std::fmt::Debug>(results: &[R]) -> bool {
    results.iter().all(|r| *r == results[0])
}

#[test]
fn sums_have_the_same_bits_on_all_ranks() {
    for size in 1..=9 {
        let numbers = |rank: usize| [0.1 + rank as f64, -1e16 / (rank + 1) as f64, 1.0];
        let sums = ThreadComm::run(size, |comm: &dyn Comm| {
            let mut x = numbers(comm.rank());
            comm.sum(&mut x).unwrap();
            x.map(f64::to_bits)
        });
        assert!(same(&sums), "{sums:?}");
        let exact: f64 = (0..size).map(|rank| numbers(rank)[0]).sum();
        assert!((f64::from_bits(sums[0][0]) - exact).abs() < 1e-12);
        assert_eq!(f64::from_bits(sums[0][2]), size as f64);
        let ends = ThreadComm::run(size, |comm: &dyn Comm| {
            let mut x = [comm.rank() as f64];
            comm.largest(&mut x).unwrap();
            (x[0], comm.least(10 + comm.rank() as u64).unwrap())
        });
        assert!(same(&ends));
        assert_eq!(ends[0], ((size - 1) as f64, 10));
    }
}

#[test]
fn everybody_gets_what_the_others_gave() {
    for size in 1..=9usize {
        let done = ThreadComm::run(size, |comm: &dyn Comm| {
            // Rank r has r elements; rank 0 has none.
            let own = vec![comm.rank() as u32; comm.rank()];
            let all = comm.all_gather(&own, &(0..size).collect::<Vec<_>>()).unwrap();
            assert!(all.into_iter().eq((0..size).flat_map(|r| vec![r as u32; r])));
            let sends: Vec<Vec<u64>> = (0..size).map(|to| vec![(comm.rank() * 100 + to) as u64; to % 3]).collect();
            let received = comm.all_to_all(&sends).unwrap();
            for (from, got) in received.iter().enumerate() {
                assert_eq!(*got, vec![(from * 100 + comm.rank()) as u64; comm.rank() % 3]);
            }
        });
        assert_eq!(done.len(), size);
    }
}

#[test]
fn groups_are_ranks_of_their_own() {
    ThreadComm::run(7, |comm: &dyn Comm| {
        let group = comm.split(comm.rank() % 3).unwrap();
        assert_eq!((group.rank(), group.size()), (comm.rank() / 3, if comm.rank().is_multiple_of(3) { 3 } else { 2 }));
        let mut x = [comm.rank() as f64];
        (&group as &dyn Comm).sum(&mut x).unwrap();
        assert_eq!(x[0], [9.0, 5.0, 7.0][comm.rank() % 3]);
    });
}

#[test]
fn all_ranks_return_the_error_of_the_lowest_that_failed() {
    for size in 1..=5 {
        for failing in [vec![], vec![size - 1], (0..size).collect(), (size / 2..size).collect()] {
            let results = ThreadComm::run(size, |comm: &dyn Comm| {
                let fails = failing.contains(&comm.rank());
                let detail = format!("no {}", comm.rank());
                let own = if fails { Err(Error::Message { rank: 77, detail }) } else { Ok(comm.rank()) };
                // What has been agreed on once stays as it is.
                comm.agree(comm.agree(own)).map_err(|e| e.to_string())
            });
            for (rank, result) in results.into_iter().enumerate() {
                let wanted = match failing.first() {
                    None => Ok(rank),
                    Some(0) if size == 1 => Err("message from rank 77: no 0".to_owned()),
                    Some(r) => Err(format!("rank {r}: message from rank 77: no {r}")),
                };
                assert_eq!(result, wanted);
            }
        }
    }
}

#[test]
fn a_rank_that_ends_is_an_error_of_the_others() {
    let results = ThreadComm::run(
        4,
        |comm: &dyn Comm| {
            if comm.rank() == 2 { Ok(0) } else { comm.least(1).map_err(|e| e.to_string()) }
        },
    );
    let errors: Vec<_> = results.iter().filter_map(|r| r.as_ref().err()).collect();
    assert!(!errors.is_empty() && errors.iter().all(|e| e.ends_with("the rank has ended")), "{results:?}");
}

#[test]
fn messages_of_another_length_are_refused() {
    let results = ThreadComm::run(2, |comm: &dyn Comm| {
        let (other, mut room) = (1 - comm.rank(), [0u8; 4]);
        let sent = &[7u8; 3][..];
        comm.exchange(&[(other, sent)], &mut [(other, &mut room[..])], &mut || ()).map_err(|e| e.to_string())
    });
    assert_eq!(results[0], Err("message from rank 1: 3 bytes instead of 4".to_owned()));
}

#[test]
fn traffic_is_counted_and_agreements_are_not() {
    let counts = ThreadComm::run(3, |comm: &dyn Comm| {
        let counted = CountComm::new(comm);
        let comm: &dyn Comm = &counted;
        comm.all_gather(&[1.0f64; 4], &[4, 4, 4]).unwrap();
        comm.agree(Ok(())).unwrap();
        counted.take()
    });
    for traffic in counts {
        assert_eq!((traffic.messages_sent, traffic.messages_received), (2, 2));
        assert_eq!((traffic.bytes_sent, traffic.bytes_received), (64, 64));
    }
}

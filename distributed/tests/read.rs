//! Files that several ranks read: the same matrix and tensor as one reads, and errors of all.

use std::path::Path;

use sparsimd::io::{ReadOptions, read_matrix, read_tns, write_tensor};
use sparsimd::{CooTensor, Cpu, Csr};
#[cfg(feature = "metis")]
use sparsimd_distributed::{Algorithm, Cluster, DistPlan, Operation, RowsOf};
use sparsimd_distributed::{Comm, Partition, ThreadComm, read_entries, read_rows, share_rows};

fn cpu() -> Cpu {
    Cpu::builder().threads(1).pin(false).build().unwrap()
}

#[test]
fn rows_are_those_of_the_matrix() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/pyfr_p6hex_m460.mtx");
    let whole: Csr<f64> = read_matrix(&path, ReadOptions::default()).unwrap().into_csr().unwrap();
    for ranks in 1..=9 {
        let parts = ThreadComm::run(ranks, |comm: &dyn Comm| {
            let read = read_rows::<f64>(&cpu(), comm, &path, &Partition::Balanced).unwrap();
            let shared = share_rows(comm, &whole).unwrap();
            assert_eq!((&read.rows, &read.cols, &read.local), (&shared.rows, &shared.cols, &shared.local));
            let rows = read.rows.range(comm.rank());
            assert_eq!(read.local, whole.as_ref().row_range(rows).unwrap().to_csr());
            read.local.nnz()
        });
        assert_eq!(parts.iter().sum::<usize>(), whole.nnz());
        let most = parts.iter().max().unwrap();
        assert!(*most <= 2 * whole.nnz() / ranks, "{ranks} ranks: {parts:?}");
    }
}

#[test]
fn entries_are_those_of_the_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tns");
    let text: String = (1..200).map(|i| format!("{} {i} {} 0.{i}\n", i % 5 + 1, i % 3 + 1)).collect();
    std::fs::write(&path, text).unwrap();
    let whole: CooTensor<f32> = read_tns(&path, false, ReadOptions::default()).unwrap();
    for ranks in [1, 2, 5, 9] {
        let parts = ThreadComm::run(ranks, |comm: &dyn Comm| read_entries::<f32>(&cpu(), comm, &path, false).unwrap());
        assert!(parts.iter().all(|(dims, _)| dims == whole.dims()));
        let values: Vec<f32> = parts.iter().flat_map(|(_, part)| part.values().to_vec()).collect();
        assert_eq!(values, whole.values());
    }
}

#[test]
fn ranges_of_a_binary_file_are_read_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tnsb");
    // Three chunks of coordinates and a bit.
    let nnz = 3 * 65536 + 17;
    let coords = vec![(0..nnz as u32).collect(), (0..nnz as u32).map(|p| p % 1000).collect()];
    let values: Vec<f64> = (0..nnz).map(|p| p as f64 / 8.0).collect();
    let whole = CooTensor::new(vec![nnz, 1000], coords, values).unwrap();
    let read = |ranks: usize| {
        ThreadComm::run(ranks, |comm: &dyn Comm| {
            read_entries::<f32>(&cpu(), comm, &path, false).map_err(|error| error.to_string())
        })
    };
    write_tensor(&path, &whole).unwrap();
    for ranks in [1, 2, 3, 9] {
        let parts: Vec<_> = read(ranks).into_iter().map(Result::unwrap).collect();
        assert!(parts.iter().all(|(dims, _)| dims == whole.dims()));
        for mode in 0..2 {
            let coords: Vec<u32> = parts.iter().flat_map(|(_, part)| part.coords(mode).to_vec()).collect();
            assert_eq!(coords, whole.coords(mode), "{ranks} ranks");
        }
        assert!(parts.iter().flat_map(|(_, part)| part.values()).zip(whole.values()).all(|(&x, &y)| f64::from(x) == y));
    }
    let good = std::fs::read(&path).unwrap();
    // A coordinate of the second chunk of mode 0, a value of the last rank, a checksum, the end.
    let values_start = good.len() - 8 * nnz - 8 * (4 + 4 + 7 + 1);
    let cases = [
        (192 + 4 * 65536 + 5, "rank 1: ", "the checksum of bytes 262144 to 524288 of section 0 is wrong"),
        (values_start + 8 * nnz - 100, "rank 3: ", "of section 2 is wrong"),
        (good.len() - 8 * 16 + 4, "rank 0: ", "the checksum of bytes 0 to 262144 of section 0 is wrong"),
    ];
    for (at, rank, words) in cases {
        let mut bytes = good.clone();
        bytes[at] ^= 4;
        std::fs::write(&path, bytes).unwrap();
        for error in read(4) {
            let error = error.unwrap_err();
            assert!(error.starts_with(rank) && error.contains(words), "{error}");
        }
    }
    std::fs::write(&path, &good[..good.len() - 1]).unwrap();
    assert!(read(2)[0].as_ref().unwrap_err().contains("bytes where the header asks for"));
}

#[test]
fn a_partition_renumbers_rows_and_columns() {
    let dir = tempfile::tempdir().unwrap();
    let [matrix, parts] = ["a.mtx", "a.part"].map(|name| dir.path().join(name));
    let n = 30usize;
    // A cycle that visits the rows in an order of its own.
    let at = |k: usize| k * 7 % n;
    let value = |i: usize, j: usize| (i * n + j) as f64;
    let lines: String = (0..n)
        .map(|k| {
            let (i, j) = (at(k), at((k + 1) % n));
            format!("{} {} {}\n", i + 1, j + 1, value(i, j))
        })
        .collect();
    let head = "%%MatrixMarket matrix coordinate real general\n";
    std::fs::write(&matrix, format!("{head}{n} {n} {n}\n{lines}")).unwrap();
    for ranks in [1, 3, 4] {
        let rank_of = |i: usize| (0..n).find(|&k| at(k) == i).unwrap() * ranks / n;
        std::fs::write(&parts, (0..n).map(|i| format!("{}\n", rank_of(i))).collect::<String>()).unwrap();
        let read = ThreadComm::run(ranks, |comm: &dyn Comm| {
            read_rows::<f64>(&cpu(), comm, &matrix, &Partition::File(&parts)).unwrap()
        });
        let old: Vec<usize> = read.iter().flat_map(|r| r.numbers.clone().unwrap()).map(|i| i as usize).collect();
        for (rank, part) in read.iter().enumerate() {
            assert_eq!(part.rows, part.cols);
            let own = part.rows.range(rank);
            assert!(own.clone().all(|new| rank_of(old[new]) == rank));
            let mut others = 0;
            for (k, new) in own.clone().enumerate() {
                for (&j, &x) in part.local.pattern().row(k).iter().zip(&part.local.values()[k..]) {
                    assert_eq!(x, value(old[new], old[j as usize]));
                    others += usize::from(!own.contains(&(j as usize)));
                }
            }
            // Only the end of its part of the cycle leads to another rank.
            assert_eq!(others, usize::from(ranks > 1));
        }
    }
    let refused = |partition: &str, rows: usize| {
        std::fs::write(&parts, partition).unwrap();
        std::fs::write(&matrix, format!("{head}{rows} {n} 1\n1 1 1\n")).unwrap();
        let errors = ThreadComm::run(3, |comm: &dyn Comm| {
            let read = read_rows::<f64>(&cpu(), comm, &matrix, &Partition::File(&parts));
            read.map(drop).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|error| *error == errors[0]));
        errors[0].clone()
    };
    assert!(refused("0\n3\n", n).contains("a.part:2: \"3\" is not a number from 0 to 2"));
    assert!(refused("0\n1\n", n).contains("2 lines for 30 rows"));
    assert!(refused("0\n", n - 1).contains("a partition numbers rows and columns alike"));
    // The file's own numbers, whatever they have become.
    let lines = "5 2 1\n1 1 1\n5 2 3\n";
    std::fs::write(&matrix, format!("{head}5 5 3\n{lines}")).unwrap();
    std::fs::write(&parts, "2\n1\n1\n0\n0\n").unwrap();
    let twice = ThreadComm::run(3, |comm: &dyn Comm| {
        read_rows::<f64>(&cpu(), comm, &matrix, &Partition::File(&parts)).map(drop).unwrap_err().to_string()
    });
    assert!(twice[0].contains("row 5, column 2 occurs twice"), "{}", twice[0]);
}

/// Blocks of a mesh whose rows are in random order: METIS finds them.
#[cfg(feature = "metis")]
#[test]
fn metis_finds_neighbours() {
    let dir = tempfile::tempdir().unwrap();
    let matrix = dir.path().join("mesh.mtx");
    let (side, ranks) = (24usize, 4);
    let n = side * side;
    let name = |x: usize, y: usize| (x * side + y) * 35 % n + 1;
    let mut lines = String::new();
    for x in 0..side {
        for y in 0..side {
            lines += &format!("{0} {0}\n", name(x, y));
            if x + 1 < side {
                lines += &format!("{0} {1}\n{1} {0}\n", name(x, y), name(x + 1, y));
            }
            if y + 1 < side {
                lines += &format!("{0} {1}\n{1} {0}\n", name(x, y), name(x, y + 1));
            }
        }
    }
    let head = "%%MatrixMarket matrix coordinate pattern general\n";
    std::fs::write(&matrix, format!("{head}{n} {n} {}\n{lines}", lines.lines().count())).unwrap();
    let ghosts = |partition: Partition<'_>| {
        let counted = ThreadComm::run(ranks, |comm: &dyn Comm| {
            let RowsOf { rows, cols, local, .. } = read_rows::<f32>(&cpu(), comm, &matrix, &partition).unwrap();
            let aware = |a| a == Algorithm::Aware;
            let spmm = Operation::Spmm { n: 1 };
            let plan = DistPlan::new(comm, &rows, &cols, &local, spmm, Cluster::default(), aware).unwrap();
            (plan.chosen().total_words, local.nnz())
        });
        let most = counted.iter().map(|(_, nnz)| *nnz).max().unwrap();
        assert!(most * ranks <= lines.lines().count() * 11 / 10, "{most} nonzeros on a rank");
        counted[0].0
    };
    let (balanced, metis) = (ghosts(Partition::Balanced), ghosts(Partition::Metis));
    assert!(metis * 3.0 < balanced, "{metis} ghosts instead of {balanced}");
}

#[test]
fn a_bad_file_is_an_error_of_all_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let head = "%%MatrixMarket matrix coordinate real general\n";
    let lines: String = (1..=400).map(|i| format!("{i} {i} {}\n", if i == 370 { "x" } else { "1" })).collect();
    let cases = [
        (file("bad.mtx", &format!("{head}400 400 400\n{lines}")), "bad.mtx:372: value: "),
        (file("twice.mtx", &format!("{head}3 3 3\n1 1 1\n3 2 5\n3 2 6\n")), "row 3, column 2 occurs twice"),
        (file("short.mtx", &format!("{head}3 3 4\n1 1 1\n3 2 5\n")), "2 entries, and 4 in the size line"),
        (dir.path().join("none.mtx"), "none.mtx: No such file"),
    ];
    for (path, words) in cases {
        for ranks in [1, 4] {
            let results = ThreadComm::run(ranks, |comm: &dyn Comm| {
                read_rows::<f64>(&cpu(), comm, &path, &Partition::Balanced).map(|_| ())
            });
            for error in results {
                let error = error.unwrap_err().to_string();
                assert!(error.contains(words), "{ranks} ranks: {error}");
            }
        }
    }
}

//! Files that several ranks read: the same matrix and tensor as one reads, and errors of all.

use std::path::Path;

use sparsimd::io::{ReadOptions, read_matrix, read_tns};
use sparsimd::{CooTensor, Cpu, Csr};
use sparsimd_distributed::{Comm, ThreadComm, read_entries, read_rows, share_rows};

fn cpu() -> Cpu {
    Cpu::builder().threads(1).pin(false).build().unwrap()
}

#[test]
fn rows_are_those_of_the_matrix() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/pyfr_p6hex_m460.mtx");
    let whole: Csr<f64> = read_matrix(&path, ReadOptions::default()).unwrap().into_csr().unwrap();
    for ranks in 1..=9 {
        let parts = ThreadComm::run(ranks, |comm: &dyn Comm| {
            let read = read_rows::<f64>(&cpu(), comm, &path).unwrap();
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
    let binary = dir.path().join("x.tnsb");
    sparsimd::io::write_tensor(&binary, &whole).unwrap();
    let one = ThreadComm::run(1, |comm: &dyn Comm| read_entries::<f32>(&cpu(), comm, &binary, false).unwrap().1.nnz());
    assert_eq!(one, [whole.nnz()]);
    let two = ThreadComm::run(2, |comm: &dyn Comm| read_entries::<f32>(&cpu(), comm, &binary, false).map(|_| ()));
    for error in two {
        assert!(error.unwrap_err().to_string().ends_with("x.tnsb is binary: several ranks read .tns"));
    }
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
            let results = ThreadComm::run(ranks, |comm: &dyn Comm| read_rows::<f64>(&cpu(), comm, &path).map(|_| ()));
            for error in results {
                let error = error.unwrap_err().to_string();
                assert!(error.contains(words), "{ranks} ranks: {error}");
            }
        }
    }
}

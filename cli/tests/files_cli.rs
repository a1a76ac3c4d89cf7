//! The matrix operations on operands from files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use sparsimd::Mat;
use sparsimd::io::{ReadOptions, read_dense, read_matrix};

/// The program in the folder `dir`.
fn sparsimd(dir: &Path, args: &str) -> Output {
    let words = args.split_whitespace();
    Command::new(env!("CARGO_BIN_EXE_sparsimd")).current_dir(dir).args(words).output().expect("the program starts")
}

/// The report of a run that must succeed.
fn json(dir: &Path, args: &str) -> Value {
    let out = sparsimd(dir, &format!("{args} --json"));
    assert_eq!(out.status.code(), Some(0), "{args}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

/// The one line on standard error of a run that must fail with status 2.
fn refusal(dir: &Path, args: &str) -> String {
    let out = sparsimd(dir, args);
    let stderr = String::from_utf8(out.stderr).expect("text");
    assert_eq!((out.status.code(), stderr.lines().count()), (Some(2), 1), "{args}: {stderr}");
    assert!(out.stdout.is_empty(), "{args}");
    stderr
}

/// A file as `numpy.save` writes it.
fn npy(dir: &Path, name: &str, descr: &str, shape: &str, elements: impl Iterator<Item = f64>) {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{header:<117}\n").bytes());
    for x in elements {
        match descr {
            "<f4" => bytes.extend((x as f32).to_le_bytes()),
            _ => bytes.extend(x.to_le_bytes()),
        }
    }
    std::fs::write(dir.join(name), bytes).expect("a file");
}

fn read(dir: &Path, name: &str) -> Mat<f64> {
    read_dense(&dir.join(name), ReadOptions::default()).expect("a dense matrix")
}

/// A folder with A = [2 . 3; . 4 .] and operands of N = 2 of whole numbers.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().to_owned();
    std::fs::write(path.join("A.mtx"), "%%MatrixMarket matrix coordinate real general\n2 3 3\n1 1 2\n1 3 3\n2 2 4\n")
        .unwrap();
    for (descr, end) in [("<f4", ""), ("<f8", "64")] {
        npy(&path, &format!("B{end}.npy"), descr, "(3, 2)", (1..=6).map(f64::from));
        npy(&path, &format!("C{end}.npy"), descr, "(2, 2)", [1.0, -1.0, 2.0, 0.5].into_iter());
        npy(&path, &format!("D{end}.npy"), descr, "(3, 4)", (0..12).map(f64::from));
    }
    (dir, path)
}

#[test]
fn spmm_multiplies_what_is_given() {
    let (_keep, dir) = folder();
    for (b, out, dtype) in [("B.npy", "C.out.npy", "f32"), ("B64.npy", "C.mtx", "f64"), ("B.mtx", "C.txt", "f32")] {
        if b == "B.mtx" {
            std::fs::write(dir.join(b), "%%MatrixMarket matrix array real general\n3 2\n1\n3\n5\n2\n4\n6\n").unwrap();
        }
        let report = json(&dir, &format!("spmm --matrix A.mtx --b {b} --out {out} --verify"));
        assert_eq!((&report["n"], &report["dtype"], &report["verified"]), (&2.into(), &dtype.into(), &true.into()));
        let c = read(&dir, out);
        assert_eq!((c.rows(), c.row(0), c.row(1)), (2, &[17.0, 22.0][..], &[12.0, 16.0][..]), "{b}");
    }
    // A vector is a column; and numbers that no f32 has stay as they are.
    npy(&dir, "x.npy", "<f8", "(3,)", [0.1, 1e300, 0.0].into_iter());
    json(&dir, "spmm --matrix A.mtx --b x.npy --out y.npy");
    assert_eq!((read(&dir, "y.npy").row(0), read(&dir, "y.npy").row(1)), (&[0.2][..], &[4e300][..]));
    // The order of rows does not show.
    json(&dir, "spmm --matrix A.mtx --b B.npy --out R.npy --reorder degree --repeat 2");
    assert_eq!(read(&dir, "R.npy").row(0), [17.0, 22.0]);
}

#[test]
fn sddmm_writes_a_sparse_matrix_or_its_values() {
    let (_keep, dir) = folder();
    let report = json(&dir, "sddmm --matrix A.mtx --c C.npy --b B.npy --out S.mtx --verify");
    assert_eq!((&report["n"], &report["verified"]), (&2.into(), &true.into()));
    let s = read_matrix::<f64>(&dir.join("S.mtx"), ReadOptions::default()).unwrap().into_csr().unwrap();
    assert_eq!(
        (s.pattern().row_ptr(), s.pattern().col_idx(), s.values()),
        (&[0, 2, 3][..], &[0, 2, 1][..], &[-1.0, -1.0, 8.0][..])
    );
    json(&dir, "sddmm --matrix A.mtx --c C64.npy --b B64.npy --edge scale --out s.npy");
    let values = read(&dir, "s.npy");
    assert_eq!(values.iter_rows().map(|row| row[0]).collect::<Vec<_>>(), [-2.0, -3.0, 32.0]);
    assert!(refusal(&dir, "sddmm --matrix A.mtx --c C.npy --b B.npy --out s.txt").contains("out: s.txt"));
}

#[test]
fn fusedmm_takes_three_operands_the_last_of_any_width() {
    let (_keep, dir) = folder();
    let run = "fusedmm --matrix A.mtx --c C.npy --b B.npy --d D.npy";
    let report = json(&dir, &format!("{run} --edge softmax --out E.npy --verify"));
    assert_eq!((&report["n"], &report["verified"]), (&2.into(), &true.into()));
    // Row 0: equal weights of D's rows 0 and 2; row 1: row 1 alone.
    let e = read(&dir, "E.npy");
    assert_eq!((e.row(0), e.row(1)), (&[4.0, 5.0, 6.0, 7.0][..], &[4.0, 5.0, 6.0, 7.0][..]));
    for path in ["direct", "panel"] {
        json(&dir, &format!("{run} --edge identity --path {path} --out E.mtx --verify"));
        let e = read(&dir, "E.mtx");
        assert_eq!((e.row(0), e.row(1)), (&[-8.0, -10.0, -12.0, -14.0][..], &[32.0, 40.0, 48.0, 56.0][..]));
    }
}

#[test]
fn what_does_not_fit_is_refused_by_the_operand_and_its_file() {
    let (_keep, dir) = folder();
    for (args, words) in [
        ("spmm --matrix A.mtx", "-n <N>"),
        ("spmm --matrix A.mtx --b C.npy", "b: C.npy has 2 rows where A has 3 columns"),
        ("spmm --matrix A.mtx --b B.npy -n 3", "b: B.npy has 2 columns where -n has 3"),
        ("spmm --matrix A.mtx --b B.npy --c C.npy", "c: spmm has no dense operand C"),
        ("spmm --matrix A.mtx --b none.npy", "none.npy: No such file"),
        ("spmm --matrix A.mtx --b A.mtx", "A.mtx:2: the format is coordinate"),
        ("spmm --matrix A.mtx --b B.csv", "B.csv: the name ends neither in .npy"),
        ("spmm --matrix A.mtx --b B.npy --out C.smtx", "C.smtx: the name ends neither in .npy"),
        ("sddmm --matrix A.mtx --c C.npy", "b: no file is given where --c has one"),
        ("sddmm --matrix A.mtx --c C.npy --b D.npy", "b: D.npy has 4 columns where C.npy has 2"),
        ("sddmm --matrix A.mtx --c B.npy --b B.npy", "c: B.npy has 3 rows where A has 2 rows"),
        ("fusedmm --matrix A.mtx --c C.npy --b B.npy", "d: no file is given"),
        ("fusedmm --matrix A.mtx --c C.npy --b B.npy --d C.npy", "d: C.npy has 2 rows where A has 3 columns"),
    ] {
        let message = refusal(&dir, args);
        assert!(message.contains(words), "{args}: {message}");
    }
    npy(&dir, "int.npy", "<i8", "(3, 2)", (0..6).map(f64::from));
    assert!(refusal(&dir, "spmm --matrix A.mtx --b int.npy").contains("int.npy:0: elements of type \"<i8\""));
    npy(&dir, "short.npy", "<f4", "(3, 200)", (0..6).map(f64::from));
    assert!(
        refusal(&dir, "spmm --matrix A.mtx --b short.npy")
            .contains("short.npy:0: the header asks for 3 x 200 elements")
    );
    npy(&dir, "empty.npy", "<f4", "(3, 0)", std::iter::empty());
    assert!(refusal(&dir, "fusedmm --matrix A.mtx --c C.npy --b B.npy --d empty.npy").contains("fusedmm"));
}

#[test]
fn matrices_are_generated_described_and_converted() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let run = |args: &str| {
        let out = sparsimd(dir, args);
        assert_eq!(out.status.code(), Some(0), "{args}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(run("generate rmat:10:8000 --out g.mtx"), "g.mtx: 1024 x 1024, 8000 nonzeros\n");
    let stats = json(dir, "stats g.mtx -n 64");
    assert_eq!((&stats["rows"], &stats["cols"], &stats["nnz"]), (&1024.into(), &1024.into(), &8000.into()));
    for degrees in ["row_degrees", "column_degrees"] {
        let histogram = stats[degrees]["degree_histogram"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap());
        assert_eq!(histogram.sum::<u64>(), 1024);
        assert!(stats[degrees]["max"].as_u64().unwrap() > 40, "R-MAT is skewed: {stats}");
    }
    assert_eq!((&stats["panels"]["count"], stats["panels"]["density"].as_array().unwrap().len()), (&4.into(), 4));
    let plans = stats["plans"].as_array().unwrap();
    assert_eq!(plans.iter().map(|p| p["op"].as_str().unwrap()).collect::<Vec<_>>(), ["spmm", "sddmm", "fusedmm"]);
    assert!(plans.iter().all(|p| p["n"] == 64 && p["plan"].as_str().is_some_and(|plan| !plan.is_empty())));
    assert!(run("stats g.mtx").contains("1024 x 1024, 8000 nonzeros with values"));

    // A small one by hand: rows of 2, 0, 1 nonzeros.
    std::fs::write(dir.join("a.smtx"), "3, 300, 3\n0 2 2 3\n0 299 1\n").unwrap();
    let stats = json(dir, "stats a.smtx");
    assert_eq!(stats["row_degrees"]["degree_histogram"], serde_json::json!([1, 1, 1]));
    assert_eq!((&stats["row_degrees"]["empty"], &stats["row_degrees"]["median"]), (&1.into(), &1.into()));
    assert_eq!(stats["bandwidth"], serde_json::json!({"lower": 1, "upper": 299, "mean_distance": 100.0}));
    assert_eq!((&stats["panels"]["row_segments"], &stats["valued"]), (&3.into(), &false.into()));

    for (name, out) in [
        ("uniform:64x32@0.9", "r.smtx"),
        ("banded:50x50:3", "b.mtx.gz"),
        ("blocks:50x50:8@0.5", "d.mtx"),
        ("pruned:40x60@0.8", "p.smtx.gz"),
        ("powerlaw:200x100:900", "l.mtx"),
        ("kron --dims 128x128 --nnz 700", "k.smtx"),
    ] {
        let text = run(&format!("generate {name} --seed 4 --out {out}"));
        let stats = json(dir, &format!("stats {out}"));
        assert_eq!(text, format!("{out}: {} x {}, {} nonzeros\n", stats["rows"], stats["cols"], stats["nnz"]));
    }
    assert_eq!(json(dir, "stats b.mtx.gz")["bandwidth"]["upper"], 3);
    // What has two modes is a tensor, too; and a dense matrix keeps its numbers in every format.
    run("generate rmat:10:8000 --out g.tns");
    assert_eq!(json(dir, "stats g.tns")["nnz"], 8000);
    assert_eq!(run("convert g.tns h.mtx"), "h.mtx: 1024 x 1024, 8000 nonzeros\n");
    assert_eq!(std::fs::read(dir.join("g.mtx")).unwrap(), std::fs::read(dir.join("h.mtx")).unwrap());
    assert_eq!(
        run("convert d.mtx d.tnsb").split_once(": ").unwrap().1,
        run("convert d.tnsb e.mtx").split_once(": ").unwrap().1
    );
    assert_eq!(std::fs::read(dir.join("d.mtx")).unwrap(), std::fs::read(dir.join("e.mtx")).unwrap());
    npy(dir, "X.npy", "<f8", "(2, 3)", (0..6).map(|x| f64::from(x) / 3.0));
    let before = std::fs::read(dir.join("X.npy")).unwrap();
    for to in ["Y.mtx", "Z.txt", "W.npy"] {
        assert_eq!(run(&format!("convert X.npy {to}")), format!("{to}: 2 x 3, dense\n"));
    }
    run("convert Y.mtx V.npy");
    assert!(before == std::fs::read(dir.join("W.npy")).unwrap() && before == std::fs::read(dir.join("V.npy")).unwrap());

    for (args, words) in [
        ("generate uniform:9x9@0.5 --out x.tns", "out: uniform:9x9@0.5 is a matrix"),
        ("generate skew:9x9x9:20 --out x.mtx", "out: skew:9x9x9:20 has 3 modes"),
        ("generate uniform:9x9 --out x.mtx", "uniform:9x9 is none of"),
        ("generate uniform:9x9@2 --out x.mtx", "sparsity: 2 is not in [0, 1]"),
        ("generate uniform:9x9@0.5 --nnz 3 --out x.mtx", "do not go with it"),
        ("generate rmat:10:8000 --out x.csv", "x.csv: the name ends neither in"),
        ("stats g.mtx --sum-duplicates", "are for tensors"),
        ("stats none.mtx", "none.mtx: No such file"),
        ("convert X.npy x.smtx", "x.smtx"),
        ("convert X.npy x.npy --reorder rcm", "reorder"),
    ] {
        let message = refusal(dir, args);
        assert!(message.contains(words), "{args}: {message}");
    }
    assert!(!dir.join("x.mtx").exists() && !dir.join("x.npy").exists());
}

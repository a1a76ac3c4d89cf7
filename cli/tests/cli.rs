//! The command line: words, JSON keys, messages, exit status.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use sparsimd::io::{ReadOptions, read_matrix};

fn sparsimd(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sparsimd")).args(args).output().expect("the program starts")
}

/// Standard output of a run that must succeed.
fn output(args: &[&str]) -> String {
    let out = sparsimd(args);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{args:?}: {stderr}");
    assert_eq!(stderr, "", "{args:?}");
    String::from_utf8(out.stdout).expect("text")
}

fn json(args: &[&str]) -> Value {
    let text = output(args);
    assert_eq!(text.lines().count(), 1, "one object in one line: {text}");
    serde_json::from_str(&text).expect("JSON")
}

/// The one line on standard error of a run that must fail with status 2.
fn refusal(args: &[&str]) -> String {
    let out = sparsimd(args);
    let stderr = String::from_utf8(out.stderr).expect("text");
    assert_eq!(out.status.code(), Some(2), "{args:?}: {stderr}");
    assert!(out.stdout.is_empty(), "{args:?}");
    assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
    stderr
}

#[test]
fn info_describes_the_machine() {
    let text = output(&["info"]);
    assert!(text.contains("processor") && text.contains("simd"), "{text}");
    let info = json(&["info", "--json"]);
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    assert!(info["threads"].as_u64().is_some_and(|threads| threads >= 1));
    assert!(info["simd_available"].as_array().is_some_and(|all| all[0] == "scalar"));
}

#[test]
fn operations_report_their_keys() {
    let keys = [
        "op",
        "m",
        "k",
        "n",
        "nnz",
        "dtype",
        "path",
        "threads",
        "prepare_s",
        "min_s",
        "median_s",
        "gflops",
        "peak_gflops",
        "peak_share",
        "verified",
        "max_err",
    ];
    let matrix = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/pyfr_p6hex_m460.mtx");
    for (op, edge) in [
        ("spmm", None),
        ("sddmm", None),
        ("sddmm", Some("scale")),
        ("fusedmm", None),
        ("fusedmm", Some("scale")),
        ("fusedmm", Some("sigmoid")),
        ("fusedmm", Some("softmax")),
        ("fusedmm", Some("leaky-relu")),
        ("fusedmm", Some("softmax-leaky-relu")),
    ] {
        for (dtype, path) in [("f32", "panel"), ("f64", "direct")] {
            let mut args = vec![op, "--matrix", matrix, "-n", "33", "--dtype", dtype, "--path", path];
            args.extend(["--threads", "2", "--repeat", "3", "--verify", "--json"]);
            args.extend(edge.iter().flat_map(|edge| ["--edge", edge]));
            let report = json(&args);
            for key in keys {
                assert!(report.get(key).is_some(), "{op}: no key {key}");
            }
            assert_eq!((&report["op"], &report["dtype"], &report["path"]), (&op.into(), &dtype.into(), &path.into()));
            assert_eq!((&report["m"], &report["k"], &report["n"]), (&1029.into(), &343.into(), &33.into()));
            assert_eq!((&report["nnz"], &report["threads"]), (&7056.into(), &2.into()));
            assert_eq!(report["verified"], true, "{report}");
            let number = |key: &str| report[key].as_f64().expect("a number");
            assert!(number("max_err") <= 1.0 && number("min_s") > 0.0 && number("min_s") <= number("median_s"));
            let flops = if op == "fusedmm" { 4.0 } else { 2.0 } * 7056.0 * 33.0;
            approx::assert_relative_eq!(number("gflops"), flops / number("min_s") / 1e9, max_relative = 1e-9);
            let share = number("gflops") / number("peak_gflops");
            approx::assert_relative_eq!(number("peak_share"), share, max_relative = 1e-9);
        }
    }
}

#[test]
fn heads_and_gradients_are_verified() {
    let matrix = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/pyfr_p6hex_m460.mtx");
    for (extra, op, products) in [
        (&["--heads", "3", "--edge", "softmax"][..], "fusedmm", 2.0),
        (&["--scores", "sums", "--edge", "leaky-relu"], "fusedmm", 1.0),
        (&["--backward", "--edge", "scale"], "fusedmm_gradient", 5.0),
        (&["--backward", "--edge", "softmax", "--heads", "11", "--dropout", "0.2"], "fusedmm_gradient", 5.0),
        (&["--backward", "--scores", "sums", "--edge", "softmax-leaky-relu", "--heads", "3"], "fusedmm_gradient", 2.0),
    ] {
        for dtype in ["f32", "f64"] {
            let mut args = vec!["fusedmm", "--matrix", matrix, "-n", "33", "--dtype", dtype, "--threads", "2"];
            args.extend(["--repeat", "2", "--verify", "--json"]);
            args.extend(extra);
            let report = json(&args);
            assert_eq!((&report["op"], &report["verified"]), (&op.into(), &true.into()), "{report}");
            let number = |key: &str| report[key].as_f64().expect("a number");
            let heads = extra.iter().skip_while(|&&word| word != "--heads").nth(1).map_or(1, |h| h.parse().unwrap());
            assert_eq!(report["heads"].as_u64(), Some(heads));
            let flops = 2.0 * products * 7056.0 * 33.0;
            approx::assert_relative_eq!(number("gflops"), flops / number("min_s") / 1e9, max_relative = 1e-9);
        }
    }
}

#[test]
fn products_of_heads_are_verified() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let out = dir.path().join("dots.npy");
    for op in ["spmm", "sddmm"] {
        for (n, heads) in [("33", "3"), ("64", "8"), ("128", "2"), ("7", "7")] {
            for dtype in ["f32", "f64"] {
                let mut args = vec![op, "--random", "90x70@0.9", "-n", n, "--heads", heads, "--dtype", dtype];
                args.extend(["--repeat", "2", "--verify", "--json", "--out", out.to_str().expect("a plain path")]);
                let report = json(&args);
                assert_eq!((&report["op"], &report["verified"]), (&op.into(), &true.into()), "{report}");
                assert_eq!((&report["path"], &report["heads"].to_string()), (&"direct".into(), &heads.to_owned()));
                let written = sparsimd::io::read_dense::<f64>(&out, ReadOptions::default()).expect("an array");
                let (rows, cols) =
                    if op == "spmm" { (90, n) } else { (report["nnz"].as_u64().unwrap() as usize, heads) };
                assert_eq!((written.rows(), written.cols().to_string()), (rows, cols.to_owned()));
            }
        }
        let with = |words: &[&'static str]| [&[op, "--random", "9x9@0.5", "-n", "8"], words].concat();
        for (words, expected) in [
            (&["--heads", "3"][..], "heads: 8 columns are not those of 3 heads"),
            (&["--heads", "0"], "heads: 8 columns"),
            (&["--heads", "2", "--reorder", "rcm"], "reorder: "),
            (&["--heads", "2", "--dtype", "bf16"], "dtype: "),
            (
                if op == "spmm" {
                    &["--heads", "2", "--reduce", "max"]
                } else {
                    &["--heads", "2", "--elementwise", "add"]
                },
                "heads: are for",
            ),
        ] {
            let message = refusal(&with(words));
            assert!(message.contains(expected), "{message}");
        }
    }
}

/// Values, dense operands and results of 2 bytes.
#[test]
fn narrow_element_types_are_verified() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let out = dir.path().join("out.npy");
    let out = out.to_str().expect("a plain path");
    for (dtype, header) in [("bf16", "<V2"), ("f16", "<f2")] {
        for op in [&["spmm"][..], &["sddmm"], &["sddmm", "--edge", "scale"], &["fusedmm", "--edge", "scale"]] {
            for how in [&["--path", "direct"][..], &["--path", "panel"], &["--reorder", "rcm"]] {
                let run = ["--random", "80x80@0.8", "-n", "33", "--dtype", dtype, "--verify", "--json", "--out", out];
                let report = json(&[op, how, &run, &["--repeat", "2"]].concat());
                assert_eq!((&report["dtype"], &report["verified"]), (&dtype.into(), &true.into()), "{report}");
                let written = std::fs::read(out).expect("a result");
                assert!(String::from_utf8_lossy(&written[..80]).contains(header), "{op:?} {how:?}");
            }
        }
    }
    // 1.0003 - 1, where both types have 1 for 1.0003.
    let path = |name: &str| dir.path().join(name).to_str().expect("a plain path").to_owned();
    let (a, b) = (path("a.mtx"), path("b.txt"));
    std::fs::write(&a, "%%MatrixMarket matrix coordinate real general\n1 2 2\n1 1 1.0003\n1 2 -1\n").expect("room");
    std::fs::write(&b, "1\n1\n").expect("room");
    for (dtype, zero) in [("f32", false), ("bf16", true), ("f16", true)] {
        output(&["spmm", "--matrix", &a, "--b", &b, "--dtype", dtype, "--out", out]);
        let written = sparsimd::io::read_dense::<f64>(Path::new(out), ReadOptions::default()).expect("an array");
        assert_eq!(written[(0, 0)] == 0.0, zero, "{dtype}: {}", written[(0, 0)]);
    }
}

#[test]
fn reductions_and_semirings() {
    for (option, name, op) in [
        ("--reduce", "sum", "spmm"),
        ("--reduce", "mean", "spmm-mean"),
        ("--reduce", "max", "spmm-max"),
        ("--reduce", "min", "spmm-min"),
        ("--semiring", "min-plus", "min-plus"),
        ("--semiring", "or-and", "or-and"),
    ] {
        for (dtype, path, order) in [("f32", "panel", "none"), ("f64", "direct", "rcm")] {
            let mut args = vec!["spmm", "--random", "90x90@0.9", "-n", "20", option, name, "--dtype", dtype];
            args.extend(["--path", path, "--reorder", order, "--repeat", "2", "--verify", "--json"]);
            let report = json(&args);
            assert_eq!((&report["op"], &report["path"], &report["verified"]), (&op.into(), &path.into(), &true.into()));
        }
    }
}

#[test]
fn positions_of_maxima_and_minima() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("positions.npy");
    for (name, dtype, way) in [("max", "f32", "panel"), ("min", "f64", "direct")] {
        let mut args =
            vec!["spmm", "--random", "90x90@0.99", "-n", "20", "--reduce", name, "--dtype", dtype, "--path", way];
        args.extend(["--positions", path.to_str().unwrap(), "--repeat", "2", "--verify", "--json"]);
        let report = json(&args);
        assert_eq!((&report["op"], &report["verified"]), (&format!("spmm-{name}").into(), &true.into()), "{report}");
        let written = sparsimd::io::read_dense::<f64>(&path, ReadOptions::default()).unwrap();
        let nnz = report["nnz"].as_f64().unwrap();
        // Some rows of the 90 have no nonzero.
        assert_eq!((written.rows(), written.cols()), (90, 20));
        assert!(written.iter_rows().flatten().all(|&p| p == -1.0 || p >= 0.0 && p < nnz));
        assert!(written.iter_rows().any(|row| row[0] == -1.0) && written.iter_rows().any(|row| row[0] >= 0.0));
    }
}

#[test]
fn rows_element_by_element() {
    for (op, dtype) in [("add", "f32"), ("sub", "f64"), ("mul", "f32"), ("div", "f64")] {
        let mut args = vec!["sddmm", "--random", "60x70@0.9", "-n", "19", "--elementwise", op, "--dtype", dtype];
        args.extend(["--repeat", "2", "--verify", "--json"]);
        let report = json(&args);
        assert_eq!((&report["op"], &report["verified"]), (&"sddmm-elementwise".into(), &true.into()), "{report}");
    }
}

#[test]
fn causal_masks() {
    for (extra, op) in [(&[][..], "fusedmm"), (&["--heads", "2"], "fusedmm"), (&["--backward"], "fusedmm_gradient")] {
        let mut args = vec!["fusedmm", "--random", "90x90@0.9", "-n", "20", "--edge", "softmax", "--causal"];
        args.extend(["--repeat", "2", "--verify", "--json"]);
        args.extend(extra);
        let report = json(&args);
        assert_eq!((&report["op"], &report["verified"]), (&op.into(), &true.into()), "{report}");
        // About half of 810.
        let nnz = report["nnz"].as_f64().unwrap();
        assert!((300.0..510.0).contains(&nnz), "{nnz}");
    }
}

#[test]
fn random_matrices_and_text_output() {
    let args = ["spmm", "--random", "100x80@0.9", "--seed", "5", "-n", "8", "--repeat", "2"];
    let text = output(&args);
    assert!(text.contains("100 x 80") && text.contains("GFLOP/s") && text.contains("not asked for"), "{text}");
    let report = json(&[&args[..], &["--json"]].concat());
    assert_eq!((&report["verified"], &report["max_err"]), (&Value::Null, &Value::Null));
    assert_eq!((&report["numa"]["policy"], &report["unpinned_threads"]), (&"auto".into(), &0.into()));
    let off = json(&[&args[..], &["--json", "--numa", "off"]].concat());
    assert_eq!((&off["numa"]["placed"], &off["numa"]["reason"]), (&false.into(), &"off: as asked".into()));
    assert_eq!(report["nnz"], json(&[&args[..], &["--json", "--path", "panel"]].concat())["nnz"]);
}

#[test]
fn every_instruction_set_can_be_forced() {
    for arch in sparsimd::Arch::available() {
        let args = ["fusedmm", "--random", "50x40@0.5", "-n", "9", "--repeat", "1", "--verify", "--arch", arch.name()];
        assert!(output(&args).contains(arch.name()));
    }
    let message = refusal(&["spmm", "--random", "5x5@0.5", "-n", "4", "--arch", "mmx"]);
    assert!(message.contains("mmx"), "{message}");
}

#[test]
fn results_are_written() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| dir.path().join(name).to_str().expect("a plain path").to_owned();
    let read = |name: &str| {
        let matrix = read_matrix::<f64>(Path::new(&path(name)), ReadOptions::default()).expect("a matrix");
        matrix.into_csr().expect("values")
    };
    let common = ["--random", "30x20@0.8", "-n", "7", "--repeat", "1", "--dtype", "f64", "--out"];
    for op in ["spmm", "fusedmm"] {
        output(&[&[op], &common[..], &[&path("c.mtx.gz")]].concat());
        assert_eq!((read("c.mtx.gz").rows(), read("c.mtx.gz").cols()), (30, 7));
    }
    output(&[&["sddmm"], &common[..], &[&path("s.mtx")]].concat());
    let a = sparsimd::generate::random_matrix::<f64>(30, 20, 0.8, 0).expect("a matrix");
    assert_eq!(read("s.mtx").pattern(), a.pattern());
    // From a format to the other and back.
    output(&["convert", &path("s.mtx"), &path("s.smtx.gz")]);
    output(&["convert", &path("s.smtx.gz"), &path("t.mtx")]);
    assert_eq!(read("t.mtx").pattern(), a.pattern());
    let text = std::fs::read_to_string(path("t.mtx")).expect("text");
    assert!(text.starts_with("%%MatrixMarket matrix coordinate pattern general\n30 20 "));
}

#[test]
fn errors_are_one_line_and_status_2() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let bad = dir.path().join("bad.mtx");
    std::fs::write(&bad, "%%MatrixMarket matrix coordinate real general\n2 2 1\n0 1 1\n").expect("written");
    let bad = bad.to_str().expect("a plain path");
    let random = ["--random", "10x10@0.5"];
    for (args, words) in [
        (vec!["spmm", "--matrix", bad, "-n", "4"], "bad.mtx:3: row index 0"),
        (vec!["spmm", "--matrix", "missing.mtx", "-n", "4"], "missing.mtx"),
        (vec!["spmm", "--matrix", "matrix.csv", "-n", "4"], "matrix.csv"),
        (vec!["spmm", "-n", "4"], "--matrix"),
        (vec!["spmm", "--matrix", bad, random[0], random[1], "-n", "4"], "cannot be used with"),
        (vec!["spmm", random[0], random[1]], "-n"),
        (vec!["spmm", random[0], random[1], "-n", "0"], "0"),
        (vec!["sddmm", random[0], random[1], "-n", "0"], "0"),
        (vec!["fusedmm", random[0], random[1], "-n", "0"], "0"),
        (vec!["spmm", random[0], random[1], "-n", "4", "--threads", "0"], "threads"),
        (vec!["spmm", random[0], random[1], "-n", "4", "--threads", "99999999"], "at most"),
        (vec!["spmm", random[0], random[1], "-n", "4", "--numa", "nearby"], "first-touch"),
        (vec!["spmm", random[0], random[1], "-n", "4", "--pin", "0,0"], "twice"),
        (vec!["spmm", random[0], random[1], "-n", "4", "--out", "c.smtx"], "c.smtx"),
        (vec!["spmm", random[0], random[1], "-n", "4", "--repeat", "0"], "repeat"),
        (vec!["spmm", random[0], random[1], "-n", "-4"], "-4"),
        (vec!["spmm", random[0], random[1], "-n", "4", "--path", "fast"], "fast"),
        (vec!["spmm", random[0], random[1], "-n", "4", "--edge", "sigmoid"], "sigmoid"),
        (vec!["spmm", random[0], random[1], "-n", "4", "--semiring", "plus"], "min-plus"),
        (vec!["spmm", random[0], random[1], "-n", "4", "--semiring", "or-and", "--reduce", "max"], "cannot be used"),
        (vec!["sddmm", random[0], random[1], "-n", "4", "--edge", "softmax"], "softmax"),
        (vec!["fusedmm", random[0], random[1], "-n", "4", "--heads", "3"], "3 heads"),
        (vec!["fusedmm", random[0], random[1], "-n", "4", "--heads", "0"], "0 heads"),
        (vec!["fusedmm", random[0], random[1], "-n", "4", "--dropout", "1.5"], "1.5"),
        (vec!["fusedmm", random[0], random[1], "-n", "4", "--backward", "--reorder", "rcm"], "reorder"),
        (vec!["spmm", random[0], random[1], "-n", "4", "--dtype", "f8"], "f8"),
        (vec!["spmm", random[0], random[1], "-n", "4", "--repeat", "1", "--out", "/nowhere/c.mtx"], "/nowhere/c.mtx"),
        (vec!["spmm", "--random", "10x10", "-n", "4"], "MxK@SPARSITY"),
        (vec!["spmm", "--random", "10x10@1.5", "-n", "4"], "1.5"),
        (vec!["spmm", "--random", "5000000000x10@0.5", "-n", "4"], "5000000000"),
        (vec!["spmm", random[0], random[1], "-n", "4000000000000000000"], "4000000000000000000"),
        (vec!["spmm", random[0], random[1], "-n", "18446744073709551615"], "18446744073709551615"),
        (vec!["spmm", random[0], random[1], "-n", "4000000000000"], "do not fit the memory"),
        (vec!["convert", bad], "<OUTPUT>"),
        (vec!["convert", bad, "out.png"], "out.png"),
        (vec!["frobnicate"], "frobnicate"),
        (vec![], "command"),
    ] {
        let message = refusal(&args);
        assert!(message.starts_with("sparsimd: ") && message.contains(words), "{args:?}: {message}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    assert!(output(&["--version"]).starts_with("sparsimd "));
    assert!(output(&["--help"]).contains("fusedmm"));
    assert!(output(&["spmm", "--help"]).contains("--random"));
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = output(&["completions", shell]);
        assert!(
            ["spmm", "cp", "generate", "completions", "reorder"].iter().all(|word| script.contains(word)),
            "{shell}"
        );
    }
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("man");
    let text = output(&["man", folder.to_str().expect("UTF-8")]);
    let page = |name: &str| std::fs::read_to_string(folder.join(format!("{name}.1"))).expect("a page");
    // The first page names the others: `sparsimd\-spmm(1)`.
    let first = page("sparsimd").replace('\\', "");
    let named: BTreeSet<_> = first.split_whitespace().filter_map(|word| word.strip_suffix("(1)")).collect();
    assert!(["sparsimd-spmm", "sparsimd-cp", "sparsimd-man"].iter().all(|name| named.contains(name)), "{named:?}");
    for name in &named {
        assert!(page(name).contains(".TH") && page(name).contains("SYNOPSIS"), "{name}");
    }
    let pages = std::fs::read_dir(&folder).expect("the folder").count();
    assert!(text.contains(&format!("{pages} pages")) && pages > named.len(), "{text}");
    assert!(!folder.join("sparsimd-bench-probe.1").exists());
    assert!(refusal(&["completions", "tcsh"]).contains("tcsh"));
}

#[test]
fn copies_that_a_launcher_starts_are_refused() {
    let run = |name: &str, size: &str, rank: &str, args: &[&str]| {
        let (size_name, rank_name) = (format!("{name}_SIZE"), format!("{name}_RANK"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_sparsimd"));
        let out = command.args(args).env(size_name, size).env(rank_name, rank).output().expect("the program starts");
        (out.status.code(), String::from_utf8(out.stderr).expect("text"))
    };
    let spmm = ["spmm", "--random", "8x8@0.5", "-n", "4", "--repeat", "1"];
    for name in ["OMPI_COMM_WORLD", "PMI"] {
        let (status, words) = run(name, "2", "0", &spmm);
        assert_eq!((status, words.lines().count()), (Some(2), 1), "{words}");
        assert!(
            words.starts_with("sparsimd: a run on many ranks is not available: a launcher has started several"),
            "{words}"
        );
        // One of them speaks, before a launcher sees another one fail.
        assert_eq!(run(name, "2", "1", &spmm), (Some(0), String::new()));
        assert_eq!(run(name, "1", "0", &spmm), (Some(0), String::new()));
    }
    if !cfg!(feature = "mpi") {
        let error = refusal(&[&spmm[..], &["--mpi"]].concat());
        assert!(error.ends_with("this build is without the feature mpi\n"), "{error}");
    }
    let error = refusal(&[&spmm[..], &["--algorithm", "aware"]].concat());
    assert!(error.contains("--mpi"), "{error}");
}

//! `--reorder` as a user gives it: files in another order, results in the given one.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use sparsimd::io::{Duplicates, ReadOptions, read_matrix, read_tensor};
use sparsimd::{CooTensor, Csr, reorder};

fn sparsimd(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sparsimd")).args(args).output().expect("the program runs")
}

fn output(args: &[&str]) -> String {
    let output = sparsimd(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&output(args)).expect("an object")
}

/// The message of a command that must fail with status 2.
fn refusal(args: &[&str]) -> String {
    let output = sparsimd(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn operations_verify_in_every_order() {
    for shape in ["60x60@0.9", "50x30@0.9"] {
        for op in ["spmm", "sddmm", "fusedmm"] {
            for order in ["rcm", "degree", "rabbit"] {
                let common = ["--random", shape, "-n", "20", "--repeat", "1", "--threads", "2", "--verify", "--json"];
                let report = json(&[&[op, "--reorder", order], &common[..]].concat());
                assert_eq!((&report["verified"], &report["reorder"]["order"]), (&Value::Bool(true), &order.into()));
                assert!(report["reorder"]["order_s"].as_f64().is_some_and(|seconds| seconds > 0.0));
                assert!(report["reorder"]["permute_s"].as_f64().is_some_and(|seconds| seconds > 0.0));
            }
        }
    }
    for op in ["spmm", "fusedmm"] {
        let common = ["--random", "60x60@0.9", "-n", "20", "--repeat", "1", "--verify", "--json", "--reorder", "auto"];
        let report = json(&[&[op], &common[..]].concat());
        // All of B is in a cache.
        assert_eq!((&report["verified"], &report["reorder"]["order"]), (&Value::Bool(true), &"none".into()));
        assert_eq!(report["reorder"]["fetches"], serde_json::json!([60, 60]));
    }
    let text = output(&["sddmm", "--random", "9x9@0.5", "-n", "4", "--repeat", "1", "--reorder", "rcm"]);
    assert!(text.lines().any(|line| line.starts_with("order    rcm: ")), "{text}");
    let report = json(&["spmm", "--random", "9x9@0.5", "-n", "4", "--repeat", "1", "--json"]);
    assert_eq!(report["reorder"], Value::Null);
}

#[test]
fn mttkrp_verifies_in_every_order() {
    for order in ["lexi", "bfs-mcs"] {
        for modes in [&[][..], &["--mode", "1"], &["--format", "joint"]] {
            let common = ["mttkrp", "--generate", "skew:40x50x60:2000", "--repeat", "1", "--verify", "--json"];
            let report = json(&[&common[..], &["--reorder", order], modes].concat());
            assert_eq!((&report["verified"], &report["reorder"]["order"]), (&Value::Bool(true), &order.into()));
        }
    }
    let report = json(&["mttkrp", "--generate", "skew:9x9x9:50", "--repeat", "1", "--json"]);
    assert_eq!(report["reorder"], Value::Null);
    let message = refusal(&["mttkrp", "--generate", "skew:9x9x9:50", "--reorder", "rabbit"]);
    assert!(message.contains("rabbit is an order of matrices, not of tensors"), "{message}");
}

#[test]
fn results_are_written_in_the_given_order() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| dir.path().join(name).to_str().expect("a plain path").to_owned();
    let read = |name: &str| -> Csr<f64> {
        read_matrix(Path::new(&path(name)), ReadOptions::default()).and_then(|m| m.into_csr()).expect("a matrix")
    };
    for op in ["spmm", "sddmm", "fusedmm"] {
        let common = [op, "--random", "40x25@0.8", "-n", "6", "--dtype", "f64", "--repeat", "1", "--out"];
        output(&[&common[..], &[&path("given.mtx")]].concat());
        output(&[&common[..], &[&path("moved.mtx"), "--reorder", "rabbit"]].concat());
        let (given, moved) = (read("given.mtx"), read("moved.mtx"));
        assert_eq!(given.pattern(), moved.pattern());
        let close = |(x, y): (&f64, &f64)| (x - y).abs() <= 1e-12 * x.abs().max(1.0);
        assert!(given.values().iter().zip(moved.values()).all(close), "{op}");
    }
}

#[test]
fn files_are_written_in_another_order() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| dir.path().join(name).to_str().expect("a plain path").to_owned();
    output(&["sddmm", "--random", "30x20@0.8", "-n", "3", "--repeat", "1", "--dtype", "f64", "--out", &path("a.mtx")]);
    let read = |name: &str| read_matrix::<f64>(Path::new(&path(name)), ReadOptions::default()).expect("a matrix");
    let a = read("a.mtx").into_csr().expect("values");
    output(&["convert", &path("a.mtx"), &path("b.mtx"), "--reorder", "rcm"]);
    let moved = reorder::rcm(a.pattern()).and_then(|reordering| reordering.matrix(&a)).expect("a matrix");
    assert_eq!(read("b.mtx").into_csr().expect("values"), moved);
    output(&["convert", &path("a.mtx"), &path("c.smtx"), "--reorder", "rcm"]);
    assert_eq!(read("c.smtx").pattern(), moved.pattern());

    output(&["generate", "skew:40x30x20:500", "--out", &path("x.tnsb")]);
    let read = |name: &str| -> CooTensor<f64> {
        read_tensor(Path::new(&path(name)), false, Duplicates::Refuse, ReadOptions::default()).expect("a tensor")
    };
    let x = read("x.tnsb");
    output(&["convert", &path("x.tnsb"), &path("x.tns.gz")]);
    assert_eq!(read("x.tns.gz").all_coords(), x.all_coords());
    for (name, orders) in [("lexi", reorder::lexi(&x, 5)), ("bfs-mcs", reorder::bfs_mcs(&x))] {
        output(&["convert", &path("x.tnsb"), &path("y.tnsb"), "--reorder", name]);
        let mut moved = orders.and_then(|orders| reorder::permute_modes(&x, &orders)).expect("a tensor");
        moved.sort(&[0, 1, 2]).expect("memory");
        assert_eq!(read("y.tnsb"), moved, "{name}");
    }
    let message = refusal(&["convert", &path("a.mtx"), &path("d.mtx"), "--reorder", "lexi"]);
    assert!(message.contains("reorder: lexi is an order of tensors, not of matrices"), "{message}");
    let message = refusal(&["convert", &path("x.tnsb"), &path("y.tnsb"), "--reorder", "rabbit"]);
    assert!(message.contains("reorder: rabbit is an order of matrices, not of tensors"), "{message}");
    // A matrix is a tensor of two modes, a tensor of three no matrix.
    output(&["convert", &path("a.mtx"), &path("z.tnsb")]);
    assert_eq!(read("z.tnsb").order(), 2);
    assert!(refusal(&["convert", &path("x.tnsb"), &path("y.mtx")]).contains("x.tnsb has 3 modes"));
}

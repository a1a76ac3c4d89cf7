//! The tensor commands as a user runs them: output, files, errors in one line, exit status.

use std::path::Path;
use std::process::{Command, Output};

fn sparsimd(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sparsimd")).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json(args: &[&str]) -> serde_json::Value {
    let text = stdout(&sparsimd(args));
    serde_json::from_str(text.trim_end().lines().last().unwrap()).unwrap()
}

/// The message of a command that must fail with status 2 and one line.
fn refused(args: &[&str]) -> String {
    let output = sparsimd(args);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    assert!(output.stdout.is_empty());
    message
}

fn path<'a>(dir: &'a Path, name: &str, store: &'a mut String) -> &'a str {
    *store = dir.join(name).to_str().unwrap().to_owned();
    store
}

#[test]
fn operations_verify_themselves_in_every_variant() {
    let common = ["--generate", "skew:40x50x60:3000", "--repeat", "2", "--verify", "--json", "--threads", "2"];
    let check = |extra: &[&str], modes: usize| {
        let report = json(&[&extra[..1], &common, &extra[1..]].concat());
        assert_eq!(report["verified"], true, "{extra:?}: {report}");
        assert_eq!(report["mode"].as_array().unwrap().len(), modes);
        let keys = ["op", "order", "dims", "nnz", "format", "alg", "index_bytes", "prepare_s", "dtype", "threads"];
        let speed = ["min_s", "median_s", "gflops", "peak_gflops", "peak_share", "gbytes_per_s", "max_err"];
        for key in keys.iter().chain(&speed) {
            assert!(!report[key].is_null(), "{key} is missing: {report}");
        }
    };
    for op in ["ttm", "ttv"] {
        for format in ["auto", "coo", "csf-all", "hicoo"] {
            check(&[op, "--format", format, "--rank", "9"], 3);
        }
        check(&[op, "--mode", "1", "--dtype", "f64"], 1);
    }
    check(&["ttm", "--alg", "element"], 3);
    check(&["ttm", "--alg", "fiber"], 3);
    for op in ["add", "sub", "mul", "div"] {
        check(&["tew", "--op", op], 0);
        check(&["ts", "--op", op, "--format", "hicoo", "--dtype", "f64"], 0);
    }
}

#[test]
fn a_generated_file_can_be_worked_with() {
    let dir = tempfile::tempdir().unwrap();
    let (mut a, mut b, mut c) = (String::new(), String::new(), String::new());
    let tns = path(dir.path(), "a.tns.gz", &mut a);
    stdout(&sparsimd(&["generate", "kron", "--dims", "40x50x60", "--nnz", "2000", "--seed", "3", "--out", tns]));
    let report = json(&["ttm", "--tensor", tns, "--repeat", "1", "--verify", "--json"]);
    assert_eq!((report["nnz"].as_u64(), report["verified"].as_bool()), (Some(2000), Some(true)));
    let stats = json(&["stats", tns, "--json"]);
    assert_eq!(stats["nnz"], 2000);
    for mode in stats["modes"].as_array().unwrap() {
        let histogram: u64 = mode["fiber_histogram"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(Some(histogram), mode["fibers"].as_u64());
    }
    let coo = stats["storage"].as_array().unwrap().iter().find(|s| s["format"] == "coo").unwrap();
    assert_eq!(coo["index_bytes"], 2000 * 12);
    assert!(stdout(&sparsimd(&["stats", tns])).contains("csf-one"));

    let out = path(dir.path(), "out", &mut b);
    let report = json(&["tucker", "--tensor", tns, "--rank", "3", "--iters", "4", "--out", out, "--json"]);
    let fit = report["fit"].as_f64().unwrap();
    assert!(["iterations", "seconds", "ttm_s"].iter().all(|key| report[key].is_number()));
    let core = std::fs::read_to_string(dir.path().join("out/core.txt")).unwrap();
    let numbers: Vec<f64> = core.split_whitespace().map(|x| x.parse().unwrap()).collect();
    assert_eq!((core.lines().count(), numbers.len()), (3, 27));
    // From where the last run ended, things do not get worse.
    let again = path(dir.path(), "again", &mut c);
    let report = json(&["tucker", "--tensor", tns, "--rank", "3,3,3", "--init", out, "--out", again, "--json"]);
    assert!(report["fit"].as_f64().unwrap() >= fit - 1e-9);
}

#[test]
fn mistakes_are_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = String::new();
    let bad = path(dir.path(), "bad.tns", &mut store);
    std::fs::write(bad, "1 1 1 2.0\n1 0 1 2.0\n").unwrap();
    assert!(refused(&["ttm", "--tensor", bad]).contains("bad.tns:2"));
    assert!(refused(&["stats", bad]).contains("bad.tns:2"));
    stdout(&sparsimd(&["ttv", "--tensor", bad, "--zero-based", "--repeat", "1"]));
    refused(&["ttm"]);
    refused(&["ttm", "--tensor", bad, "--generate", "skew3d"]);
    refused(&["ttm", "--generate", "no-such-tensor"]);
    let spec = ["--generate", "skew:4x4x4:9", "--repeat", "1"];
    for extra in [
        &["ttm", "--mode", "3"][..],
        &["ttm", "--mode", "x"],
        &["ttm", "--rank", "0"],
        &["ttm", "--format", "alto"],
        &["ttv", "--alg", "element"],
        &["ts", "--alg", "fiber"],
        &["tew", "--format", "csf-one"],
        &["ttm", "--threads", "0"],
        &["ttm", "--repeat", "0"],
    ] {
        let args = if extra.contains(&"--repeat") { &spec[..2] } else { &spec[..] };
        refused(&[&extra[..1], args, &extra[1..]].concat());
    }
    let mut store = String::new();
    let out = path(dir.path(), "x.tns", &mut store);
    for args in [
        &["generate", "skew", "--dims", "3x3", "--nnz", "10", "--out", out][..],
        &["generate", "skew", "--dims", "3x3", "--out", out],
        &["generate", "nothing", "--out", out],
        &["generate", "skew3d", "--initiator", "2x2:1,1,1,1", "--out", out],
        &["generate", "skew3d", "--exponent", "1", "--out", out],
        &["generate", "kron", "--dims", "3x3", "--nnz", "2", "--initiator", "2x2", "--out", out],
        &["generate", "skew3d", "--out", "x.mtx"],
    ] {
        refused(args);
    }
    assert!(!dir.path().join("x.tns").exists());
    let good = path(dir.path(), "good.tns", &mut store);
    std::fs::write(good, "1 1 1 2.0\n2 3 1 2.0\n").unwrap();
    let mut store = String::new();
    let out = path(dir.path(), "t", &mut store);
    for rank in ["0", "9", "1,1", "x"] {
        refused(&["tucker", "--tensor", good, "--rank", rank, "--out", out]);
    }
    refused(&["tucker", "--tensor", good, "--rank", "1", "--init", "/nonexistent", "--out", out]);
}

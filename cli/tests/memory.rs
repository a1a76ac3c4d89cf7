//! Running out of memory is an error: exit status 2 and one line that names the operand, or a result, and never a signal.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Command, Output};

use sparsimd::generate::{random_matrix, skewed, uniform_dense};
use sparsimd::io::{Matrix, ReadOptions, read_dense, read_tns, write_dense, write_matrix, write_tensor};
use sparsimd::{CooTensor, Mat};

/// Processor time of one run, in seconds: what would not end is stopped by a signal, which the tests refuse.
const PROCESSOR_SECONDS: usize = 60;

/// A run of the program that may use `mebibytes` of address space.
fn limited(mebibytes: usize, args: &[&str]) -> Output {
    let script = format!("ulimit -v {} && ulimit -t {PROCESSOR_SECONDS} && exec \"$0\" \"$@\"", mebibytes << 10);
    Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_sparsimd")]).args(args).output().expect("a shell")
}

/// Runs the program under each of several limits, of which the smallest is too small and the largest is not. Each run ends
/// in 0 or 2.
fn under_limits(args: &[&str], operand: &str) {
    let (mut refused, mut done) = (0, 0);
    for mebibytes in [64, 96, 128, 160, 192, 256, 384, 512, 1024] {
        let out = limited(mebibytes, args);
        let message = String::from_utf8_lossy(&out.stderr);
        let place = format!("{args:?} in {mebibytes} MiB: {:?} {message}", out.status);
        match out.status.code() {
            Some(0) => done += 1,
            Some(2) => {
                refused += usize::from(message.contains("bytes of memory"));
                assert_eq!(message.lines().count(), 1, "{place}");
                assert!(out.stdout.is_empty(), "{place}");
                assert!(message.contains(operand) || !message.contains("bytes of memory"), "{place}");
            }
            _ => panic!("{place}"),
        }
    }
    assert!(refused > 0, "{args:?} never ran out of memory");
    assert!(done > 0, "{args:?} never had enough memory");
}

fn name(path: &Path) -> &str {
    path.to_str().expect("a name in UTF-8")
}

#[test]
fn commands_end_in_an_error_under_small_limits() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let threads = ["--threads", "2"];
    let matrix = dir.path().join("a.mtx");
    write_matrix(&matrix, &Matrix::Values(random_matrix::<f64>(3000, 3000, 0.7, 1).expect("a matrix")))
        .expect("a file");
    let (binary, text) = (dir.path().join("a.tnsb"), dir.path().join("a.tns"));
    let tensor = skewed::<f64>(&[3000, 2000, 1000], 1_000_000, 1).expect("a tensor");
    write_tensor(&binary, &tensor).expect("a file");
    write_tensor(&text, &tensor).expect("a file");

    let spmm = ["spmm", "--random", "6000x6000@0.5", "-n", "16", "--repeat", "1", "--verify"];
    under_limits(&[&spmm[..], &threads].concat(), "6000x6000@0.5");
    under_limits(&["convert", name(&matrix), name(&dir.path().join("a.smtx"))], "a.mtx");
    for file in [&binary, &text] {
        let file = name(file);
        under_limits(&["stats", file], file);
        let out = dir.path().join("out");
        let cp = ["cp", "--tensor", file, "--rank", "8", "--iters", "1", "--out", name(&out)];
        under_limits(&[&cp[..], &threads].concat(), file);
        under_limits(&[&["mttkrp", "--tensor", file, "--repeat", "1"][..], &threads].concat(), file);
    }
}

#[test]
fn a_claim_is_not_allocated_before_the_data_are_seen() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    // Rows that do not ascend, of a matrix of 2^32 - 1 columns.
    let matrix = file("wide.smtx", "2 4294967295 3\n0 2 3\n7 5 4294967294\n");
    let out = limited(512, &["convert", name(&matrix), name(&dir.path().join("b.smtx"))]);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    // A mode of 2^32 - 2 coordinates, two of which have a nonzero.
    let tensor = file("long.tns", "4294967294 5\n2 6\n9 1\n");
    let out = limited(512, &["stats", name(&tensor)]);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_random_matrix_that_does_not_fit_is_refused_before_it_is_made() {
    let start = std::time::Instant::now();
    let out = limited(4096, &["spmm", "--random", "100000x100000@0.5", "-n", "8"]);
    let message = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{message}");
    assert!(message.contains("--random 100000x100000@0.5") && message.contains("bytes of memory"), "{message}");
    // Drawing its 5 billion nonzeros would take minutes.
    assert!(start.elapsed().as_secs() < 20);
}

/// CP-ALS of a tensor four times as large as the memory that the program may use, and the fit that the tensor in memory has.
#[test]
fn cp_of_a_file_larger_than_memory() {
    const LIMIT: usize = 96;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (file, out) = (dir.path().join("large.tnsb"), dir.path().join("out"));
    let tensor = skewed::<f32>(&[2000, 1000, 3000], LIMIT * 4 * (1 << 20) / 16, 1).expect("a tensor");
    write_tensor(&file, &tensor).expect("a file");
    drop(tensor);
    assert!(file.metadata().expect("a file").len() >= ((4 * LIMIT) << 20) as u64);
    let args = ["cp", "--tensor", name(&file), "--rank", "8", "--iters", "2", "--tol", "0", "--dtype", "f32", "--json"];
    let args = [&args[..], &["--threads", "2", "--out", name(&out)]].concat();
    let fit = |output: Output| {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        report["fit"].as_f64().expect("a number")
    };
    let streamed = fit(limited(LIMIT, &[&args[..], &["--memory", "32"]].concat()));
    let loaded = fit(Command::new(env!("CARGO_BIN_EXE_sparsimd")).args(&args).output().expect("the program"));
    assert!((streamed - loaded).abs() < 1e-4, "{streamed} {loaded}");
    // MTTKRP: the same product of the last mode, whose file has the numbers of a run in memory.
    let product = |folder: &str, more: &[&str], limit: Option<usize>| {
        let out = dir.path().join(folder);
        let args = [
            "mttkrp",
            "--tensor",
            name(&file),
            "--rank",
            "8",
            "--mode",
            "2",
            "--repeat",
            "1",
            "--threads",
            "2",
            "--out",
            name(&out),
        ];
        let args = [&args[..], more].concat();
        let done = limit.map_or_else(
            || Command::new(env!("CARGO_BIN_EXE_sparsimd")).args(&args).output().expect("the program"),
            |mib| limited(mib, &args),
        );
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        read_dense::<f32>(&out.join("mode2.npy"), ReadOptions::default()).expect("a matrix")
    };
    let (passes, whole) = (product("passes", &["--passes", "32"], Some(LIMIT)), product("whole", &[], None));
    assert_eq!((passes.rows(), passes.cols()), (3000, 8));
    // Rows of some thousand products of three numbers below 1/2.
    let near = |(a, b): (&[f32], &[f32])| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-2);
    assert!(passes.iter_rows().zip(whole.iter_rows()).all(near) && whole.iter_rows().flatten().any(|x| x.abs() > 1.0));
    for more in [["--format", "coo"], ["--device", "gpu"]] {
        let args = ["mttkrp", "--tensor", name(&file), "--passes", "32"];
        assert_eq!(limited(LIMIT, &[&args[..], &more].concat()).status.code(), Some(2));
    }
    // Without passes there is not enough memory, and too little for passes is said.
    assert_eq!(limited(LIMIT, &args).status.code(), Some(2));
    let little = limited(LIMIT, &[&args[..], &["--memory", "1"]].concat());
    assert!(String::from_utf8_lossy(&little.stderr).contains("memory: 1 MiB; "), "{little:?}");
    for more in [["--method", "opt"], ["--device", "gpu"]] {
        assert_eq!(limited(LIMIT, &[&args[..], &["--memory", "32"], &more].concat()).status.code(), Some(2));
    }
}

/// TTM of a tensor four times as large as the memory that the program may use, and the product that it has in memory.
#[test]
fn ttm_of_a_file_larger_than_memory() {
    const LIMIT: usize = 96;
    // Fibers of the last mode, of every eighth place from one of the first eight on.
    const DIMS: [usize; 3] = [41, 500, 10_000];
    const FIBER: usize = DIMS[2] / 8;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("large.tnsb");
    let nnz = DIMS[0] * DIMS[1] * FIBER;
    let coords = |of: &dyn Fn(usize) -> usize| (0..nnz).map(|p| of(p) as u32).collect::<Vec<_>>();
    let fiber = |p: usize| p / FIBER;
    let all = vec![
        coords(&|p| fiber(p) / DIMS[1]),
        coords(&|p| fiber(p) % DIMS[1]),
        coords(&|p| p % FIBER * 8 + fiber(p) % 8),
    ];
    let values = (0..nnz).map(|p| (p % 7) as f32 - 2.0).collect();
    write_tensor(&file, &CooTensor::new(DIMS.to_vec(), all, values).expect("a tensor")).expect("a file");
    assert!(file.metadata().expect("a file").len() >= ((4 * LIMIT) << 20) as u64);
    let args = |mode: &'static str| {
        let args = ["ttm", "--tensor", name(&file), "--rank", "8", "--mode", mode, "--repeat", "1", "--threads", "2"];
        args.map(str::to_owned)
    };
    let run = |limit: Option<usize>, mode: &'static str, more: &[&str]| {
        let args = args(mode);
        let args: Vec<&str> = args.iter().map(String::as_str).chain(more.iter().copied()).collect();
        limit.map_or_else(
            || Command::new(env!("CARGO_BIN_EXE_sparsimd")).args(&args).output().expect("the program"),
            |mib| limited(mib, &args),
        )
    };
    let product = |folder: &str, limit: Option<usize>, more: &[&str]| {
        let out = dir.path().join(folder);
        let done = run(limit, "2", &[&["--out", name(&out)][..], more].concat());
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let mut y = read_tns::<f32>(&out.join("mode2.tns"), false, ReadOptions::default()).expect("a tensor");
        y.sort(&[0, 1, 2]).expect("a tensor");
        y
    };
    let (passes, whole) = (product("passes", Some(LIMIT), &["--passes", "32"]), product("whole", None, &[]));
    assert_eq!((passes.dims(), passes.nnz()), (&[DIMS[0], DIMS[1], 8][..], DIMS[0] * DIMS[1] * 8));
    assert!(passes.all_coords() == whole.all_coords());
    // Sums of a thousand products of a number up to 4 and one below 1/2, in two orders.
    assert!(passes.values().iter().zip(whole.values()).all(|(a, b)| (a - b).abs() < 1e-2));
    assert!(whole.values().iter().any(|x| x.abs() > 1.0));
    // Compared with loops, where memory has all of it.
    assert!(run(None, "2", &["--passes", "64", "--verify"]).status.success());
    // Without passes there is not enough memory; too little for passes, and another order, are said.
    let refused = |limit: usize, mode: &'static str, more: &[&str]| {
        let out = run(Some(limit), mode, more);
        assert_eq!(out.status.code(), Some(2), "{more:?}: {out:?}");
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    assert!(refused(LIMIT, "2", &[]).contains("bytes of memory"));
    assert!(refused(LIMIT, "2", &["--passes", "1"]).contains("memory: 1 MiB; "));
    assert!(refused(LIMIT, "0", &["--passes", "32"]).contains("not in order with mode 0 last"));
    for more in [["--format", "csf-all"], ["--alg", "element"], ["--device", "gpu"]] {
        assert!(refused(LIMIT, "2", &[&["--passes", "32"], &more[..]].concat()).contains("passes: "), "{more:?}");
    }
}

/// SpMM and SDDMM of a matrix and a dense operand that together are four times as large as the memory that the program may use, and
/// the results of runs in memory.
#[test]
fn matrices_larger_than_memory() {
    const LIMIT: usize = 96;
    const COLUMNS: usize = 48;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| dir.path().join(name);
    let (a, b, c) = (file("a.tnsb"), file("b.npy"), file("c.npy"));
    let dims = [3000, 500_000];
    let mut matrix = skewed::<f32>(&dims, 26_000_000, 1).expect("a matrix");
    matrix.sort(&[0, 1]).expect("a matrix");
    write_tensor(&a, &matrix).expect("a file");
    drop(matrix);
    for (path, rows) in [(&b, dims[1]), (&c, dims[0])] {
        let dense: Mat<f32> = uniform_dense(rows, COLUMNS, 3).expect("a matrix");
        write_dense(path, dense.as_ref()).expect("a file");
    }
    let bytes = |path: &Path| path.metadata().expect("a file").len();
    assert!(bytes(&a) + bytes(&b) >= ((4 * LIMIT) << 20) as u64);
    let program =
        |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_sparsimd")).args(args).output().expect("the program");
    let operands: [&[&str]; 2] = [&["spmm"], &["sddmm", "--edge", "scale", "--c", name(&c)]];
    for op in operands {
        let args = [op, &["--matrix", name(&a), "--b", name(&b), "--dtype", "f32", "--threads", "2"]].concat();
        let result = |folder: &str, more: &[&str], limit: Option<usize>| {
            let out = file(&format!("{folder}.npy"));
            let args = [&args[..], more, &["--out", name(&out)]].concat();
            let done = limit.map_or_else(|| program(&args), |mib| limited(mib, &args));
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            read_dense::<f32>(&out, ReadOptions::default()).expect("a matrix")
        };
        let (passes, whole) = (result("passes", &["--passes", "40"], Some(LIMIT)), result("whole", &[], None));
        assert_eq!((passes.rows(), passes.cols()), (whole.rows(), whole.cols()));
        // Rows of some ten thousand products of two numbers below 1/2, in two orders.
        let near = |(a, b): (&[f32], &[f32])| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-2);
        assert!(passes.iter_rows().zip(whole.iter_rows()).all(near));
        assert!(whole.iter_rows().flatten().any(|x| x.abs() > 0.1));
        // Without passes there is not enough memory, and too little for passes is said.
        assert_eq!(limited(LIMIT, &args).status.code(), Some(2));
        let refused = |more: &[&str]| {
            let out = limited(LIMIT, &[&args[..], more].concat());
            assert_eq!(out.status.code(), Some(2), "{more:?}: {out:?}");
            String::from_utf8_lossy(&out.stderr).into_owned()
        };
        assert!(refused(&["--passes", "1"]).contains("memory: 1 MiB; "));
        for more in [["--path", "panel"], ["--device", "gpu"], ["--reorder", "rcm"], ["--effort", "measure"]] {
            assert!(refused(&[&["--passes", "40"], &more[..]].concat()).contains("passes: "), "{more:?}");
        }
        assert!(refused(&["--passes", "40", "--out", "c.txt"]).contains("out: c.txt"));
    }
    for more in [["--reduce", "max"], ["--semiring", "min-plus"]] {
        let args = [&["spmm", "--matrix", name(&a), "--b", name(&b), "--passes", "40"], &more[..]].concat();
        assert_eq!(limited(LIMIT, &args).status.code(), Some(2));
    }
    let args = ["sddmm", "--matrix", name(&a), "-n", "8", "--passes", "40", "--elementwise", "add"];
    assert_eq!(limited(LIMIT, &args).status.code(), Some(2));
}

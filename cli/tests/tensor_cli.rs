//! The tensor commands as a user runs them: output, files, errors in one line, exit status.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use sparsimd::Mat;
use sparsimd::io::{ReadOptions, read_dense, write_dense};

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
    // Told as it ran: one slice along the last mode has one fiber, too few for the threads.
    for (tensor, alg) in [("skew:1x1x900:200", "element"), ("skew:90x80x9:2000", "fiber")] {
        let report = json(&["ttm", "--generate", tensor, "--mode", "2", "--rank", "64", "--repeat", "1", "--json"]);
        assert_eq!(report["alg"], serde_json::json!([alg]), "{tensor}");
    }
    check(&["ttm", "--alg", "fiber"], 3);
    for op in ["add", "sub", "mul", "div"] {
        check(&["tew", "--op", op], 0);
        check(&["ts", "--op", op, "--format", "hicoo", "--dtype", "f64"], 0);
    }
}

#[test]
fn tensors_of_different_shapes_meet_element_by_element() {
    let dir = tempfile::tempdir().unwrap();
    let mut name = String::new();
    let z = path(dir.path(), "z.tns", &mut name);
    std::fs::write(z, "1 3 5 2.0\n1 50 60 1.0\n1 1 1 -4.5\n").unwrap();
    for (op, dtype) in [("add", "f32"), ("sub", "f64"), ("mul", "f32")] {
        let common = ["tew", "--generate", "skew:40x50x60:30000", "--with", z, "--op", op, "--dtype", dtype];
        let report = json(&[&common[..], &["--repeat", "1", "--verify", "--json"]].concat());
        assert_eq!((&report["verified"], &report["alg"]), (&true.into(), &serde_json::json!(["merge"])), "{report}");
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
    assert!(report["numa"]["reason"].is_string(), "{report}");
    let stats = json(&["stats", tns, "--json"]);
    assert_eq!(stats["nnz"], 2000);
    for mode in stats["modes"].as_array().unwrap() {
        for (bins, all) in [("slice_histogram", "slices"), ("fiber_histogram", "fibers")] {
            let sum: u64 = mode[bins].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
            assert_eq!(Some(sum), mode[all].as_u64());
        }
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

/// Every file of a folder, by name.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

/// Runs `args` until the file `checkpoint` is there, then sends the process the signal of that name.
#[cfg(unix)]
fn broken_off(args: &[&str], checkpoint: &Path, signal: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sparsimd"));
    let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while !checkpoint.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "no checkpoint after a minute");
        assert!(child.try_wait().unwrap().is_none(), "ended before its first checkpoint");
        std::thread::sleep(Duration::from_millis(1));
    }
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    child.wait_with_output().unwrap()
}

#[cfg(unix)]
#[test]
fn decompositions_go_on_where_they_were_killed_or_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let tensor = at("t.tnsb");
    stdout(&sparsimd(&["generate", "skew:60x50x40:20000", "--out", &tensor]));
    let other = at("other.tns");
    stdout(&sparsimd(&["convert", &tensor, &other]));
    let text = std::fs::read_to_string(&other).unwrap();
    let doubled = |line: &str| {
        let (place, value) = line.rsplit_once(' ').unwrap();
        format!("{place} {}\n", 2.0 * value.parse::<f64>().unwrap())
    };
    std::fs::write(&other, text.lines().map(doubled).collect::<String>()).unwrap();
    let (checkpoint, whole, rest) = (at("state"), at("whole"), at("rest"));
    for (command, iterations) in [("cp", "600"), ("tucker", "300")] {
        let common = [command, "--tensor", &tensor, "--rank", "4", "--iters", iterations, "--tol", "0", "--seed", "1"];
        let common = [&common[..], &["--threads", "2", "--json"]].concat();
        let other = [command, "--tensor", &other];
        let report = json(&[&common[..], &["--out", &whole]].concat());
        assert_eq!((report["iterations"].to_string().as_str(), &report["interrupted"]), (iterations, &false.into()));
        let products = if command == "cp" { "mttkrp_s" } else { "ttm_s" };
        let times = [products, "iterations_s", "seconds"].map(|key| report[key].as_f64().unwrap());
        assert!(0.0 < times[0] && times.is_sorted(), "each is a part of the next: {times:?}");
        let kept = [&common[..], &["--out", &rest, "--checkpoint", &checkpoint, "--every", "5"]].concat();
        for signal in ["-KILL", "-INT", "-TERM"] {
            let output = broken_off(&kept, checkpoint.as_ref(), signal);
            if signal == "-KILL" {
                assert!(!output.status.success(), "it had already ended");
            } else {
                // What there is was written, and the command says that it is not all.
                assert_eq!(output.status.code(), Some(130), "{command} {signal}");
                let words = String::from_utf8(output.stderr).unwrap();
                assert!(words.contains("interrupted after") && words.contains("--resume"), "{words}");
                let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                assert_eq!(report["interrupted"], true);
                assert!(report["iterations"].as_u64().unwrap() < iterations.parse().unwrap());
                assert_eq!(files(rest.as_ref()).len(), files(whole.as_ref()).len());
            }
            let report = json(&[&kept[..], &["--resume"]].concat());
            assert_eq!(report["iterations"].to_string(), iterations);
            assert!(files(rest.as_ref()) == files(whole.as_ref()), "{command} {signal}");
            // Of other values at the same places it is refused.
            let text = refused(&[&other[..], &kept[3..], &["--resume"]].concat());
            assert!(text.contains("other entries"), "{text}");
            std::fs::remove_file(&checkpoint).unwrap();
        }
    }
}

#[test]
fn mttkrp_in_every_format_and_algorithm() {
    let common = ["--generate", "skew:40x50x60x7:3000", "--repeat", "2", "--verify", "--json", "--threads", "2"];
    let run = |extra: &[&str]| {
        let report = json(&[&["mttkrp"], &common[..], extra].concat());
        assert_eq!(report["verified"], true, "{extra:?}: {report}");
        assert!(report["mode_min_s"].as_array().unwrap().iter().all(|s| s.as_f64().unwrap() > 0.0));
        report
    };
    for format in
        ["auto", "coo", "csf-all", "csf-one", "csf-two", "bcsf", "mmcsf", "hicoo", "alto", "tiled", "tree", "joint"]
    {
        let report = run(&["--format", format, "--rank", "9"]);
        assert!(format == "auto" || report["format"].as_array().unwrap().iter().all(|f| f == format), "{report}");
        run(&["--format", format, "--mode", "2", "--dtype", "f64"]);
    }
    let report = run(&["--format", "joint"]);
    assert!(report["alg"].as_array().unwrap().iter().all(|a| a == "joint"), "{report}");
    for alg in ["element", "row", "slice", "fiber", "nonzero"] {
        let report = run(&["--alg", alg]);
        assert!(report["alg"].as_array().unwrap().iter().all(|a| a == alg), "{report}");
    }
    let fibers =
        |partition: &str| run(&["--format", "mmcsf", "--partition", partition])["index_bytes"].as_u64().unwrap();
    assert!(fibers("dynamic") <= fibers("static") && fibers("dynamic") <= fibers("1"));
    refused(&["mttkrp", "--generate", "skew:4x5x6:9", "--format", "mmcsf", "--partition", "3"]);
    refused(&["mttkrp", "--generate", "skew:4x5x6:9", "--partition", "static"]);
    let bytes = |limits: &str| run(&["--format", "bcsf", "--limits", limits])["index_bytes"].as_u64().unwrap();
    assert!(bytes("2:16") > bytes("128:16") && bytes("128:16") > bytes("128:4096"));
    for limits in ["0:16", "16:0", "16", "16:x"] {
        refused(&["mttkrp", "--generate", "skew:4x5x6:9", "--format", "bcsf", "--limits", limits]);
    }
    refused(&["mttkrp", "--generate", "skew:4x5x6:9", "--limits", "2:16"]);
    let report = run(&["--format", "csf-all", "--alg", "element", "--rank", "40"]);
    assert!(report["alg"].as_array().unwrap().iter().all(|a| a == "element"), "{report}");
    for [format, alg] in [["hicoo", "row"], ["csf-one", "slice"], ["alto", "fiber"], ["tiled", "element"]] {
        refused(&["mttkrp", "--generate", "skew:4x5x6:9", "--format", format, "--alg", alg]);
    }
}

#[test]
fn index_bytes_are_those_of_the_arrays() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = String::new();
    let file = path(dir.path(), "x.tns", &mut store);
    // Two slices of mode 0; fibers along mode 2: (0, 0) of three nonzeros, (0, 1) of one, (1, 1) of one.
    std::fs::write(file, "1 1 1 1.0\n1 1 2 1.0\n1 1 4 1.0\n1 2 2 1.0\n2 2 3 1.0\n").unwrap();
    let stats = json(&["stats", file, "--json"]);
    let of =
        |format: &str| stats["storage"].as_array().unwrap().iter().find(|s| s["format"] == format).unwrap().clone();
    // Coordinates of 4 bytes for every node, pointers of 8 for every node above the leaves and one more per level.
    let csf = |slices: u64, fibers: u64| 4 * (slices + fibers + 5) + 8 * (slices + 1 + fibers + 1);
    assert_eq!(of("coo")["index_bytes"], 5 * 3 * 4);
    assert_eq!(of("csf-one")["index_bytes"], csf(2, 3));
    // Rooted at mode 0: (0), (1) and three fibers; at mode 1: two slices, (0, 0), (1, 0), (1, 1); at mode 2: four slices,
    // then mode 0: 4 fibers.
    assert_eq!(of("csf-all")["index_bytes"], csf(2, 3) + csf(2, 3) + csf(4, 4));
    assert_eq!(of("csf-two")["index_bytes"], csf(2, 3) + csf(4, 4));
    let mm = of("mmcsf");
    let trees = mm["trees"].as_array().unwrap();
    let nodes = |tree: &serde_json::Value| {
        let level = |l: usize| tree["nodes"][l].as_u64().unwrap();
        4 * (level(0) + level(1) + level(2)) + 8 * (level(0) + 1 + level(1) + 1)
    };
    assert_eq!(mm["index_bytes"], trees.iter().map(nodes).sum::<u64>());
    assert_eq!(trees.iter().map(|tree| tree["nodes"][2].as_u64().unwrap()).sum::<u64>(), 5);
    let share = mm["index_bytes"].as_f64().unwrap() / of("csf-one")["index_bytes"].as_f64().unwrap();
    assert!((mm["of_csf_one"].as_f64().unwrap() - share).abs() < 1e-12);
    assert_eq!(of("csf-all")["of_csf_all"], 1.0);
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
        &["ttm", "--numa", "replicate"],
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
    assert!(refused(&["tucker", "--tensor", good, "--rank", "1", "--nonneg", "--out", out]).contains("orthonormal"));
    for extra in [&["--resume"][..], &["--every", "3"], &["--checkpoint", bad, "--every", "0"]] {
        refused(&[&["cp", "--tensor", good, "--rank", "1", "--out", out], extra].concat());
    }
    // A file that is no checkpoint.
    for command in ["cp", "tucker"] {
        refused(&[command, "--tensor", good, "--rank", "1", "--out", out, "--checkpoint", bad, "--resume"]);
    }
}

#[test]
fn decompositions_refuse_what_is_not_finite() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nan.tns");
    std::fs::write(&file, "1 1 1.0\n2 2 nan\n").unwrap();
    let (file, out) = (file.to_str().unwrap(), dir.path().join("out"));
    for command in ["cp", "tucker"] {
        let args = [command, "--tensor", file, "--rank", "1", "--out", out.to_str().unwrap()];
        assert!(refused(&args).contains("nan.tns:2: entry 2: the value NaN is not finite"));
        for tol in ["nan", "inf"] {
            assert!(refused(&[&args[..], &["--tol", tol]].concat()).contains("tol: "));
        }
    }
}

#[test]
fn every_method_of_cp_and_the_power_method_go_on_from_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    // Counts, and the same for every order of the modes.
    let tensor = at("t.tns");
    let count = |i: usize, j: usize, k: usize| i * j * k * (i + j + k) % 7;
    let places = (1..9).flat_map(|i| (1..9).flat_map(move |j| (1..9).map(move |k| (i, j, k))));
    let lines =
        places.filter(|&(i, j, k)| count(i, j, k) > 0).map(|(i, j, k)| format!("{i} {j} {k} {}\n", count(i, j, k)));
    std::fs::write(&tensor, lines.collect::<String>()).unwrap();
    for (name, method, option) in [
        ("als", &["cp", "--method", "als"][..], "--iters"),
        ("opt", &["cp", "--method", "opt"], "--iters"),
        ("apr", &["cp", "--method", "apr"], "--iters"),
        ("power", &["power"], "--rank"),
    ] {
        let rank: &[&str] = if name == "power" { &["--iters", "200"] } else { &["--rank", "4"] };
        let common = [method, rank, &["--tensor", &tensor, "--tol", "1e-9", "--seed", "1", "--json"]].concat();
        let (whole, rest, checkpoint) = (at(&format!("{name}-whole")), at(&format!("{name}-rest")), at(name));
        let report = json(&[&common[..], &[option, "6", "--out", &whole]].concat());
        assert_eq!(report["iterations"], 6, "{report}");
        assert!(report["fit"].as_f64().unwrap() > 0.0, "{report}");
        assert_eq!(report["violation"].is_number(), name != "als", "{report}");
        assert_eq!(report["objective"].is_number(), matches!(name, "opt" | "apr"), "{report}");
        let kept = [&common[..], &["--out", &rest, "--checkpoint", &checkpoint, "--every", "1"]].concat();
        json(&[&kept[..], &[option, "4"]].concat());
        let report = json(&[&kept[..], &[option, "6", "--resume"]].concat());
        assert_eq!(report["iterations"], 6, "{report}");
        assert_eq!(files(whole.as_ref()), files(rest.as_ref()), "{name}");
    }
    let out = at("out");
    let cp = ["cp", "--tensor", &tensor, "--rank", "2", "--out", &out, "--method"];
    assert!(refused(&[&cp[..], &["opt", "--nonneg"]].concat()).contains("nonnegative"));
    assert!(refused(&[&cp[..], &["apr", "--ridge", "1"]].concat()).contains("ridge"));
    assert!(refused(&[&cp[..], &["apr", "--device", "gpu"]].concat()).contains("device"));
    assert!(refused(&["power", "--tensor", &tensor, "--rank", "2", "--out", &out, "--nonneg"]).contains("nonneg"));
    assert!(stdout(&sparsimd(&[&cp[..], &["apr"]].concat())).contains("violation"));
}

#[test]
fn factors_go_in_and_out_as_numpy_files() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    // X has 2 at (0, 1, 0), 3 at (1, 0, 1) and 4 at (1, 2, 1).
    std::fs::write(at("x.tns"), "1 2 1 2\n2 1 2 3\n2 3 2 4\n").unwrap();
    let (x, factors, out) = (at("x.tns"), at("factors"), at("out"));
    std::fs::create_dir(&factors).unwrap();
    let factor = |mode: usize| Mat::<f32>::from_fn([2, 3, 2][mode], 2, |i, r| (1 + i + 2 * r + mode) as f32).unwrap();
    (0..3).for_each(|mode| {
        write_dense(&Path::new(&factors).join(format!("mode{mode}.npy")), factor(mode).as_ref()).unwrap()
    });
    let run = ["--tensor", &x, "--factors", &factors, "--out", &out, "--repeat", "1", "--verify", "--json"];
    let report = json(&[&["mttkrp"], &run[..]].concat());
    assert_eq!((&report["rank"], &report["verified"]), (&2.into(), &true.into()));
    let product: Mat<f64> = read_dense(&Path::new(&out).join("mode0.npy"), ReadOptions::default()).unwrap();
    let (b, c) = (factor(1), factor(2));
    for r in 0..2 {
        assert_eq!(product.row(0)[r] as f32, 2.0 * b.row(1)[r] * c.row(0)[r]);
        assert_eq!(product.row(1)[r] as f32, 3.0 * b.row(0)[r] * c.row(1)[r] + 4.0 * b.row(2)[r] * c.row(1)[r]);
    }
    for format in ["coo", "csf-all", "hicoo"] {
        json(&[&["ttm", "--mode", "1", "--format", format], &run[..]].concat());
        // Two fibers of mode 1, at (0, 0) and (1, 1), each a row of R numbers.
        let text = std::fs::read_to_string(Path::new(&out).join("mode1.tns")).unwrap();
        let entry = |i: usize, r: usize, k: usize, x: f32| format!("{i} {} {k} {x:?}", r + 1);
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        let sums = |r: usize| [2.0 * b.row(1)[r], 3.0 * b.row(0)[r] + 4.0 * b.row(2)[r]];
        let mut expected: Vec<_> =
            (0..2).flat_map(|r| [entry(1, r, 1, sums(r)[0]), entry(2, r, 2, sums(r)[1])]).collect();
        expected.sort();
        assert_eq!(lines, expected, "{format}");
    }
    std::fs::remove_file(Path::new(&out).join("mode1.npy")).unwrap();
    assert!(refused(&["mttkrp", "--tensor", &x, "--factors", &out]).contains("mode1"));
    let swapped = at("swapped");
    std::fs::create_dir(&swapped).unwrap();
    (0..3).for_each(|mode| {
        write_dense(&Path::new(&swapped).join(format!("mode{mode}.npy")), factor(2 - mode).as_ref()).unwrap()
    });
    write_dense(&Path::new(&swapped).join("mode1.npy"), factor(0).as_ref()).unwrap();
    let text = refused(&["mttkrp", "--tensor", &x, "--factors", &swapped]);
    assert!(text.contains("factors: ") && text.contains("mode1.npy is 2 x 2 where mode 1 asks for 3 x 2"), "{text}");
    assert!(refused(&["ttm", "--tensor", &x, "--factors", &at("none")]).contains("none has no mode0.npy"));
    assert!(refused(&["ttm", "--tensor", &x, "--factors", &factors, "--rank", "2"]).contains("--rank"));

    // Decompositions: text and binary files have the same numbers, and each is what another run can begin from.
    for (command, other, shape) in [("cp", "lambda", "(2,)"), ("tucker", "core", "(2, 2, 2)")] {
        let (text, binary, again) =
            (at(&format!("{command}.t")), at(&format!("{command}.b")), at(&format!("{command}.a")));
        let run = [command, "--tensor", &x, "--rank", "2", "--iters", "5", "--seed", "3", "--json", "--out"];
        let first = json(&[&run[..], &[&text]].concat());
        json(&[&run[..], &[&binary, "--npy"]].concat());
        assert_eq!(files(text.as_ref()).len(), files(binary.as_ref()).len());
        for mode in 0..3 {
            let read = |dir: &str, ending: &str| -> Mat<f64> {
                read_dense(&Path::new(dir).join(format!("mode{mode}.{ending}")), ReadOptions::default()).unwrap()
            };
            let (a, b) = (read(&text, "txt"), read(&binary, "npy"));
            assert!(a.iter_rows().eq(b.iter_rows()), "{command}");
        }
        let bytes = std::fs::read(Path::new(&binary).join(format!("{other}.npy"))).unwrap();
        let header = String::from_utf8_lossy(&bytes[10..128]).into_owned();
        assert!(header.contains(&format!("'shape': {shape}")), "{header}");
        let run =
            [command, "--tensor", &x, "--rank", "2", "--iters", "5", "--init", &binary, "--json", "--out", &again];
        assert!(json(&run)["fit"].as_f64().unwrap() >= first["fit"].as_f64().unwrap() - 1e-6);
    }
}

/// A conversion that is killed or interrupted leaves neither a part of its result nor a temporary file.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_conversion_leaves_nothing() {
    use std::os::unix::process::CommandExt;

    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    // Compressing that takes seconds.
    stdout(&sparsimd(&["generate", "uniform:3000x3000@0.2", "--dtype", "f64", "--out", &at("a.mtx")]));
    for signal in ["-INT", "-TERM", "-KILL"] {
        let args = ["convert", &at("a.mtx"), &at("b.mtx.gz")];
        let mut command = Command::new(env!("CARGO_BIN_EXE_sparsimd"));
        command.args(args).stdout(Stdio::piped());
        // A shell's background jobs ignore SIGINT, and so would their children.
        let interruptible = || {
            // SAFETY: a signal's default action is set; nothing else runs here.
            unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
            Ok(())
        };
        // SAFETY: between fork and exec, `signal` alone is called, which is safe there.
        let mut child = unsafe { command.pre_exec(interruptible) }.spawn().unwrap();
        // Until it has written something: its temporary file is open, and nothing else is in this folder.
        let fds = format!("/proc/{}/fd", child.id());
        let writes = || {
            let links = std::fs::read_dir(&fds)
                .into_iter()
                .flatten()
                .flatten()
                .filter_map(|fd| std::fs::read_link(fd.path()).ok());
            links.into_iter().any(|file| file.starts_with(dir.path()) && !file.ends_with("a.mtx"))
        };
        let start = Instant::now();
        while !writes() {
            assert!(start.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none(), "it never wrote");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        assert!(!child.wait().unwrap().success(), "{signal}: it had already ended");
        let left: Vec<_> = files(dir.path()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(left, ["a.mtx"], "{signal}");
    }
}

//! `info` and `topology` on the command line.

use std::process::{Command, Output};

use serde_json::Value;
use sparsimd::Machine;

#[path = "../../tests/common/skip.rs"]
mod skip;

use skip::{Missing, skip};

fn sparsimd(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sparsimd")).args(args).output().expect("the program starts")
}

fn info(args: &[&str]) -> Value {
    let output = sparsimd(&[&["info", "--json"], args].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// The one line on standard error of a command that must fail with status 2.
fn refusal(args: &[&str]) -> String {
    let output = sparsimd(args);
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!((output.status.code(), output.stdout.len(), text.lines().count()), (Some(2), 0, 1), "{text}");
    text
}

#[test]
fn info_is_the_detected_machine() {
    let machine = Machine::detect();
    let info = info(&[]);
    assert_eq!(info["cores"], machine.cores());
    assert_eq!(info["allowed"], machine.allowed().to_string());
    assert_eq!(info["l2_bytes"], machine.l2_bytes());
    assert_eq!(info["nodes"].as_array().unwrap().len(), machine.nodes().len());
    assert_eq!(info["hwloc"], cfg!(feature = "hwloc"));
    let text = String::from_utf8(sparsimd(&["info"]).stdout).unwrap();
    assert!(text.contains(machine.processor()), "{text}");
}

#[test]
fn info_of_a_described_machine() {
    let info = info(&["--machine", "numa:2(memory=4GB) core:8 pu:2"]);
    assert_eq!((&info["source"], &info["numa_nodes"], &info["cores"]), (&"described".into(), &2.into(), &16.into()));
    assert_eq!(info["nodes"][1]["cpus"], "16-31");
    assert_eq!(info["nodes"][1]["memory_bytes"], 4u64 << 30);
    assert_eq!(info["allowed"], "0-31");
    assert_eq!((&info["allowed_memory"], &info["nodes"][1]["memory_allowed"]), (&"0-1".into(), &true.into()));
    assert!(info["memory_policy"].is_null(), "it has no processes");
}

/// `taskset -c 1`, by the same system call.
#[cfg(target_os = "linux")]
#[test]
fn restrictions_show() {
    use std::os::unix::process::CommandExt;
    let last = Machine::detect().allowed().iter().last().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sparsimd"));
    let bind = move || {
        let bound = core_affinity::set_for_current(core_affinity::CoreId { id: last });
        if bound { Ok(()) } else { Err(std::io::Error::other("not bound")) }
    };
    // SAFETY: the closure makes one system call and touches no lock or memory of other threads.
    let output = unsafe { command.args(["info", "--json"]).pre_exec(bind) }.output().unwrap();
    let info: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&info["allowed"], &info["threads"]), (&last.to_string().into(), &1.into()));
    let allowed: Vec<_> = info["nodes"].as_array().unwrap().iter().map(|node| &node["allowed_cpus"]).collect();
    assert_eq!(allowed.into_iter().filter(|cpus| *cpus != "").collect::<Vec<_>>(), [&Value::from(last.to_string())]);
    assert_eq!(info["hardware_threads"], Machine::detect().threads().len(), "the rest stays visible");
}

#[test]
fn topology_shows_the_binding() {
    let output = sparsimd(&["topology", "--machine", "numa:2 core:2 pu:1", "--pin", "scatter", "--threads", "3"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for line in ["processor 0 <- thread 0", "processor 2 <- thread 1", "processor 1 <- thread 2", "processor 3\n"] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    assert_eq!(text.matches("NUMA node").count(), 2);
    let output = sparsimd(&["topology", "--machine", "core:2", "--threads", "5"]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("3 of 5 threads are not bound"));
    assert!(sparsimd(&["topology"]).status.success());
}

#[test]
fn topology_shows_who_would_own_which_rows() {
    let matrix = ["--matrix", concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/pyfr_p6hex_m460.mtx")];
    let text = |args: &[&str]| {
        let output = sparsimd(&[&["topology"], &matrix[..], args].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let four = text(&["--machine", "numa:4 core:2", "--numa", "replicate"]);
    let numbers = |line: &str| -> Vec<usize> { line.split_whitespace().filter_map(|word| word.parse().ok()).collect() };
    let parts: Vec<_> = four.lines().filter(|line| line.contains("nonzeros") && line.starts_with("node")).collect();
    let parts: Vec<_> = parts.into_iter().map(numbers).collect();
    assert_eq!(parts.len(), 4, "{four}");
    // Node, rows, nonzeros: the longest row of this matrix has 49.
    assert_eq!(parts.iter().map(|part| part[1]).sum::<usize>(), 1029);
    assert_eq!(parts.iter().map(|part| part[2]).sum::<usize>(), 7056);
    assert!(parts.iter().all(|part| part[2].abs_diff(7056 / 4) <= 49), "{four}");
    assert!(four.contains("copied to each node: as asked"), "{four}");
    assert!(text(&["--machine", "core:4"]).contains("all threads are on one node"));
    assert!(refusal(&["topology", "--matrix", "/nowhere.mtx"]).contains("/nowhere.mtx"));
    assert!(refusal(&["topology", "--numa", "off"]).contains("--matrix"));
}

#[test]
fn bad_machines_and_lists_are_one_line() {
    assert!(refusal(&["info", "--machine", "numa:2 blob:3"]).contains("'blob:3'"));
    assert!(refusal(&["topology", "--pin", "0,99999"]).contains("does not exist"));
    assert!(refusal(&["topology", "--pin", "nearby"]).contains("scatter"));
    assert!(refusal(&["topology", "--machine", "core:2", "--pin", "0,0"]).contains("twice"));
    refusal(&["topology", "--threads", "10000"]);
    assert!(refusal(&["topology", "--threads", "0", "--pin", "0"]).contains("0 is not a number of threads"));
    assert!(refusal(&["info", "--machine", "core:2", "--ceilings"]).contains("described"));
    assert!(refusal(&["info", "--fresh"]).contains("--ceilings"));
}

/// A folder that is removed at the end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sparsimd-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn rooflines_are_drawn_and_ceilings_remembered() {
    let folder = Folder::new("roofline");
    let out = folder.0.join("pictures/deep");
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sparsimd"));
        let output = command.args(args).env("XDG_CACHE_HOME", folder.0.join("cache")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    };
    let out_text = out.to_str().unwrap();
    for (input, labels) in [
        (["--random", "200x300@0.5"], &["SpMM", "SDDMM", "FusedMM"][..]),
        (["--generate", "skew:40x30x20:2000"], &["TEW", "TS", "TTV", "TTM", "MTTKRP"]),
    ] {
        let output = run(&[&["roofline", "--json", "--repeat", "3", "--out", out_text], &input[..]].concat());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let svg = std::fs::read_to_string(out.join("roofline.svg")).unwrap();
        let points = report["points"].as_array().unwrap();
        assert_eq!(points.len(), labels.len());
        for (point, label) in points.iter().zip(labels) {
            assert_eq!(point["label"], *label);
            assert!(point["gflops"].as_f64().unwrap() > 0.0 && point["intensity"].as_f64().unwrap() > 0.0, "{point}");
            assert!(svg.contains(&format!("{label} ")), "{label} is not in the picture");
        }
        for line in ["L1 ", "DRAM ", "multiply-add peak", "vector add peak"] {
            assert!(svg.contains(line), "{line} is not in the picture");
        }
        let png = std::fs::read(out.join("roofline.png")).unwrap();
        assert!(png.starts_with(b"\x89PNG") && png.len() > 10_000);
    }
    // MTTKRP's bytes are those of its format.
    let intensity = |format: &str| {
        let input = ["--generate", "skew:40x30x20:2000", "--format", format, "--mode", "0"];
        let output = run(&[&["roofline", "--json", "--repeat", "1", "--out", out_text], &input[..]].concat());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let point = report["points"].as_array().unwrap().last().unwrap().clone();
        assert_eq!((&point["label"], &point["format"]), (&"MTTKRP".into(), &format.into()), "{point}");
        point["intensity"].as_f64().unwrap()
    };
    assert!(intensity("csf-all") > 1.1 * intensity("alto"));
    match std::fs::read_dir(folder.0.join("cache/sparsimd")) {
        Ok(mut files) => {
            // Measured once above, read from disk now.
            let again = run(&["info", "--ceilings", "--json"]);
            assert!(again.stderr.is_empty(), "{}", String::from_utf8_lossy(&again.stderr));
            let info: Value = serde_json::from_slice(&again.stdout).unwrap();
            assert!(info["ceilings"]["fma_f32"]["all"].as_f64().unwrap() > 0.0);
            // A file that is not ours is measured anew instead of believed.
            std::fs::write(files.next().unwrap().unwrap().path(), "{}").unwrap();
            assert!(!run(&["info", "--ceilings"]).stderr.is_empty());
        }
        Err(_) => skip(Missing::Other, "other work on this machine: such ceilings are not kept"),
    }
    assert!(refusal(&["roofline", "--generate", "skew:4x3x2:5", "--mode", "3"]).contains("not a mode"));
    assert!(refusal(&["roofline", "--matrix", "/nowhere.mtx"]).contains("/nowhere.mtx"));
}

#[test]
fn fpga_boards_are_simulated() {
    let spec = ["--generate", "skew:40x50x60:3000", "--columns", "32", "--board", "arria10-gx1150"];
    for op in ["ttm", "mttkrp"] {
        let run = |extra: &[&str]| {
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_sparsimd"))
                .args([&["fpga", op][..], &spec, extra].concat())
                .output()
                .unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
        };
        let (code, text, errors) = run(&["--json", "--mode", "2"]);
        assert_eq!(code, Some(0), "{errors}");
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        let number = |key: &str| report[key].as_f64().unwrap();
        assert!(0.0 < number("model_s") && number("model_s") <= 1.001 * number("simulated_s"), "{report}");
        assert!((number("cycles") / 450e6 - number("simulated_s")).abs() < 1e-12, "{report}");
        assert!(run(&[]).1.contains("cycles"));
        for bad in [&["--clock", "0"][..], &["--mode", "3"], &["--elements", "1000"], &["--rows", "cache:x"]] {
            let (code, text, errors) = run(bad);
            assert_eq!((code, text.as_str(), errors.trim_end().lines().count()), (Some(2), "", 1), "{errors}");
        }
    }
}

/// The board's part is simulated, the processor's measured and verified; both take as long as the longer of the two.
#[test]
fn a_simulated_board_shares_the_work_with_the_processor() {
    let folder = tempfile::tempdir().unwrap();
    let one = folder.path().join("one.tns");
    std::fs::write(&one, "3 2 5 1.5\n").unwrap();
    let (one, skewed) = (["--tensor", one.to_str().unwrap()], ["--generate", "skew:200x50x60:9000"]);
    let shared = |op, source: &[&str], share| {
        let fixed = ["--columns", "16", "--share", share, "--repeat", "2", "--verify", "--json"];
        let output = sparsimd(&[&["fpga", op][..], source, &fixed].concat());
        assert!(output.status.success(), "{op} {source:?} {share}: {}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let number = |key: &str| report["shared"][key].as_f64().unwrap_or_else(|| panic!("{key}: {report}"));
        let [cpu, cpu_part, board_part, both] = ["cpu_s", "cpu_part_s", "simulated_part_s", "both_s"].map(number);
        assert_eq!(report["shared"]["verified"], true, "{report}");
        assert!(cpu > 0.0 && both == cpu_part.max(board_part), "{report}");
        (number("share"), report["simulated_s"].as_f64().unwrap(), cpu_part, board_part)
    };
    for op in ["ttm", "mttkrp"] {
        for source in [&skewed[..], &one] {
            let (share, _, cpu_part, board_part) = shared(op, source, "0");
            assert!(share == 0.0 && board_part == 0.0 && cpu_part > 0.0, "{op} {source:?}");
            let (share, board, cpu_part, board_part) = shared(op, source, "1");
            assert!(share == 1.0 && board_part == board && cpu_part == 0.0, "{op} {source:?}");
        }
        let (share, board, cpu_part, board_part) = shared(op, &skewed, "0.4");
        // A slice has at most a tenth of this tensor, and the cut is before it.
        assert!((0.3..=0.4).contains(&share) && cpu_part > 0.0, "{op}: {share}");
        assert!((0.7..1.3).contains(&(board_part / board / share)), "{op}: {board_part} of {board}");
        let (share, _, cpu_part, board_part) = shared(op, &skewed, "adaptive");
        assert!(0.0 < share && share < 1.0 && cpu_part > 0.0 && board_part > 0.0, "{op}: {share}");
        shared(op, &one, "adaptive");
    }
    let alone = ["fpga", "ttm", "--generate", "skew:40x50x60:3000", "--columns", "8"];
    let with = |extra: &[&'static str]| [&alone[..], extra].concat();
    let text = String::from_utf8(sparsimd(&with(&["--share", "0.5", "--repeat", "1"])).stdout).unwrap();
    assert!(text.contains("% on the board") && text.contains("simulated") && text.contains("not asked for"), "{text}");
    for bad in [&["--share", "2"][..], &["--share", "half"], &["--verify"], &["--share", "0.5", "--repeat", "0"]] {
        refusal(&with(bad));
    }
}

//! `--device` on every command as a user runs it. Without a device the tests are skipped.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

#[path = "../../tests/common/skip.rs"]
mod skip;

use skip::{Missing, skip};

fn sparsimd(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sparsimd")).args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = sparsimd(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(text.trim_end().lines().last().unwrap()).unwrap()
}

/// The message of a command that must fail with status 2 and one line.
fn refused(args: &[&str]) -> String {
    let output = sparsimd(args);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    message
}

/// The usable device that comes first, as `info` lists it.
fn device() -> Option<Value> {
    let info = json(&["info", "--json"]);
    let usable = |d: &&Value| d["missing"].as_array().unwrap().is_empty();
    let found = info["devices"].as_array().unwrap().iter().find(usable).cloned();
    if found.is_none() {
        skip(Missing::Device, format_args!("no device ({})", info["no_devices"]));
    }
    found
}

/// Runs a command on a device and checks what every report of one has.
fn on_device(name: &str, args: &[&str]) -> Value {
    let report = json(&[args, &["--repeat", "2", "--verify", "--json"]].concat());
    assert_eq!(report["verified"], true, "{args:?}: {report}");
    assert!(report["device"].as_str().unwrap().contains(name), "{args:?}: {report}");
    // Measured rates may leave a device nothing to do.
    let least = if args.contains(&"hetero:adaptive") { 0.0 } else { f64::MIN_POSITIVE };
    for key in ["upload_s", "download_s"] {
        assert!(report[key].as_f64().unwrap() >= least, "{key} of {args:?}: {report}");
    }
    report
}

/// A device's name and whether it has a clock and 64-bit floats.
fn features(device: &Value) -> (&str, bool, bool) {
    (device["name"].as_str().unwrap(), device["timestamps"] == true, device["float64"] == true)
}

#[test]
fn info_lists_devices_with_limits_and_features() {
    let Some(device) = device() else { return };
    for key in ["memory_bytes", "max_buffer_range", "max_allocation", "subgroup", "workgroup_memory"] {
        assert!(device[key].as_u64().unwrap() > 0, "{key}: {device}");
    }
    for key in ["kind", "vulkan", "driver"] {
        assert!(!device[key].as_str().unwrap().is_empty(), "{key}: {device}");
    }
    let text = String::from_utf8(sparsimd(&["info"]).stdout).unwrap();
    assert!(text.contains(device["name"].as_str().unwrap()), "{text}");
}

#[test]
fn matrix_operations() {
    let Some(device) = device() else { return };
    let (name, clock, double) = features(&device);
    let random = ["--random", "300x400@0.8", "-n", "33"];
    for place in ["gpu", "gpu:0", "hetero:adaptive", "hetero:0.4"] {
        for op in [&["spmm"][..], &["sddmm"], &["fusedmm", "--edge", "softmax"], &["fusedmm", "--edge", "scale"]] {
            let report = on_device(name, &[op, &random, &["--device", place]].concat());
            assert_eq!(report["path"], place.split(':').next().unwrap());
            if place != "hetero:adaptive" {
                assert_eq!(report["kernel_s"].as_f64().is_some_and(|s| s > 0.0), clock, "{report}");
            }
        }
    }
    on_device(name, &[&["sddmm", "--edge", "scale"], &random[..], &["--device", "gpu"]].concat());
    // A device has no panels.
    assert!(refused(&[&["spmm"], &random[..], &["--device", "gpu", "--path", "panel"]].concat()).contains("by rows"));
    on_device(name, &["fusedmm", "--random", "200x300@0.7", "-n", "600", "--device", "gpu"]);
    if double {
        on_device(name, &[&["spmm", "--dtype", "f64"], &random[..], &["--device", "gpu"]].concat());
    }
    for dtype in ["bf16", "f16"] {
        for op in [&["spmm"][..], &["sddmm", "--edge", "scale"], &["fusedmm", "--edge", "softmax"]] {
            for place in ["gpu", "hetero:0.4"] {
                on_device(name, &[op, &random[..], &["--dtype", dtype, "--device", place]].concat());
            }
        }
    }
    let named = format!("gpu:{name}");
    on_device(name, &["spmm", "--random", "9x9@0.5", "-n", "1", "--device", &named]);
    assert!(refused(&["spmm", "--random", "9x9@0.5", "-n", "1", "--device", "gpu:none such"]).contains("none such"));
    assert!(refused(&["spmm", "--random", "9x9@0.5", "-n", "1", "--device", "gpu:99"]).contains("99"));
}

/// The bench on a device, without the peer, and with one that only answers: a script that stands for the interpreter.
#[test]
fn bench_on_a_device() {
    let Some(device) = device() else { return };
    let (name, clock, _) = features(&device);
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let run = |args: &[&str], python: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sparsimd"));
        command.args(["bench", "esimd", "--quick", "--filter", "3k/1k/32/90%", "--device", "gpu"]).args(args);
        command.env("SPARSIMD_PYTHON", python).output().unwrap()
    };
    let results = |folder: &str| -> Value {
        serde_json::from_slice(&std::fs::read(Path::new(folder).join("results.json")).unwrap()).unwrap()
    };
    let plain = out("plain");
    let done = run(&["--peers", "none", "--device-peak", "1000", "--out", &plain], "");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let plain = results(&plain);
    assert!(plain["settings"]["device"].as_str().unwrap().contains(name));
    let cases = plain["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 3);
    for case in cases {
        let ours = &case["samples"][0];
        assert_eq!(
            (&case["wrong"], &ours["ours"], &case["peak_gflops"]),
            (&false.into(), &true.into(), &1000.0.into())
        );
        assert!(ours["error"].as_f64().unwrap() <= 1.0 && ours["min_s"].as_f64().unwrap() > 0.0);
        assert!(ours["figures"]["call ms"].as_f64().unwrap() >= 0.9e3 * ours["min_s"].as_f64().unwrap() || !clock);
        assert!(ours["figures"]["upload ms"].as_f64().unwrap() > 0.0);
    }
    assert!(cases.iter().all(|case| case["samples"][0]["detail"] == "by rows"), "{plain}");
    assert!(plain["summary"].as_array().unwrap().iter().any(|r| r["against"] == "FMA peak"));

    // Nobody there: named and left out.
    let absent = out("absent");
    let done = run(&["--out", &absent], "/nonexistent/python3");
    assert!(done.status.success() && String::from_utf8_lossy(&done.stderr).contains("cuSPARSE"));
    assert!(results(&absent)["absent"][0].as_str().unwrap().contains("/nonexistent/python3"));

    // One that answers twice and then fails.
    let script = folder.path().join("python3");
    let text = r#"#!/bin/sh
answer='{"min_s": 0.5, "median_s": 0.6, "cold_s": 0.7, "runs": 4}'
echo '{"detail": "a stand-in"}'
read request; echo "$answer"
read request
folder=$(echo "$request" | sed 's/.*"folder":"\([^"]*\)".*/\1/')
test -s "$folder/col" && echo "$answer"
read request; echo '{"failed": "enough"}'
"#;
    std::fs::write(&script, text).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let answered = out("answered");
        let done = run(&["--out", &answered], script.to_str().unwrap());
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let got = results(&answered);
        assert_eq!(got["settings"]["peers"]["cuSPARSE"], "a stand-in");
        for case in &got["cases"].as_array().unwrap()[..2] {
            let peer = &case["samples"][1];
            assert_eq!((&peer["name"], &peer["min_s"], &peer["runs"]), (&"cuSPARSE".into(), &0.5.into(), &4.into()));
            let rate = case["flops"].as_f64().unwrap() / 0.5e9;
            assert!((peer["gflops"].as_f64().unwrap() / rate - 1.0).abs() < 1e-9);
        }
        assert!(got["cases"][2]["notes"][0].as_str().unwrap().contains("enough"));
        assert!(got["summary"].as_array().unwrap().iter().any(|r| r["against"] == "cuSPARSE" && r["cases"] == 1));
    }
    let refused = |args: &[&str]| refused(&[&["bench"][..], args, &["--out", &out("refused")]].concat());
    assert!(refused(&["cp", "--device", "gpu"]).contains("processor"));
    assert!(refused(&["esimd", "--device", "gpu", "--peers", "mkl"]).contains("torch"));
    assert!(refused(&["esimd", "--device", "hetero"]).contains("not on both"));
}

/// The tensor suites, with the device and both sides beside the processor.
#[test]
fn tensor_suites_on_a_device() {
    let Some(device) = device() else { return };
    let (name, ..) = features(&device);
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let lines: String = (0..200).map(|p| format!("{} {} {} 1.5\n", p % 7 + 1, p / 7 % 5 + 1, p / 35 + 1)).collect();
    std::fs::write(data.join("small.tns"), lines).unwrap();
    // A row of more steps than Mesa's driver takes for one element: of MTTKRP in mode 0.
    let lines = (0..24000).map(|p| format!("{} {} {} 1.5\n", p / 9000 + 1, p % 100 + 1, p / 100 + 1));
    std::fs::write(data.join("small-long.tns"), lines.collect::<String>()).unwrap();
    for place in ["gpu", "hetero:0.4"] {
        for (suite, filter, formats) in [
            ("pasta", "small.tns", &["COO", "HiCOO", "CSF"][..]),
            ("mmcsf", "small.tns mode 1", &["coo", "csf-all", "mmcsf", "hicoo"]),
            ("sycl", "small", &["fiber-centric", "row-centric", "element-centric"]),
        ] {
            let out = folder.path().join(format!("{suite}-{place}"));
            let mut command = Command::new(env!("CARGO_BIN_EXE_sparsimd"));
            command.args(["bench", suite, "--quick", "--filter", filter, "--device", place]).arg("--data").arg(&data);
            let done = command.arg("--out").arg(&out).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            let results: Value = serde_json::from_slice(&std::fs::read(out.join("results.json")).unwrap()).unwrap();
            assert!(results["settings"]["device"].as_str().unwrap().contains(name), "{results}");
            for case in results["cases"].as_array().unwrap() {
                let samples = case["samples"].as_array().unwrap();
                let there: Vec<_> = samples
                    .iter()
                    .filter_map(|s| s["name"].as_str().unwrap().strip_suffix(&format!(", {place}")))
                    .collect();
                assert!(case["wrong"] == false && !there.is_empty(), "{case}");
                assert!(there.iter().all(|format| formats.contains(format)), "{there:?}");
                // What a device does not take is in the notes: the processor's time for it is no figure of a share.
                let element = format!("element-centric, {place}: ");
                let noted = case["notes"].as_array().unwrap().iter().any(|n| n.as_str().unwrap().starts_with(&element));
                let long = case["id"].as_str().unwrap().starts_with("MTTKRP small-long");
                assert_eq!(noted, suite == "sycl" && device["kind"] == "cpu" && long, "{case}");
                assert!(suite != "sycl" || there.contains(&"element-centric") != noted, "{there:?}");
                let blocked = suite == "pasta" && place == "gpu" && case["op"] == "MTTKRP";
                assert!(!blocked || there.contains(&"HiCOO"), "{there:?}");
                // The processor's own are there as well, and where shares are compared the device alone and the other kind of share.
                assert!(samples.len() > there.len(), "{case}");
                let has = |end: &str| samples.iter().any(|s| s["name"].as_str().unwrap().ends_with(end));
                assert_eq!(has(", hetero:adaptive") && has(", gpu"), suite == "sycl" && place != "gpu", "{case}");
            }
        }
    }
}

#[test]
fn operands_beyond_the_devices_memory_pass_through_it() {
    let Some(device) = device() else { return };
    let (name, ..) = features(&device);
    // B, and so D, are 3 MiB.
    let small = ["--random", "500x3000@0.97", "-n", "256", "--device", "gpu", "--device-memory", "1"];
    for op in [&["spmm"][..], &["sddmm"], &["sddmm", "--edge", "scale"], &["fusedmm", "--edge", "softmax"]] {
        let args = [op, &small].concat();
        on_device(name, &args);
        let text = sparsimd(&[&args[..], &["--repeat", "1"]].concat());
        assert!(String::from_utf8(text.stdout).unwrap().contains("in parts"), "{args:?}");
    }
}

#[test]
fn a_dense_operand_larger_than_a_kernel_can_see_is_cut() {
    let Some(device) = device() else { return };
    let (name, ..) = features(&device);
    // B is 146 MiB: more than what lavapipe shows a kernel.
    let report = on_device(name, &["spmm", "--random", "300x300000@0.9997", "-n", "128", "--device", "gpu"]);
    assert_eq!(report["k"], 300_000);
}

#[test]
fn tensor_operations() {
    let Some(device) = device() else { return };
    let (name, clock, double) = features(&device);
    let common = ["--generate", "skew:40x50x60:3000", "--rank", "9", "--threads", "2"];
    let check = |extra: &[&str], modes: usize| {
        let report = on_device(name, &[&extra[..1], &common, &["--device", "gpu"], &extra[1..]].concat());
        assert_eq!(report["mode"].as_array().unwrap().len(), modes);
        assert_eq!(report["kernel_s"].as_f64().is_some_and(|s| s > 0.0), clock, "{report}");
        report
    };
    for op in ["ttm", "ttv"] {
        for format in ["coo", "csf-all", "hicoo"] {
            check(&[op, "--format", format], 3);
        }
    }
    for format in ["auto", "coo", "csf-all", "csf-one", "mmcsf", "hicoo"] {
        check(&["mttkrp", "--format", format], 3);
    }
    let report = check(&["mttkrp", "--format", "csf-all", "--alg", "slice", "--mode", "1"], 1);
    assert_eq!((&report["format"][0], &report["alg"][0]), (&"csf-all".into(), &"slice".into()));
    for op in ["ttm", "mttkrp"] {
        assert_eq!(check(&[op, "--alg", "element"], 3)["alg"][1], "element");
    }
    if device["atomic_add_f32"] == true {
        assert_eq!(check(&["mttkrp", "--atomics"], 3)["alg"][2], "atomic");
    }
    for op in ["add", "sub", "mul", "div"] {
        check(&["tew", "--op", op], 0);
        check(&["ts", "--op", op, "--format", "hicoo"], 0);
    }
    if double {
        check(&["ttm", "--dtype", "f64", "--mode", "2"], 1);
        check(&["ttv", "--dtype", "f64", "--mode", "0"], 1);
        check(&["mttkrp", "--dtype", "f64"], 3);
        check(&["tew", "--dtype", "f64", "--op", "div"], 0);
    }
    let shared = |op: &[&str], place: &str| {
        on_device(name, &[&op[..1], &common, &["--device", place], &op[1..]].concat());
    };
    for place in ["hetero:adaptive", "hetero:0.4"] {
        for op in [
            &["ttm"][..],
            &["ttm", "--alg", "element"],
            &["ttv"],
            &["mttkrp"],
            &["mttkrp", "--alg", "element"],
            &["tew", "--op", "sub"],
            &["ts", "--op", "div"],
        ] {
            shared(op, place);
        }
    }
    let refused_mttkrp = |extra: &[&str]| refused(&[&["mttkrp"], &common[..], &["--device", "gpu"], extra].concat());
    assert!(refused_mttkrp(&["--format", "alto"]).contains("alto"));
    assert!(refused_mttkrp(&["--format", "csf-all", "--atomics"]).contains("coo"));
    assert!(refused_mttkrp(&["--format", "csf-all", "--alg", "nonzero"]).contains("nonzero"));
    let fiber = refused(&[&["mttkrp"], &common[..], &["--device", "hetero", "--alg", "fiber"]].concat());
    assert!(fiber.contains("the algorithms slice and element"), "{fiber}");
}

#[test]
fn cp_reaches_the_fit_of_the_processor() {
    let Some(device) = device() else { return };
    let (name, clock, double) = features(&device);
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let tns = path("x.tns");
    sparsimd(&["generate", "skew", "--dims", "30x20x25", "--nnz", "4000", "--seed", "5", "--out", &tns]);
    assert!(Path::new(&tns).exists());
    let run = |device: &str, dtype: &str, extra: &[&str]| {
        let out = path(&format!("out-{device}-{dtype}"));
        let common = ["cp", "--tensor", &tns, "--rank", "6", "--iters", "12", "--tol", "0", "--json", "--out", &out];
        json(&[&common[..], &["--device", device, "--dtype", dtype], extra].concat())
    };
    for dtype in ["f32", "f64"] {
        if dtype == "f64" && !double {
            continue;
        }
        // The modes in their natural order, as devices take them.
        let on_cpu = run("cpu", dtype, &["--format", "csf-all"]);
        assert_eq!(on_cpu["device"], "cpu");
        let both = run("hetero:0.5", dtype, &[]);
        assert!((both["fit"].as_f64().unwrap() - on_cpu["fit"].as_f64().unwrap()).abs() < 1e-4, "{both}");
        for extra in [&[][..], &["--format", "coo"], &["--format", "csf-one"]] {
            let on_gpu = run("gpu", dtype, extra);
            assert_eq!(on_gpu["iterations"], 12);
            assert!(on_gpu["device"].as_str().unwrap().contains(name));
            assert_eq!(on_gpu["kernel_s"].as_f64().is_some_and(|s| s > 0.0), clock, "{on_gpu}");
            // The same algorithm from the same start: rounding is all that differs, and 12 iterations magnify it little.
            let difference = (on_gpu["fit"].as_f64().unwrap() - on_cpu["fit"].as_f64().unwrap()).abs();
            let bound = if dtype == "f32" { 1e-4 } else { 1e-10 };
            assert!(difference < bound, "{dtype}, {extra:?}: {on_gpu} and {on_cpu}");
        }
    }
}

#[test]
fn tucker_reaches_the_fit_of_the_processor() {
    let Some(device) = device() else { return };
    let (name, clock, double) = features(&device);
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (tns, out) = (path("x.tns"), path("out"));
    sparsimd(&["generate", "skew", "--dims", "30x20x25", "--nnz", "4000", "--seed", "5", "--out", &tns]);
    let run = |device: &str, dtype: &str| {
        let common = ["tucker", "--tensor", &tns, "--rank", "4,3,5", "--iters", "8", "--tol", "0", "--out", &out];
        json(&[&common[..], &["--device", device, "--dtype", dtype, "--json"]].concat())
    };
    for (dtype, bound) in [("f32", 1e-5), ("f64", 1e-10)] {
        if dtype == "f64" && !double {
            continue;
        }
        let on_cpu = run("cpu", dtype);
        assert_eq!((&on_cpu["device"], &on_cpu["kernel_s"]), (&"cpu".into(), &Value::Null));
        for place in ["gpu", "hetero:0.5", "hetero:adaptive"] {
            let report = run(place, dtype);
            assert_eq!(report["iterations"], 8);
            assert!(report["device"].as_str().unwrap().contains(name), "{report}");
            let took = report["kernel_s"].as_f64().is_some_and(|s| s > 0.0);
            assert!(took == clock || place == "hetero:adaptive", "{report}");
            let difference = (report["fit"].as_f64().unwrap() - on_cpu["fit"].as_f64().unwrap()).abs();
            assert!(difference < bound, "{dtype}, {place}: {report} and {on_cpu}");
        }
    }
}

#[test]
fn a_device_has_a_roofline_of_its_own() {
    let Some(device) = device() else { return };
    let (name, _, double) = features(&device);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    for (dtype, input, operations) in [
        ("f32", ["--random", "300x200@0.9"], 3),
        ("f32", ["--generate", "skew:40x30x20:2000"], 5),
        ("f64", ["--generate", "skew:40x30x20:2000"], 5),
    ] {
        let args =
            [&["roofline", "--device", "gpu", "--repeat", "1", "--dtype", dtype, "--out", out], &input[..]].concat();
        if dtype == "f64" && !double {
            refused(&args);
            continue;
        }
        let report = json(&[&args[..], &["--json"]].concat());
        assert!(report["device"].as_str().unwrap().contains(name), "{report}");
        assert_eq!(report["points"].as_array().unwrap().len(), operations, "{report}");
        let levels = report["ceilings"]["levels"].as_array().unwrap();
        let names: Vec<_> = levels.iter().map(|level| level["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["near", "shared", "memory"]);
        let rates = levels.iter().flat_map(|level| ["copy", "add", "multiply_add"].map(|key| &level[key]));
        let mut rates = rates.chain([&report["ceilings"]["multiply_add"]]);
        assert!(rates.all(|rate| rate.as_f64().is_some_and(|rate| rate > 0.0)), "{report}");
        for picture in report["pictures"].as_array().unwrap() {
            assert!(Path::new(picture.as_str().unwrap()).exists());
        }
    }
}

#[test]
fn the_processor_and_a_device_have_a_roofline_together() {
    let Some(device) = device() else { return };
    let (name, ..) = features(&device);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    for (input, format, operations) in [
        (["--random", "300x200@0.9"], "auto", 3),
        (["--generate", "skew:40x30x20:2000"], "csf-all", 5),
        (["--generate", "skew:40x30x20:2000"], "hicoo", 4),
    ] {
        let args = ["roofline", "--device", "hetero:0.5", "--repeat", "1", "--format", format, "--out", out, "--json"];
        let report = json(&[&args[..], &input[..]].concat());
        let text = report["device"].as_str().unwrap();
        assert!(text.starts_with("cpu + ") && text.contains(name), "{report}");
        assert_eq!(report["points"].as_array().unwrap().len(), operations, "{report}");
        let ends = |of: &str| {
            let levels = report[of]["levels"].as_array().unwrap();
            [levels.first().unwrap(), levels.last().unwrap()]
        };
        let ([own_near, own_memory], [near, memory]) = (ends("cpu_ceilings"), ends("device_ceilings"));
        let own_fma = &report["cpu_ceilings"]["fma_f32"];
        for (key, own, device) in [
            ("multiply_add", own_fma, &report["device_ceilings"]),
            ("near", &own_near["read"], near),
            ("memory", &own_memory["read"], memory),
        ] {
            let sum = own["all"].as_f64().unwrap() + device["multiply_add"].as_f64().unwrap();
            assert!((report["ceilings"][key].as_f64().unwrap() - sum).abs() < 1e-6 * sum, "{key}: {report}");
        }
        for point in report["points"].as_array().unwrap() {
            assert!(point["gflops"].as_f64().unwrap() > 0.0, "{report}");
        }
    }
}

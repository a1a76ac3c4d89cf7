//! `sparsimd bench`: its files, that it goes on where it stopped, and peers that are absent, broken or wrong.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

#[path = "../../tests/common/skip.rs"]
mod skip;

use skip::{Missing, skip};

fn bench(folder: &Path, args: &[&str], openblas: Option<&Path>) -> Output {
    command(folder, args, openblas).output().expect("the program starts")
}

fn command(folder: &Path, args: &[&str], openblas: Option<&Path>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sparsimd"));
    command.arg("bench").args(args).args(["--quick", "--threads", "1", "--out"]).arg(folder);
    // What the program chooses for itself, and tells itself when it starts again.
    command.env_remove("SPARSIMD_BENCH_CHOSEN");
    if let Some(path) = openblas {
        command.env("SPARSIMD_OPENBLAS", path);
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn results(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("results.json")).expect("results.json")).expect("JSON")
}

#[test]
fn files_are_complete_and_nothing_runs_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let out = bench(path, &["esimd", "--peers", "none", "--filter", "3k/1k/32/90"], None);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let first = results(path);
    let ids: Vec<_> = first["cases"].as_array().unwrap().iter().map(|case| case["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["SDDMM 3k/1k/32/90%", "SpMM 3k/1k/32/90%", "FusedMM 3k/1k/32/90%"]);
    for case in first["cases"].as_array().unwrap() {
        let ours = &case["samples"][0];
        assert_eq!((&ours["ours"], &case["wrong"]), (&Value::Bool(true), &Value::Bool(false)));
        assert!(ours["error"].as_f64().unwrap() <= 1.0 && ours["runs"].as_u64().unwrap() >= 3);
        let (min, median) = (ours["min_s"].as_f64().unwrap(), ours["median_s"].as_f64().unwrap());
        assert!(0.0 < min && min <= median, "{ours}");
        let gflops = case["flops"].as_f64().unwrap() / min / 1e9;
        assert!((ours["gflops"].as_f64().unwrap() / gflops - 1.0).abs() < 1e-9);
    }
    let csv = std::fs::read_to_string(path.join("results.csv")).unwrap();
    assert_eq!(csv.lines().count(), 4, "{csv}");
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().all(|line| line.split(',').count() >= columns), "{csv}");
    let page = std::fs::read_to_string(path.join("report.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 4, "three pictures of bars and the roofline");
    assert!(!page.contains("src=") && !page.contains("href="), "the report needs no other file");
    assert!(std::fs::metadata(path.join("spmm-n32.png")).unwrap().len() > 1000);

    // The same again runs nothing; a wider filter only what is new.
    let again = bench(path, &["esimd", "--peers", "none", "--filter", "3k/1k/32/90"], None);
    assert!(!text(&again.stdout).contains("GFLOP/s"), "{}", text(&again.stdout));
    assert_eq!(results(path)["cases"], first["cases"]);
    let wider = text(&bench(path, &["esimd", "--peers", "none", "--filter", "spmm 3k/1k/32"], None).stdout);
    assert!(wider.contains("SpMM 3k/1k/32/70%") && wider.matches("GFLOP/s").count() == 1, "{wider}");
    assert_eq!(results(path)["cases"].as_array().unwrap()[..3], first["cases"].as_array().unwrap()[..]);
}

#[test]
fn mistakes_are_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let damaged = folder.path().join("damaged");
    std::fs::create_dir(&damaged).unwrap();
    std::fs::write(damaged.join("results.json"), "{}").unwrap();
    let none = ["esimd", "--peers", "none", "--filter", "3k/1k/32/90"];
    let data = empty.to_str().unwrap();
    for (out, args, words) in [
        (&empty, &["esimdd"][..], "esimd, dlmc, graphs, pasta, mmcsf, cp, mttkrp, sycl"),
        (&empty, &["dlmc", "--data", data], "no .smtx file below"),
        (&empty, &["graphs", "--data", "/nonexistent"], "/nonexistent"),
        (&empty, &["esimd", "--peers", "none", "--filter", "5k"], "which --quick takes, has the words"),
        (&empty, &["cp", "--full"], "'--full' cannot be used with '--quick'"),
        (&empty, &["cp", "--peers", "mkl"], "mkl has nothing to do with this suite"),
        (&empty, &["graphs", "--data", data, "--peers", "genten"], "no .mtx file below"),
        (&file, &none, "file: "),
        (&damaged, &none, "is not a file of results"),
    ] {
        let done = bench(out, args, None);
        let message = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {message}");
        assert!(message.lines().count() == 1 && message.contains(words), "{args:?}: {message}");
    }
}

/// A BLAS whose product is `what`, built with the C compiler; nothing where there is none.
fn fake_openblas(folder: &Path, what: &str) -> Option<std::path::PathBuf> {
    let (source, library) = (folder.join("fake.c"), folder.join("libopenblas.so"));
    let product = |letter: &str, real: &str| {
        format!(
            "void cblas_{letter}gemm(int o, int x, int t, int m, int n, int k, {real} al, const {real} *a, int la,
                                     const {real} *b, int lb, {real} be, {real} *c, int lc) {{
                 /* The product that settings are compared by is square; all are equal here. */
                 if (m == n && n == k) return;
                 for (int i = 0; i < m; i++) for (int j = 0; j < n; j++) {{
                     double s = 0;
                     for (int l = 0; l < k; l++) s += a[i * la + l] * b[t == 112 ? j * lb + l : l * lb + j];
                     c[i * lc + j] = {what};
                 }}
             }}\n"
        )
    };
    let rest = "void openblas_set_num_threads(int n) {}
                char *openblas_get_config(void) { return \"OpenBLAS 0.0 fake\"; }
                char *openblas_get_corename(void) { return \"Slow\"; }\n";
    std::fs::write(&source, product("s", "float") + &product("d", "double") + rest).unwrap();
    let built = Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    if built.is_ok_and(|status| status.success()) {
        return Some(library);
    }
    skip(Missing::Other, "no C compiler");
    None
}

/// A folder with a tensor of 7 x 5 x 6, all places but the last ten taken.
fn small_tensor(folder: &Path) -> std::path::PathBuf {
    let data = folder.join("data");
    std::fs::create_dir(&data).unwrap();
    let lines: String = (0..200).map(|p| format!("{} {} {} 1.5\n", p % 7 + 1, p / 7 % 5 + 1, p / 35 + 1)).collect();
    std::fs::write(data.join("small.tns"), lines).unwrap();
    data
}

#[test]
fn economics_of_formats() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (small_tensor(folder.path()), folder.path().join("out"));
    // With a header, which gives the order.
    let file = data.join("small.tns");
    let entries = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("3\n7 5 6\n{entries}")).unwrap();
    let done = bench(&out, &["mmcsf", "--data", data.to_str().unwrap()], None);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let cases = results(&out)["cases"].as_array().unwrap().clone();
    assert_eq!(
        cases.iter().map(|c| c["op"].as_str().unwrap()).collect::<Vec<_>>(),
        ["mode 0", "mode 1", "mode 2", "CP-ALS"]
    );
    for case in &cases {
        // Nine formats, the static partition, and three orientations.
        assert_eq!(case["samples"].as_array().unwrap().len(), 13, "{case}");
    }
    let sample = |case: usize, name: &str| {
        let found = cases[case]["samples"].as_array().unwrap().iter().find(|s| s["name"] == name);
        found.unwrap()["figures"].clone()
    };
    let coo = sample(1, "coo");
    assert_eq!(
        (&coo["operations"], &coo["rows read"], &coo["rows written"]),
        (&600.0.into(), &400.0.into(), &200.0.into())
    );
    // 28 fibers of 7 nonzeros along mode 0, and one of 4.
    let leaf = sample(0, "leaf mode 0");
    assert_eq!((&leaf["fibers to 100"], &leaf["fibers over 10000"]), (&29.0.into(), &0.0.into()));
    assert!(sample(3, "mmcsf-dyn")["fit"].as_f64().unwrap() > 0.5);
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    for words in
        ["Table 2", "Table 3", "Table 5", "Figure 6", "Table 7", "Figure 8", "Table 8", "Figure 10", "Figure 11"]
    {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn suites_of_tensors_take_files() {
    let folder = tempfile::tempdir().unwrap();
    let data = small_tensor(folder.path());
    for (suite, op, names) in [
        ("pasta", "MTTKRP", &["COO", "HiCOO"][..]),
        ("sycl", "TTM", &["fiber-centric", "element-centric"]),
        ("sycl", "MTTKRP", &["row-centric", "element-centric"]),
    ] {
        let out = folder.path().join(format!("{suite} {op}"));
        let filter = format!("{op} small");
        let done = bench(&out, &[suite, "--data", data.to_str().unwrap(), "--filter", &filter], None);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        for case in results(&out)["cases"].as_array().unwrap() {
            assert_eq!((&case["input"], &case["nnz"]), (&"small.tns".into(), &200.into()), "{case}");
            let samples = case["samples"].as_array().unwrap();
            assert!(samples.iter().all(|s| names.contains(&s["name"].as_str().unwrap())), "{case}");
            assert_eq!(samples.len(), 2, "{case}");
        }
    }
}

#[test]
fn peers_that_are_absent_broken_or_wrong_are_named_and_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let case = ["esimd", "--peers", "openblas", "--filter", "sddmm 3k/1k/32/90"];
    let run = |name: &str, library: &Path| {
        let out = folder.path().join(name);
        let done = bench(&out, &case, Some(library));
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        (results(&out), text(&done.stderr))
    };
    for (name, library, words) in [
        ("absent", folder.path().join("none"), "neither a file"),
        ("broken", Path::new(file!()).to_owned(), "openblas"),
    ] {
        let (results, stderr) = run(name, &library);
        assert!(stderr.contains("not compared with openblas") && stderr.contains(words), "{stderr}");
        assert!(results["absent"][0].as_str().unwrap().contains(words), "{}", results["absent"]);
        assert_eq!(results["cases"][0]["samples"].as_array().unwrap().len(), 1);
    }
    let Some(wrong) = fake_openblas(folder.path(), "s * 1.001") else { return };
    let (results, _) = run("wrong", &wrong);
    let note = results["cases"][0]["notes"][0].as_str().unwrap();
    assert!(note.contains("OpenBLAS gemm: wrong") && note.contains("not timed"), "{note}");
    assert_eq!(results["cases"][0]["samples"].as_array().unwrap().len(), 1);

    let Some(right) = fake_openblas(folder.path(), "s") else { return };
    let (results, _) = run("right", &right);
    assert_eq!(results["cases"][0]["notes"].as_array().unwrap().len(), 0);
    assert_eq!(results["cases"][0]["samples"][1]["name"], "OpenBLAS gemm");
    let ratio = &results["summary"][0];
    assert!(ratio["against"] == "OpenBLAS gemm" && ratio["mean"].as_f64().unwrap() > 1.0, "{ratio}");
    assert!(results["settings"]["peers"]["OpenBLAS"].as_str().unwrap().contains("Slow kernels"));
}

#[test]
#[cfg(unix)]
fn iterations_of_cp_als_beside_a_process() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, python: &Path| {
        let out = folder.path().join(name);
        let done = command(&out, &["cp", "--filter", "skew3d"], None).env("SPARSIMD_PYTHON", python).output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        (results(&out), text(&done.stderr))
    };
    let (alone, stderr) = run("alone", &folder.path().join("nobody"));
    assert!(stderr.contains("not compared with genten") && stderr.contains("nobody"), "{stderr}");
    let samples = alone["cases"][0]["samples"].as_array().unwrap();
    assert_eq!(samples.iter().map(|s| s["name"].as_str().unwrap()).collect::<Vec<_>>(), ["ours", "ours, f32"]);
    for sample in samples {
        let [min, mttkrp, fit] =
            [&sample["min_s"], &sample["figures"]["mttkrp_s"], &sample["figures"]["fit"]].map(|x| x.as_f64().unwrap());
        assert!(0.0 < mttkrp && mttkrp < min && 0.0 < fit && fit < 1.0, "{sample}");
        assert!(sample["error"].as_f64().unwrap() <= 1.0 && sample["runs"] == 9, "{sample}");
    }

    // Speaks as the peer's process does, and is wrong.
    let fake = folder.path().join("fake");
    let answer = r#"{"seconds": [0.5, 0.25, 0.5], "mttkrp": [0.1, 0.1, 0.1], "fit": 0.875}"#;
    let script = format!(
        "#!/bin/sh\necho '{{\"detail\": \"a fake\"}}'\n\
         while read -r line; do case $line in *load*) echo '{{}}' ;; *) echo '{answer}' ;; esac; done\n"
    );
    std::fs::write(&fake, script).unwrap();
    std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (beside, _) = run("beside", &fake);
    assert_eq!(beside["settings"]["peers"]["GenTen"], "a fake");
    let case = &beside["cases"][0];
    assert!(case["notes"][0].as_str().unwrap().contains("GenTen: a fit of 0.875 instead of"), "{}", case["notes"]);
    let (ours, theirs) = (&case["samples"][0], &case["samples"][2]);
    assert_eq!((&theirs["name"], &theirs["min_s"], &theirs["median_s"]), (&"GenTen".into(), &0.25.into(), &0.5.into()));
    let ratio = &beside["summary"][0];
    assert_eq!((&ratio["op"], &ratio["against"]), (&"CP-ALS".into(), &"GenTen".into()));
    let expected = 0.25 / ours["min_s"].as_f64().unwrap();
    assert!((ratio["mean"].as_f64().unwrap() / expected - 1.0).abs() < 1e-9, "{ratio}");
}

/// A process that speaks as the peers of MTTKRP do: right for pyttb, wrong for tensorly, absent as GenTen.
#[test]
#[cfg(unix)]
fn mttkrp_beside_processes() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    // One nonzero at (0, 0), so that mode 0's product is the other factor's row, and the other way round.
    std::fs::write(data.join("one.tns"), "1 1 1\n").unwrap();
    let fake = folder.path().join("fake");
    let script = r#"#!/bin/sh
case $SPARSIMD_PACKAGE in
    '') echo '{"absent": "none of its kind"}'; exit ;;
    *) echo '{"detail": "a fake '$SPARSIMD_PACKAGE'"}' ;;
esac
while read -r line; do
    case $line in
        *load*) dir=$(echo "$line" | sed 's/.*"folder":"\([^"]*\)".*/\1/'); echo '{}' ;;
        *check*0*) cp "$dir/factor1" "$dir/out"; echo '{}' ;;
        *check*) [ $SPARSIMD_PACKAGE = pyttb ] && cp "$dir/factor0" "$dir/out"; echo '{}' ;;
        *) echo '{"seconds": [0.5, 0.25, 3]}' ;;
    esac
done
"#;
    std::fs::write(&fake, script).unwrap();
    std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).unwrap();
    let out = folder.path().join("out");
    let args = ["mttkrp", "--data", data.to_str().unwrap()];
    let done = command(&out, &args, None).env("SPARSIMD_PYTHON", &fake).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("not compared with genten: none of its kind"), "{}", text(&done.stderr));
    let results = results(&out);
    let case = &results["cases"][0];
    let names: Vec<_> = case["samples"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ours", "ours, f32", "pyttb"], "{case}");
    assert!(case["notes"][0].as_str().unwrap().contains("tensorly: wrong"), "{}", case["notes"]);
    let theirs = &case["samples"][2];
    assert_eq!((&theirs["min_s"], &theirs["error"]), (&0.25.into(), &0.0.into()));
    assert_eq!(results["settings"]["peers"]["pyttb"], "a fake pyttb");
    let refused = command(&out, &["cp", "--peers", "pyttb"], None).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
}

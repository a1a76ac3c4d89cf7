//! The program and the transport under an MPI launcher: right results on several ranks, and an end within seconds whatever fails.
//!
//! `.ci/distributed` builds what these tests start, and says where it is.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sparsimd::decomp::CpState;

/// A job that should end by itself has this long, on a machine that others use too.
const PATIENCE: Duration = Duration::from_secs(120);
/// From a failure to the end of the job.
const END: Duration = Duration::from_secs(10);

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: .ci/distributed sets it"))
}

/// A job of `ranks`, which is ended when it is dropped.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

/// Starts `program` on `ranks`.
fn start(ranks: usize, program: &str, args: &[&str]) -> Job {
    let launcher = variable("SPARSIMD_MPIRUN");
    let words: Vec<&str> = launcher.split_whitespace().collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(["-n", &ranks.to_string(), program]).args(args);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let child = command.current_dir(root).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    Job(child.expect("the launcher starts"))
}

/// How a job ended: its status, both outputs, and how long after the first words on standard error.
struct End {
    status: Option<i32>,
    out: String,
    err: String,
    after: Duration,
}

/// The end of a job, which comes within `patience`.
fn finish(mut job: Job, patience: Duration) -> End {
    // The text, and when it began.
    let text = |pipe: Option<Box<dyn Read + Send>>| {
        let mut pipe = pipe.expect("a pipe");
        std::thread::spawn(move || {
            let mut first = [0];
            let some = pipe.read(&mut first).expect("bytes");
            let began = Instant::now();
            let mut text = first[..some].to_vec();
            pipe.read_to_end(&mut text).expect("bytes");
            (String::from_utf8_lossy(&text).into_owned(), began)
        })
    };
    let out = text(job.0.stdout.take().map(|pipe| Box::new(pipe) as _));
    let err = text(job.0.stderr.take().map(|pipe| Box::new(pipe) as _));
    let start = Instant::now();
    let status = loop {
        match job.0.try_wait().expect("a status") {
            Some(status) => break status,
            None if start.elapsed() > patience => panic!("the job has not ended after {patience:?}"),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let end = Instant::now();
    let ((out, _), (err, began)) = (out.join().unwrap(), err.join().unwrap());
    End { status: status.code(), out, err, after: end.saturating_duration_since(began) }
}

fn sparsimd(ranks: usize, args: &[&str]) -> (Option<i32>, String, String) {
    let End { status, out, err, .. } = finish(start(ranks, &variable("SPARSIMD_MPI_PROGRAM"), args), PATIENCE);
    (status, out, err)
}

/// The one line of a job that ends in an error, soon after its first rank has begun: starting takes the launcher its time on a busy
/// machine. The shell runs `before` on each rank.
fn error(ranks: usize, before: &str, args: &[&str]) -> String {
    let (program, script) = (variable("SPARSIMD_MPI_PROGRAM"), format!("echo begun >&2; {before} exec \"$@\""));
    let shell = ["-c", &script, "sh", &program];
    let End { status, out, err, after } = finish(start(ranks, "sh", &[&shell, args].concat()), PATIENCE);
    let ours: Vec<&str> = err.lines().filter(|line| line.starts_with("sparsimd: ")).collect();
    assert_eq!((status, out.as_str(), ours.len()), (Some(2), "", 1), "{args:?}: {err}");
    assert!(after < END, "{args:?}: {after:?} from the first rank's begin to the end");
    ours[0].to_owned()
}

#[test]
#[ignore = "needs an MPI: .ci/distributed"]
fn every_operation_is_verified_on_several_ranks() {
    let file = ["--matrix", "tests/data/pyfr_p6hex_m460.mtx", "-n", "33"];
    let random = ["--random", "301x257@0.9", "-n", "16", "--dtype", "f64"];
    let operations: [&[&str]; 9] = [
        &["spmm"],
        &["sddmm"],
        &["sddmm", "--edge", "scale"],
        &["fusedmm", "--edge", "sigmoid"],
        &["fusedmm", "--edge", "softmax"],
        &["fusedmm", "--edge", "softmax-leaky-relu"],
        &["fusedmm", "--edge", "scale", "--backward"],
        &["fusedmm", "--edge", "leaky-relu", "--backward"],
        &["fusedmm", "--edge", "softmax", "--backward"],
    ];
    let ways: [(usize, &[&str]); 8] = [
        (1, &[]),
        (2, &[]),
        (3, &["--algorithm", "aware"]),
        (4, &["--algorithm", "aware"]),
        (4, &["--algorithm", "dense", "--replication", "1"]),
        (4, &["--algorithm", "dense", "--replication", "2"]),
        (8, &["--algorithm", "dense"]),
        (8, &["--replication", "4"]),
    ];
    // Starting a job takes longer than what it computes: each way has one of the matrices.
    for (&(ranks, way), operand) in ways.iter().zip([&random[..], &file[..]].into_iter().cycle()) {
        for operation in operations {
            let args = [operation, operand, way, &["--mpi", "--verify", "--json", "--repeat", "2"]].concat();
            let (status, out, err) = sparsimd(ranks, &args);
            assert_eq!(status, Some(0), "{ranks} ranks, {args:?}: {err}");
            let number = |key: &str| number(&out, key);
            let gradient = operation.contains(&"--backward");
            assert_eq!(gradient, number("op") == "\"fusedmm_gradient\"", "{out}");
            assert_eq!((number("verified"), number("ranks")), ("true".to_owned(), ranks.to_string()), "{args:?}");
            assert_eq!(number("words_sent"), number("model_words"), "{args:?}");
            assert!(number("communication_s").parse::<f64>().unwrap() >= 0.0);
            assert_eq!(out.lines().count(), 1, "{out}");
        }
    }
}

/// What `key` has in the JSON object `text`.
fn number(text: &str, key: &str) -> String {
    let rest = text.split(&format!("\"{key}\":")).nth(1).unwrap_or_else(|| panic!("{key} in {text}"));
    rest.split([',', '}']).next().unwrap().to_owned()
}

#[test]
#[ignore = "needs an MPI: .ci/distributed"]
fn decompositions_have_one_machines_fit_and_are_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let entry = |p: usize| format!("{} {} {} {}\n", p % 37 + 1, p * 7 % 23 + 1, p / 37 + 1, 1 + p * p % 11);
    let tensor = dir.path().join("x.tns");
    std::fs::write(&tensor, (0..1500).map(entry).collect::<String>()).unwrap();
    let [tensor, out, state] =
        [&tensor, &dir.path().join("out"), &dir.path().join("state")].map(|p| p.to_str().unwrap().to_owned());
    let cp = ["cp", "--rank", "4", "--tol", "0", "--out", &out, "--json"];
    let run = |ranks: usize, more: &[&str]| {
        let given: &[&str] = if more.contains(&"--tensor") { &[] } else { &["--tensor", &tensor] };
        let (status, out, err) = sparsimd(ranks, &[&cp[..], given, more].concat());
        assert_eq!(status, Some(0), "{ranks} ranks, {more:?}: {err}");
        out
    };
    let fit = |text: &str| number(text, "fit").parse::<f64>().unwrap();
    // One machine takes the modes in their natural order too, unless it chooses a tree.
    let wanted = fit(&run(1, &["--iters", "8", "--format", "coo"]));
    let factor = || std::fs::read_to_string(dir.path().join("out/mode2.txt")).unwrap().lines().count();
    for ranks in [1, 2, 3, 4, 8] {
        let text = run(ranks, &["--mpi", "--iters", "8"]);
        assert!((fit(&text) - wanted).abs() < 1e-9, "{ranks} ranks: {text}, not {wanted}");
        assert_eq!(number(&text, "words_sent"), number(&text, "model_words"), "{text}");
        assert_eq!((number(&text, "ranks"), factor()), (ranks.to_string(), 41));
    }
    // Ranges of a binary file.
    let binary = dir.path().join("x.tnsb").to_str().unwrap().to_owned();
    let (status, _, err) = sparsimd(1, &["convert", &tensor, &binary]);
    assert_eq!(status, Some(0), "{err}");
    let text = run(3, &["--mpi", "--iters", "8", "--tensor", &binary]);
    assert!((fit(&text) - wanted).abs() < 1e-9, "{text}, not {wanted}");
    run(4, &["--mpi", "--iters", "5", "--checkpoint", &state, "--every", "1"]);
    for (ranks, mpi) in [(2, &["--mpi"][..]), (8, &["--mpi"]), (1, &["--format", "coo"])] {
        let text = run(ranks, &[mpi, &["--iters", "8", "--checkpoint", &state, "--every", "100", "--resume"]].concat());
        assert!((fit(&text) - wanted).abs() < 1e-9, "{ranks} ranks: {text}, not {wanted}");
    }
}

#[test]
#[ignore = "needs an MPI: .ci/distributed"]
fn errors_are_one_line_of_the_first_rank() {
    let dir = tempfile::tempdir().unwrap();
    let lines: String = (1..=4000).map(|i| format!("{i} {i} {}\n", if i == 3700 { "x" } else { "1" })).collect();
    let bad = dir.path().join("bad.mtx");
    std::fs::write(&bad, format!("%%MatrixMarket matrix coordinate real general\n4000 4000 4000\n{lines}")).unwrap();
    let twice = dir.path().join("twice.mtx");
    let text = "%%MatrixMarket matrix coordinate real general\n3 3 3\n1 1 1\n3 2 5\n3 2 6\n";
    std::fs::write(&twice, text).unwrap();
    let short = dir.path().join("short.mtx");
    std::fs::write(&short, text.replace("3 3 3", "3 3 4")).unwrap();
    let path = |path: &PathBuf| path.to_str().unwrap().to_owned();
    let packed = "tests/data/ca-CondMat.mtx.gz".to_owned();
    let cases: [(String, &[&str], &str); 7] = [
        (path(&bad), &[], "rank 3: "),
        (path(&bad), &[], "bad.mtx:3702: value: "),
        (path(&twice), &[], "row 3, column 2 occurs twice"),
        (path(&short), &[], "3 entries, and 4 in the size line"),
        (packed, &[], "is compressed: several ranks read it once it is unpacked"),
        (path(&dir.path().join("none.mtx")), &[], "none.mtx: No such file"),
        ("tests/data/pyfr_p6hex_m460.mtx".to_owned(), &["--replication", "3"], "algorithm: none that is allowed"),
    ];
    for (matrix, more, words) in cases {
        let line = error(4, "", &[&["spmm", "--matrix", &matrix, "-n", "8", "--mpi"][..], more].concat());
        assert!(line.contains(words), "{line}");
    }
    // Without --mpi, and with words that are none.
    for args in [&["spmm", "--random", "8x8@0.5", "-n", "4"][..], &["spmm", "--mpi", "--wrong"]] {
        error(3, "", args);
    }
}

/// The described cluster's ping-pong beside the machine's.
#[test]
#[ignore = "needs an MPI: .ci/distributed"]
fn ping_pongs_are_simulated_and_measured() {
    if Command::new("smpirun").arg("--help").output().is_err() {
        println!("skipped: smpirun is not installed");
        return;
    }
    // A folder that is made.
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("out");
    let out = dir.to_str().unwrap();
    let (status, text, err) = sparsimd(2, &["simulate", "--ping-pong", "--mpi", "--json", "--out", out]);
    assert_eq!(status, Some(0), "{err}");
    let rows: Vec<&str> = text.split("{\"bytes\":").skip(1).collect();
    assert_eq!(rows.len(), 6, "{text}");
    let latency: f64 = number(&text, "measured_latency_s").parse().unwrap();
    for row in rows {
        let of = |key: &str| number(row, key).parse::<f64>().unwrap();
        let near = |a: f64, b: f64, times: f64| assert!(a < times * b && b < times * a, "{a}, not {b}: {row}");
        near(of("simulated_s"), of("model_s"), 1.01);
        // The shortest and the longest message make the cluster. Those between them take what they take on a machine that others use too.
        assert!(of("measured_s") > 0.0, "{row}");
        if row.starts_with("8,") || row.starts_with("4194304,") {
            // Where ranks wait for a processor, the shortest may have taken longer than the longest.
            near(of("fitted_s"), of("measured_s").max(latency), 1.05);
        }
    }
    let measured = dir.join("measured.xml");
    let (status, text, err) =
        sparsimd(1, &["simulate", "--ping-pong", "--json", "--platform", measured.to_str().unwrap()]);
    assert_eq!((status, text.matches("\"measured_s\":null").count()), (Some(0), 6), "{err}");
    // A cluster on which more bytes are under way than a TCP window has: the model knows of none.
    let far = folder.path().join("far.xml");
    let text = std::fs::read_to_string(&measured).unwrap();
    let replaced = |text: &str, name: &str, value: &str| {
        let (before, rest) = text.split_once(&format!(" {name}=\"")).unwrap();
        format!("{before} {name}=\"{value}\"{}", rest.split_once('"').unwrap().1)
    };
    std::fs::write(&far, replaced(&replaced(&text, "lat", "1150us"), "bw", "180GBps")).unwrap();
    let (status, text, err) = sparsimd(1, &["simulate", "--ping-pong", "--json", "--platform", far.to_str().unwrap()]);
    assert_eq!(status, Some(0), "{err}");
    for row in text.split("{\"bytes\":").skip(1) {
        let [simulated, model] = ["simulated_s", "model_s"].map(|key| number(row, key).parse::<f64>().unwrap());
        assert!((simulated - model).abs() < 0.01 * model, "{row}");
    }
    let (status, _, err) = sparsimd(3, &["simulate", "--ping-pong", "--mpi"]);
    assert!(status == Some(2) && err.contains("ping-pong: 3 ranks; a ping-pong has two"), "{err}");
}

/// The processes that `pid` has started, and those that they have.
fn descendants(pid: u32) -> Vec<u32> {
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
    };
    let all: Vec<u32> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let (mut found, mut at) = (vec![pid], 0);
    while at < found.len() {
        let started = all.iter().copied().filter(|&child| parent(child) == Some(found[at])).collect::<Vec<_>>();
        found.extend(started);
        at += 1;
    }
    found[1..].to_vec()
}

#[test]
#[ignore = "needs an MPI: .ci/distributed"]
fn a_killed_rank_ends_the_job() {
    let program = variable("SPARSIMD_MPI_PROGRAM");
    let args = ["spmm", "--random", "2000x2000@0.9", "-n", "64", "--mpi", "--repeat", "100000000"];
    let job = start(3, &program, &args);
    let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let start = Instant::now();
    let rank = loop {
        let ranks: Vec<u32> =
            descendants(job.0.id()).into_iter().filter(|pid| name(pid).trim() == "sparsimd").collect();
        if ranks.len() >= 3 {
            break ranks[1];
        }
        assert!(start.elapsed() < PATIENCE, "the ranks have not started");
        std::thread::sleep(Duration::from_millis(20));
    };
    // Until they exchange messages.
    std::thread::sleep(Duration::from_secs(2));
    assert!(Command::new("kill").args(["-9", &rank.to_string()]).status().unwrap().success());
    assert_ne!(finish(job, END).status, Some(0));
}

/// A job that is killed while it decomposes has left a whole checkpoint, from which other ranks go on.
#[test]
#[ignore = "needs an MPI: .ci/distributed"]
fn a_killed_job_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let entry = |p: usize| format!("{} {} {} {}\n", p % 307 + 1, p * 7 % 203 + 1, p / 307 + 1, 1 + p * p % 11);
    let tensor = dir.path().join("x.tns");
    std::fs::write(&tensor, (0..60000).map(entry).collect::<String>()).unwrap();
    let [tensor, out, state] =
        [&tensor, &dir.path().join("out"), &dir.path().join("state")].map(|p| p.to_str().unwrap().to_owned());
    let cp = ["cp", "--mpi", "--tensor", &tensor, "--rank", "4", "--tol", "0", "--out", &out, "--json"];
    let checkpoint = ["--checkpoint", &state, "--every", "1", "--resume", "--iters"];
    let done = || CpState::<f64>::load(Path::new(&state)).map_or(0, |state| state.fits.len());
    let mut reached = 0;
    for ranks in [3, 2] {
        let job = start(ranks, &variable("SPARSIMD_MPI_PROGRAM"), &[&cp[..], &checkpoint, &["1000000"]].concat());
        let begun = Instant::now();
        while done() < reached + 3 {
            assert!(begun.elapsed() < PATIENCE, "no iteration of {ranks} ranks");
            std::thread::sleep(Duration::from_millis(5));
        }
        let seen = done();
        let all: Vec<String> =
            std::iter::once(job.0.id()).chain(descendants(job.0.id())).map(|pid| pid.to_string()).collect();
        assert!(Command::new("kill").arg("-9").args(&all).status().unwrap().success());
        assert_ne!(finish(job, END).status, Some(0));
        reached = done();
        assert!(reached >= seen, "{reached} iterations are left of {seen}");
    }
    let iterations = (reached + 2).to_string();
    let (status, text, err) = sparsimd(4, &[&cp[..], &checkpoint, &[&iterations]].concat());
    assert_eq!((status, number(&text, "iterations")), (Some(0), iterations), "{err}");
}

/// One rank may have less memory than its rows need.
#[test]
#[ignore = "needs an MPI: .ci/distributed"]
fn a_rank_without_memory_is_an_error_of_all() {
    // A rank has reserved 0.1 GB before it reads, and needs 0.3 more.
    let less = "if [ \"${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" = 2 ]; then ulimit -v 300000; fi;";
    let args = ["spmm", "--random", "60000x60000@0.99997", "-n", "1024", "--mpi", "--threads", "1", "--repeat", "1"];
    let line = error(4, less, &args);
    assert!(line.contains("rank 2: ") && line.contains("memory"), "{line}");
}

/// A rank holds little more than its share of the file.
#[test]
#[ignore = "needs an MPI: .ci/distributed"]
fn reading_takes_a_share_of_the_files_memory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.mtx");
    let (rows, each) = (400_000usize, 15);
    let mut text = std::io::BufWriter::new(std::fs::File::create(&file).unwrap());
    writeln!(text, "%%MatrixMarket matrix coordinate real general\n{rows} {rows} {}", rows * each).unwrap();
    for p in 0..rows * each {
        let (i, k) = (p / each, p % each);
        writeln!(text, "{} {} 0.{:06}", i + 1, (i * 7919 + k * 26_711) % rows + 1, p % 1_000_000).unwrap();
    }
    text.into_inner().unwrap();
    let bytes = std::fs::metadata(&file).unwrap().len() as f64;
    for ranks in [1, 2, 4] {
        let job = start(ranks, &variable("SPARSIMD_MPI_RANKS"), &["read", file.to_str().unwrap()]);
        let End { status, out, err, .. } = finish(job, PATIENCE);
        assert_eq!(status, Some(0), "{err}");
        let numbers: Vec<f64> = out.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let most = 1.3 * bytes / ranks as f64 + f64::from(64 << 20);
        assert!(numbers[0] <= most, "{ranks} ranks: {} bytes, at most {most}", numbers[0]);
        assert_eq!(numbers[1] as usize, rows * each);
    }
}

#[test]
#[ignore = "needs an MPI: .ci/distributed"]
fn c_programs_compute_on_communicators_of_their_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let library = PathBuf::from(variable("SPARSIMD_MPI_LIBRARY"));
    let dir = tempfile::tempdir().unwrap();
    for name in ["spmm", "cp"] {
        let program = dir.path().join(name).to_str().unwrap().to_owned();
        let compiled = Command::new(variable("MPICC"))
            .args(["-Wall", "-Wextra", "-Werror", "-o", &program])
            .arg(root.join(format!("distributed/examples/{name}.c")))
            .arg("-I")
            .arg(root.join("include"))
            .arg(&library)
            .arg(format!("-Wl,-rpath,{}", library.parent().unwrap().display()))
            .arg("-lm")
            .output()
            .expect("a compiler");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        for ranks in [1, 2, 5] {
            let End { status, out, err, .. } = finish(start(ranks, &program, &[]), PATIENCE);
            assert_eq!((status, out), (Some(0), format!("{ranks} ranks: right\n")), "{name}: {err}");
        }
    }
}

#[test]
#[ignore = "needs an MPI: .ci/distributed"]
fn a_panic_ends_the_job() {
    let job = start(3, &variable("SPARSIMD_MPI_RANKS"), &["panic"]);
    // From the panic's first words on: starting takes its time on a busy machine.
    let End { status, err, after, .. } = finish(job, PATIENCE);
    assert!(status != Some(0) && err.contains("a rank that panics"), "{status:?}: {err}");
    assert!(after < END, "{after:?} from the panic to the end");
}

#[test]
#[ignore = "needs an MPI: .ci/distributed"]
fn messages_and_collectives_pass_through_mpi() {
    for ranks in [1, 2, 3, 4, 8] {
        let job = start(ranks, &variable("SPARSIMD_MPI_RANKS"), &["collectives"]);
        let End { status, out, err, .. } = finish(job, PATIENCE);
        assert_eq!((status, out.lines().count()), (Some(0), 1), "{ranks} ranks: {out}{err}");
    }
}

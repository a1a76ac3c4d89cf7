//! The folder has what the program would write, and all that belongs there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use sparsimd_cli::manual;

/// Names and contents of the files in `dir`.
fn files(dir: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
    let file = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
        (name.to_owned(), fs::read_to_string(path).expect("text"))
    };
    entries.map(|path| file(&path)).collect()
}

#[test]
fn the_build_writes_what_the_program_writes() {
    let dir = tempfile::tempdir().expect("a folder");
    let pages = manual::write_pages(dir.path()).expect("pages");
    manual::write_completions(dir.path()).expect("completions");
    let [built, written] = [Path::new(sparsimd_manual::DIR), dir.path()].map(files);
    assert_eq!(written.keys().filter(|name| name.ends_with(".1")).count(), pages);
    for (name, text) in &written {
        assert!(built.get(name) == Some(text), "{name}");
    }
}

#[test]
fn every_command_has_a_page_and_every_shell_a_script() {
    let files = files(Path::new(sparsimd_manual::DIR));
    // The first page names the others: `sparsimd\-spmm(1)`.
    let first = files["sparsimd.1"].replace('\\', "");
    let named: BTreeSet<_> = first.split_whitespace().filter_map(|word| word.strip_suffix("(1)")).collect();
    assert!(["sparsimd-spmm", "sparsimd-cp", "sparsimd-man"].iter().all(|name| named.contains(name)), "{named:?}");
    for name in named {
        assert!(files[&format!("{name}.1")].contains("SYNOPSIS"), "{name}");
    }
    for script in ["sparsimd.bash", "_sparsimd", "sparsimd.fish", "_sparsimd.ps1", "sparsimd.elv"] {
        assert!(files[script].contains("fusedmm") && files[script].contains("reorder"), "{script}");
    }
}

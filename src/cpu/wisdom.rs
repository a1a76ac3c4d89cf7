//! [`WisdomFile`]: plans that were measured, in a file that outlives the program.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use crate::machine::{Machine, cache_folder};
use crate::plan::{Choices, Wisdom, WisdomCase};

/// The environment variable that names the file.
const VARIABLE: &str = "SPARSIMD_WISDOM";

/// Bytes that are read of a file: thousands of cases.
const MOST_BYTES: u64 = 1 << 20;

/// What was measured, and where it is kept.
#[derive(Debug)]
pub(crate) struct WisdomFile {
    path: Option<PathBuf>,
    known: RwLock<Wisdom>,
}

/// The file that the environment names, or the one of this processor in the user's cache folder; none where that is asked for, or
/// nobody says where such a folder is.
pub(super) fn users_file(machine: &Machine) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return (!path.is_empty() && path != "off").then(|| path.into());
    }
    let word = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = machine.processor().chars().take(64).map(word).collect();
    // Processors of one name may have other caches.
    let caches = [machine.l1d_bytes(), machine.l2_bytes(), machine.l3_bytes()].map(|bytes| (bytes >> 10).to_string());
    Some(cache_folder()?.join(format!("wisdom-{name}-{}.txt", caches.join("-"))))
}

impl WisdomFile {
    /// What the file says; nothing where it cannot be read.
    pub fn open(path: Option<PathBuf>) -> Self {
        let known = path.as_ref().and_then(|path| {
            // A pipe would be waited for.
            let file = File::open(path).ok().filter(|file| file.metadata().is_ok_and(|of| of.is_file()))?;
            let mut text = String::new();
            file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
            Some(Wisdom::read(&text))
        });
        Self { path, known: RwLock::new(known.unwrap_or_default()) }
    }

    /// Where it is kept.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The choices that were measured for a case like this one.
    pub fn find(&self, case: &WisdomCase) -> Option<Choices> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).find(case)
    }

    /// A remark about lines that were passed over, for the plan's explanation.
    pub fn remark(&self) -> String {
        match self.known.read().unwrap_or_else(PoisonError::into_inner).foreign {
            0 => String::new(),
            lines => format!("; {lines} lines of wisdom are not of this version"),
        }
    }

    /// Keeps `choices` for `case`, from now on and in the file, where it can be written.
    pub fn learn(&self, case: WisdomCase, choices: Choices) {
        if let Some(path) = &self.path {
            if let Some(folder) = path.parent() {
                let _ = std::fs::create_dir_all(folder);
            }
            // One write at the end: lines of several programs stay whole, and a later one for the same case counts.
            let file = OpenOptions::new().append(true).create(true).open(path);
            let _ = file.and_then(|mut file| file.write_all(case.line(&choices).as_bytes()));
        }
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(case, choices);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Op, Stats, Target};

    fn case(n: usize) -> WisdomCase {
        let pattern = crate::formats::Pattern::new(2, 3, vec![0, 2, 3], vec![0, 2, 1]).unwrap();
        let target = Target { threads: 1, vector_bytes: 64, registers: 32, value_bytes: 4 };
        WisdomCase::new(Op::Spmm, n, &Stats::of(&pattern), &target, "avx512")
    }

    fn choices(text: &str) -> Choices {
        Choices::read(&mut text.split_ascii_whitespace()).unwrap()
    }

    #[test]
    fn what_several_learn_is_found_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/wisdom.txt");
        let open = || WisdomFile::open(Some(path.clone()));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let own = open();
                scope
                    .spawn(move || (0..50).for_each(|i| own.learn(case(1 + 50 * thread + i), choices("direct all 8"))));
            }
        });
        let all = open();
        assert!((1..=200).all(|n| all.find(&case(n)) == Some(choices("direct all 8"))));
        assert_eq!((all.find(&case(201)), all.remark()), (None, String::new()));
        all.learn(case(7), choices("panel 8 80 1024 1"));
        assert_eq!(open().find(&case(7)), Some(choices("panel 8 80 1024 1")));
    }

    #[test]
    fn files_that_cannot_be_used_are_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        // A folder, what is no text, and what is no wisdom.
        let bytes = folder.path().join("bytes");
        std::fs::write(&bytes, [0xff, 0xfe, 0x00]).unwrap();
        let prose = folder.path().join("prose");
        std::fs::write(&prose, "dear reader\n").unwrap();
        for (path, remark) in
            [(folder.path().to_owned(), ""), (bytes, ""), (prose, "; 1 lines of wisdom are not of this version")]
        {
            let file = WisdomFile::open(Some(path));
            assert_eq!((file.find(&case(1)), file.remark().as_str()), (None, remark));
            file.learn(case(1), choices("direct all 8"));
            assert_eq!(file.find(&case(1)), Some(choices("direct all 8")));
        }
    }
}

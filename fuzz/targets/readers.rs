//! Every reader, on arbitrary bytes: the first byte says as which file, and whether compressed.
#![no_main]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use sparsimd::decomp::{CpState, TuckerState};
use sparsimd::io::{self, Duplicates, ReadOptions};

const ENDINGS: [&str; 8] = ["mtx", "smtx", "tns", "tnsb", "cp", "tucker", "txt", "npy"];

/// A folder of this process, in memory where there is one.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let shm = PathBuf::from("/dev/shm");
    let base = if shm.is_dir() { shm } else { std::env::temp_dir() };
    let folder = base.join(format!("sparsimd-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
});

/// The dense matrix of `path`, and that again from the file that it is written to.
fn dense(path: &Path) {
    let options = ReadOptions::default();
    _ = io::dense_header(path);
    let Ok(a) = io::read_dense::<f32>(path, options) else { return };
    let again = FOLDER.join("again.npy");
    io::write_dense(&again, a.as_ref()).expect("a matrix that was read is written");
    let b = io::read_dense::<f32>(&again, options).expect("a matrix that was written");
    assert_eq!((a.rows(), a.cols()), (b.rows(), b.cols()));
    let bits = |x: &f32| x.to_bits();
    assert!(a.cols() == 0 || a.iter_rows().zip(b.iter_rows()).all(|(a, b)| a.iter().map(bits).eq(b.iter().map(bits))));
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    let ending = ENDINGS[kind as usize % ENDINGS.len()];
    // As they are; compressed; and what is no gzip under a name that says so.
    let (name, bytes) = match kind as usize / ENDINGS.len() % 3 {
        0 => (format!("input.{ending}"), bytes.to_vec()),
        1 => {
            let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gz.write_all(bytes).expect("memory");
            (format!("input.{ending}.gz"), gz.finish().expect("memory"))
        }
        _ => (format!("input.{ending}.gz"), bytes.to_vec()),
    };
    let path = FOLDER.join(name);
    std::fs::write(&path, bytes).expect("a file");
    let options = ReadOptions::default();
    match ending {
        "mtx" | "smtx" => {
            if let Ok(matrix) = io::read_matrix::<f64>(&path, options) {
                // What was read can be written, and read again.
                let again = FOLDER.join("again.mtx");
                io::write_matrix(&again, &matrix).expect("a matrix that was read is written");
                assert!(io::read_matrix::<f64>(&again, options).is_ok());
            }
            if ending == "mtx" {
                dense(&path);
            }
        }
        "tns" | "tnsb" => {
            for duplicates in [Duplicates::Refuse, Duplicates::Sum] {
                _ = io::read_tensor::<f32>(&path, kind >= 128, duplicates, options);
            }
        }
        "cp" => _ = CpState::<f64>::load(&path),
        "tucker" => _ = TuckerState::load(&path),
        _ => dense(&path),
    }
    _ = std::fs::remove_file(&path);
});

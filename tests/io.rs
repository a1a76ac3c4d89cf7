//! Readers and writers of matrix files: what they accept, what they refuse and in which words.

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};

use sparsimd::io::{
    Matrix, ReadOptions, read_matrix, read_mtx, read_mtx_part, read_smtx, write_matrix, write_mtx_dense, write_smtx,
};
use sparsimd::{Coo, Csr, Error, Mat, Pattern, generate};

fn options() -> ReadOptions<'static> {
    ReadOptions::default()
}

fn file(dir: &Path, name: &str, text: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    out.write_all(text).unwrap();
    out.finish().unwrap()
}

fn entries(coo: &Coo<f64>) -> Vec<(u32, u32, f64)> {
    (0..coo.nnz()).map(|p| (coo.row_idx()[p], coo.col_idx()[p], coo.values()[p])).collect()
}

fn parse(text: &str) -> Result<Vec<(u32, u32, f64)>, Error> {
    let dir = tempfile::tempdir().unwrap();
    read_mtx::<f64>(&file(dir.path(), "a.mtx", text.as_bytes()), options()).map(|(coo, _)| entries(&coo))
}

#[test]
fn every_field_and_symmetry_of_coordinates() {
    let head = |kind: &str| format!("%%MatrixMarket matrix coordinate {kind}\n% a comment\n\n");
    let general = head("real general") + "2 3 3\n1 1 1.5\n  2\t3 -2e-3 \r\n1 3 7";
    assert_eq!(parse(&general).unwrap(), [(0, 0, 1.5), (1, 2, -2e-3), (0, 2, 7.0)]);
    let integer = head("integer general") + "2 3 1\n% between\n\n2 1 -4\n\n";
    assert_eq!(parse(&integer).unwrap(), [(1, 0, -4.0)]);
    let pattern = head("pattern symmetric") + "3 3 2\n2 2\n3 1\n";
    assert_eq!(parse(&pattern).unwrap(), [(1, 1, 1.0), (2, 0, 1.0), (0, 2, 1.0)]);
    let symmetric = head("real symmetric") + "3 3 2\n1 1 5\n3 2 4\n";
    assert_eq!(parse(&symmetric).unwrap(), [(0, 0, 5.0), (2, 1, 4.0), (1, 2, 4.0)]);
    let skew = head("real skew-symmetric") + "3 3 1\n3 2 4\n";
    assert_eq!(parse(&skew).unwrap(), [(2, 1, 4.0), (1, 2, -4.0)]);
    let empty = head("real general") + "0 5 0\n";
    assert_eq!(parse(&empty).unwrap(), []);
    let upper = "%%MATRIXMARKET Matrix Coordinate Real General\n1 1 1\n1 1 NaN\n";
    assert!(parse(upper).unwrap()[0].2.is_nan());
    assert_eq!(parse(&upper.replace("NaN", "-inf")).unwrap()[0].2, f64::NEG_INFINITY);
}

#[test]
fn parts_of_a_file_are_the_whole_and_count_its_lines() {
    let dir = tempfile::tempdir().unwrap();
    let kinds = ["real general", "integer symmetric", "pattern general"];
    for (kind, rows) in kinds.iter().flat_map(|kind| [0, 1, 7, 200].map(|rows| (kind, rows))) {
        let value = if kind.starts_with("pattern") { "" } else { " 3" };
        let lines: String =
            (1..=rows).map(|i| format!("{i} {}{value}\n{}", i / 2 + 1, "% more\n".repeat(i % 3))).collect();
        let text = format!("%%MatrixMarket matrix coordinate {kind}\n% a comment\n200 200 {rows}\n{lines}");
        let path = file(dir.path(), "a.mtx", text.as_bytes());
        let whole = read_mtx::<f64>(&path, options()).unwrap();
        for parts in [1, 2, 3, 5, 9, 300] {
            let part = |k| read_mtx_part::<f64>(&path, k, parts, options()).unwrap();
            let all: Vec<_> = (0..parts).map(part).collect();
            assert_eq!(all.iter().flat_map(|part| entries(&part.entries)).collect::<Vec<_>>(), entries(&whole.0));
            let total: u64 = all.iter().map(|part| part.stored).sum();
            assert_eq!((all[0].valued, all[0].claimed, total), (whole.1, rows as u64, rows as u64));
            all[0].check_total(&path, total).unwrap();
            let error = all[0].check_total(&path, total + 1).unwrap_err().to_string();
            assert!(error.ends_with(&format!("a.mtx:0: {} entries, and {rows} in the size line", rows + 1)), "{error}");
        }
        // A mistake is told by the one part that has its line, with its number in the file.
        if let Some(at) = text.rfind("200 101") {
            let line = 1 + text[..at].matches('\n').count();
            let wrong = text.replace("200 101", "201 101");
            let path = file(dir.path(), "b.mtx", wrong.as_bytes());
            for parts in [1, 2, 5, 9] {
                let results = (0..parts).map(|k| read_mtx_part::<f64>(&path, k, parts, options()));
                let errors: Vec<_> = results.filter_map(|part| part.err()).map(|e| e.to_string()).collect();
                assert_eq!(errors.len(), 1);
                assert!(errors[0].ends_with(&format!("b.mtx:{line}: row index 201 exceeds 200")), "{errors:?}");
            }
        }
    }
    let text = b"%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 2\n";
    let packed = file(dir.path(), "c.mtx.gz", &gzip(text));
    assert_eq!(read_mtx_part::<f64>(&packed, 0, 1, options()).unwrap().stored, 1);
    let error = read_mtx_part::<f64>(&packed, 1, 2, options()).unwrap_err().to_string();
    assert!(error.contains("c.mtx.gz is compressed: several ranks read it once it is unpacked"), "{error}");
    let array = file(dir.path(), "d.mtx", b"%%MatrixMarket matrix array real general\n1 1\n5\n");
    assert!(read_mtx_part::<f64>(&array, 0, 2, options()).unwrap_err().to_string().contains("d.mtx:2: an array"));
}

#[test]
fn arrays_keep_what_is_not_zero() {
    let head = |kind: &str| format!("%%MatrixMarket matrix array {kind}\n");
    let general = head("real general") + "2 3\n1\n0\n0.0\n4\n-0.0\n6\n";
    assert_eq!(parse(&general).unwrap(), [(0, 0, 1.0), (1, 1, 4.0), (1, 2, 6.0)]);
    let symmetric = head("integer symmetric") + "3 3\n1\n2\n3\n0\n5\n6\n";
    assert_eq!(
        parse(&symmetric).unwrap(),
        [(0, 0, 1.0), (1, 0, 2.0), (0, 1, 2.0), (2, 0, 3.0), (0, 2, 3.0), (2, 1, 5.0), (1, 2, 5.0), (2, 2, 6.0)]
    );
    let skew = head("real skew-symmetric") + "3 3\n1\n2\n3\n";
    assert_eq!(
        parse(&skew).unwrap(),
        [(1, 0, 1.0), (0, 1, -1.0), (2, 0, 2.0), (0, 2, -2.0), (2, 1, 3.0), (1, 2, -3.0)]
    );
    assert_eq!(parse(&(head("real general") + "0 3\n")).unwrap(), []);
    assert_eq!(parse(&(head("real symmetric") + "0 0\n")).unwrap(), []);
}

/// The line and the words of the error that `text` gives as a file called `name`.
fn refusal(name: &str, text: &[u8]) -> (u64, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), name, text);
    match read_matrix::<f32>(&path, options()) {
        Err(Error::Parse { path: at, line, detail }) => {
            assert_eq!(at, path);
            (line, detail)
        }
        other => panic!("{:?} gave {other:?}", String::from_utf8_lossy(text)),
    }
}

#[test]
fn bad_matrix_market_files_are_refused_at_their_line() {
    let real = "%%MatrixMarket matrix coordinate real general\n";
    let symmetric = "%%MatrixMarket matrix coordinate real symmetric\n";
    let skew = "%%MatrixMarket matrix coordinate real skew-symmetric\n";
    let array = "%%MatrixMarket matrix array real general\n";
    for (text, line, words) in [
        (String::new(), 0, "the file is empty"),
        ("hello\n".into(), 1, "the first line is not"),
        ("%%MatrixMarket vector coordinate real general\n".into(), 1, "object \"vector\""),
        ("%%MatrixMarket matrix coordinate complex general\n".into(), 1, "field \"complex\""),
        ("%%MatrixMarket matrix coordinate real hermitian\n".into(), 1, "symmetry \"hermitian\""),
        ("%%MatrixMarket matrix dense real general\n".into(), 1, "format \"dense\""),
        ("%%MatrixMarket matrix array pattern general\n".into(), 1, "\"pattern\""),
        (format!("{real}% only comments\n"), 2, "before the size line"),
        (format!("{real}2 2\n"), 2, "ROWS COLUMNS ENTRIES"),
        (format!("{real}2 x 1\n1 1 1\n"), 2, "ROWS COLUMNS ENTRIES"),
        (format!("{real}2 -2 1\n1 1 1\n"), 2, "ROWS COLUMNS ENTRIES"),
        (format!("{real}99999999999999999999 2 1\n1 1 1\n"), 2, "ROWS COLUMNS ENTRIES"),
        (format!("{real}5000000000 2 1\n1 1 1\n"), 2, "largest dimension"),
        (format!("{real}4000000000 4000000000 1\n1 1 1\n"), 3, "is trusted with"),
        (format!("{real}2 2 5\n1 1 1\n"), 2, "5 entries do not fit"),
        (format!("{real}10000000 10000000 1000000000000\n1 1 1\n"), 3, "after 1 of 1000000000000 entries"),
        (format!("{symmetric}2 3 1\n1 1 1\n"), 2, "not square"),
        (format!("{skew}2 2 1\n2 2 1\n"), 3, "diagonal"),
        (format!("{real}2 2 1\n0 1 1\n"), 3, "row index 0: indices start at 1"),
        (format!("{real}2 2 1\n1 0 1\n"), 3, "column index 0"),
        (format!("{real}2 2 1\n3 1 1\n"), 3, "row index 3 exceeds 2"),
        (format!("{real}2 2 1\n1 99999999999999999999999 1\n"), 3, "column index: \"99999999999999999999999\""),
        (format!("{real}2 2 1\n-1 1 1\n"), 3, "row index: \"-1\""),
        (format!("{real}2 2 1\n1.5 1 1\n"), 3, "row index: \"1.5\""),
        (format!("{real}2 2 1\n\n% c\n1 1 abc\n"), 5, "value: \"abc\""),
        (format!("{real}2 2 1\n1 1 1x\n"), 3, "value: \"1x\""),
        (format!("{real}2 2 1\n1 1\n"), 3, "value: the end of the line"),
        (format!("{real}2 2 1\n1 1 1 1\n"), 3, "follows a complete entry"),
        (format!("{real}2 2 2\n1 1 1\n"), 3, "after 1 of 2 entries"),
        (format!("{real}2 2 1\n1 1 1\n\n1 2 1\n"), 5, "more entries than the 1"),
        (format!("{real}2 2 2\n1 1 1\n1 1 2\n"), 4, "row 1, column 1 occurs twice: line 3 has it too"),
        (format!("{real}2 2 4\n2 1 1\n% c\n2 2 1\n\n1 1 1\n2 2 3\n"), 8, "row 2, column 2 occurs twice: line 5"),
        (format!("{symmetric}3 3 4\n1 1 1\n3 2 1\n3 3 1\n2 3 5\n"), 6, "row 2, column 3 occurs twice: line 4"),
        (format!("{symmetric}3 3 3\n1 1 1\n3 2 1\n3 2 5\n"), 5, "row 3, column 2 occurs twice: line 4"),
        ("%%MatrixMarket matrix coordinate integer general\n1 1 1\n1 1 1.5\n".into(), 3, "not an integer"),
        (format!("{array}2 2\n1\n2\n3\n"), 5, "after 3 of 4 entries"),
        (format!("{array}1 2\n1\n2\n3\n"), 5, "more than the 2 values"),
        (format!("{array}1 2\n1 2\n"), 3, "follows a complete entry"),
        (format!("{array}4000000000 4000000000\n1\n"), 3, "after 1 of"),
    ] {
        let (at, detail) = refusal("bad.mtx", text.as_bytes());
        assert!(at == line && detail.contains(words), "{text:?} gave line {at}: {detail}");
    }
    assert!(refusal("bad.mtx", b"%%MatrixMarket \xff\xfe\n").1.contains("not text"));
}

#[test]
fn bad_smtx_files_are_refused() {
    for (text, line, words) in [
        ("", 0, "empty"),
        ("2, 2\n", 1, "ROWS, COLUMNS, NONZEROS"),
        ("2, 2, 9\n0 1 2\n0 1\n", 1, "9 nonzeros do not fit"),
        ("5000000000, 2, 1\n", 1, "largest dimension"),
        ("2, 2, 2\n0 1 2\n0\n", 3, "after 4 of 5 numbers"),
        ("1000000, 1000000, 1000000000000\n0 1 2\n0\n", 3, "after 4 of"),
        ("2, 2, 2\n0 1 2\n0 1 1\n", 3, "follows after the last column index"),
        ("2, 2, 2\n0 x 2\n0 1\n", 2, "\"x\" is not a number"),
        ("2, 2, 2\n0 1 2\n0 -1\n", 3, "\"-1\" is not a number"),
        ("2, 2, 2\n1 1 2\n0 1\n", 2, "first row pointer is 1"),
        ("2, 2, 2\n0\n3\n2\n0 1\n", 4, "row 1: pointers decrease from 3 to 2"),
        ("2, 2, 2\n0 1 1\n0 1\n", 2, "last row pointer is 1"),
        ("2, 2, 2\n0 1 2\n0 2\n", 3, "column index 2 is not below 2"),
        ("2, 2, 2\n0 1 2\n0 4294967296\n", 3, "column index"),
        ("1, 2, 2\n0 2\n1\n1\n", 4, "column 1 occurs twice"),
    ] {
        let (at, detail) = refusal("bad.smtx", text.as_bytes());
        assert!(at == line && detail.contains(words), "{text:?} gave line {at}: {detail}");
    }
}

#[test]
fn missing_unreadable_and_foreign_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing.mtx");
    let error = read_matrix::<f32>(&missing, options()).unwrap_err();
    assert!(matches!(&error, Error::Io { path, .. } if *path == missing), "{error}");
    std::fs::create_dir(dir.path().join("folder.mtx")).unwrap();
    assert!(matches!(read_matrix::<f32>(&dir.path().join("folder.mtx"), options()), Err(Error::Io { .. })));
    assert!(matches!(read_matrix::<f32>(Path::new("a.csv"), options()), Err(Error::Argument { .. })));
    let whole = gzip(b"%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 2 1\n");
    let cut = file(dir.path(), "cut.mtx.gz", &whole[..whole.len() - 12]);
    assert!(matches!(read_matrix::<f32>(&cut, options()), Err(Error::Io { .. })));
    // A line without end, and a bomb: far more text than its header says.
    let mut endless = b"%%MatrixMarket matrix coordinate real general\n1 1 1\n".to_vec();
    endless.resize(4 << 20, b'1');
    assert_eq!(refusal("endless.mtx", &endless).0, 2);
    let mut bomb = b"%%MatrixMarket matrix coordinate real general\n2 2 1\n".to_vec();
    bomb.extend(std::iter::repeat_n(*b"1 1 1\n", 5_000_000).flatten());
    let (line, detail) = refusal("bomb.mtx", &gzip(&bomb));
    assert!(line == 4 && detail.contains("more entries"), "{line}: {detail}");
}

#[test]
fn what_is_written_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let a = generate::random_matrix::<f64>(300, 700, 0.9, 5).unwrap();
    let narrow = Csr::new(a.pattern().clone(), a.values().iter().map(|&x| (x / 3.0) as f32).collect()).unwrap();
    for name in ["a.mtx", "a.mtx.gz", "a.MTX"] {
        let path = dir.path().join(name);
        write_matrix(&path, &Matrix::Values(a.clone())).unwrap();
        assert_eq!(read_matrix::<f64>(&path, options()).unwrap(), Matrix::Values(a.clone()));
        write_matrix(&path, &Matrix::Values(narrow.clone())).unwrap();
        assert_eq!(read_matrix::<f32>(&path, options()).unwrap(), Matrix::Values(narrow.clone()));
        write_matrix(&path, &Matrix::<f32>::Pattern(a.pattern().clone())).unwrap();
        assert_eq!(read_matrix::<f32>(&path, options()).unwrap(), Matrix::Pattern(a.pattern().clone()));
    }
    let raw = std::fs::read(dir.path().join("a.mtx.gz")).unwrap();
    assert!(raw.starts_with(&[0x1f, 0x8b]));
    // Columns that do not ascend stay so in the pattern format.
    let unsorted = Pattern::new(3, 4, vec![0, 3, 3, 4], vec![3, 0, 2, 1]).unwrap();
    for pattern in [a.pattern(), &unsorted] {
        for name in ["a.smtx", "a.smtx.gz"] {
            let path = dir.path().join(name);
            write_smtx(&path, pattern).unwrap();
            assert_eq!(&read_smtx(&path, options()).unwrap(), pattern);
        }
    }
    for (rows, cols) in [(0, 0), (0, 5), (5, 0), (3, 3)] {
        let empty = generate::random_matrix::<f32>(rows, cols, 1.0, 0).unwrap();
        for name in ["e.mtx", "e.smtx"] {
            let path = dir.path().join(name);
            write_matrix(&path, &Matrix::Values(empty.clone())).unwrap();
            assert_eq!(read_matrix::<f32>(&path, options()).unwrap().pattern(), empty.pattern());
        }
    }
    let special = Csr::new(
        Pattern::new(1, 4, vec![0, 4], vec![0, 1, 2, 3]).unwrap(),
        vec![f32::INFINITY, f32::NAN, 1e-45, f32::MAX],
    );
    let path = dir.path().join("s.mtx");
    write_matrix(&path, &Matrix::Values(special.unwrap())).unwrap();
    let back = read_matrix::<f32>(&path, options()).unwrap().into_csr().unwrap();
    assert_eq!(format!("{:?}", back.values()), "[inf, NaN, 1e-45, 3.4028235e38]");
}

#[test]
fn dense_matrices_are_written_as_arrays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.mtx");
    let c = Mat::from_fn(3, 2, |i, j| (1 + i + 10 * j) as f32).unwrap();
    write_mtx_dense(&path, c.as_ref()).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, "%%MatrixMarket matrix array real general\n3 2\n1.0\n2.0\n3.0\n11.0\n12.0\n13.0\n");
    write_mtx_dense(&path, Mat::<f64>::zeros(0, 4).unwrap().as_ref()).unwrap();
    assert_eq!(read_mtx::<f64>(&path, options()).unwrap().0.nnz(), 0);
}

#[test]
fn a_failed_write_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.txt");
    std::fs::write(&path, "before").unwrap();
    let refused = sparsimd::io::write_atomically(&path, |out| {
        out.write_all(b"half")?;
        Err(std::io::Error::other("disk full"))
    });
    assert!(matches!(refused, Err(Error::Io { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "before");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let pattern = Pattern::new(1, 1, vec![0, 0], vec![]).unwrap();
    let nowhere = dir.path().join("no/such/folder.smtx");
    assert!(matches!(write_smtx(&nowhere, &pattern), Err(Error::Io { path, .. }) if path == nowhere));
}

#[cfg(unix)]
#[test]
fn devices_and_links_are_written_through() {
    let dir = tempfile::tempdir().unwrap();
    let pattern = Pattern::new(1, 1, vec![0, 0], vec![]).unwrap();
    let (link, target) = (dir.path().join("link.smtx"), dir.path().join("target.smtx"));
    std::fs::write(&target, "").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    write_smtx(&link, &pattern).unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(read_smtx(&target, options()).unwrap(), pattern);
    sparsimd::io::write_atomically(Path::new("/dev/null"), |out| out.write_all(b"x")).unwrap();
    assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
}

#[test]
fn patterns_are_filled_with_ones_or_from_a_seed() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "p.smtx", b"2 3 3\n0 2 3\n2 0 1\n");
    let read = || read_matrix::<f32>(&path, options()).unwrap();
    assert_eq!(read().into_csr().unwrap().values(), [1.0; 3]);
    let filled = read().into_csr_with(|nnz| sparsimd::generate::uniform_values(nnz, 4)).unwrap();
    assert_eq!(filled, read().into_csr_with(|nnz| sparsimd::generate::uniform_values(nnz, 4)).unwrap());
    assert!(filled.values().iter().all(|x| (-0.5..0.5).contains(x)));
    assert_ne!(filled, read().into_csr_with(|nnz| sparsimd::generate::uniform_values(nnz, 5)).unwrap());
}

#[test]
fn progress_reaches_the_end() {
    let last = std::sync::Mutex::new((0, 0));
    let progress = |done, total| *last.lock().unwrap() = (done, total);
    let path = common::shipped_matrix();
    read_mtx::<f32>(&path, options().progress(&progress)).unwrap();
    let size = std::fs::metadata(&path).unwrap().len();
    assert_eq!(*last.lock().unwrap(), (size, size));
}

/// Whatever the bytes, a reader gives a valid matrix or an error: no panic, no memory beyond reason.
#[test]
fn damaged_files_never_panic() {
    let seeds: [(&str, &[u8]); 5] = [
        ("f.mtx", b"%%MatrixMarket matrix coordinate real general\n% c\n3 4 3\n1 1 1.5\n2 3 -2e-3\n3 4 7\n"),
        ("f.mtx", b"%%MatrixMarket matrix coordinate integer skew-symmetric\n3 3 2\n2 1 4\n3 1 5\n"),
        ("f.mtx", b"%%MatrixMarket matrix array real symmetric\n2 2\n1\n0\n3\n"),
        ("f.smtx", b"3, 4, 3\n0 1 2 3\n0 2 3\n"),
        ("f.smtx", b"2, 2, 0\n0 0 0\n\n"),
    ];
    let dir = tempfile::tempdir().unwrap();
    let mut random = 1u64;
    let mut next = |bound: usize| {
        // Knuth's multiplier: good enough to pick places.
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % bound
    };
    let mut accepted = 0;
    for round in 0..1000 {
        let (name, text) = seeds[round % seeds.len()];
        let mut text = text.to_vec();
        for _ in 0..=next(3) {
            let at = next(text.len());
            match next(4) {
                0 => text[at] = next(256) as u8,
                1 => text[at] = b"0123456789 \n-.,e%x"[next(18)],
                2 => drop(text.remove(at)),
                _ => text.insert(at, b"9 \n-"[next(4)]),
            }
        }
        let path = if round % 7 == 0 {
            let mut packed = gzip(&text);
            let at = next(packed.len());
            packed[at] ^= 1 << next(8);
            file(dir.path(), name, &packed)
        } else {
            file(dir.path(), name, &text)
        };
        if let Ok(matrix) = read_matrix::<f32>(&path, options()) {
            let pattern = matrix.pattern();
            assert!(pattern.col_idx().iter().all(|&j| (j as usize) < pattern.cols()));
            accepted += 1;
        }
    }
    // Damage that does no harm (to a comment, a value) is common: the loop reaches the inside of the readers.
    assert!((50..950).contains(&accepted), "{accepted}");
}

/// Many blocks, and every thread count gives the same.
#[test]
fn long_files_are_read_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let a = generate::random_matrix::<f64>(3000, 400, 0.7, 8).unwrap();
    let path = dir.path().join("a.mtx");
    write_matrix(&path, &Matrix::Values(a.clone())).unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() > 8 << 20);
    let one = rayon_pool(1).install(|| read_matrix::<f64>(&path, options()).unwrap());
    let three = rayon_pool(3).install(|| read_matrix::<f64>(&path, options()).unwrap());
    assert_eq!(one, Matrix::Values(a.clone()));
    assert_eq!(one, three);
    // A pattern that is packed so well that its bytes promise fewer entries than it has.
    let packed = dir.path().join("a.mtx.gz");
    write_matrix(&packed, &Matrix::<f64>::Pattern(a.pattern().clone())).unwrap();
    assert!(std::fs::metadata(&packed).unwrap().len() / 4 < a.nnz() as u64);
    assert_eq!(read_matrix::<f64>(&packed, options()).unwrap(), Matrix::Pattern(a.pattern().clone()));
    // Lines of other forms among plain ones, and in another order.
    let plain = std::fs::read_to_string(&path).unwrap();
    let (head, lines) = (plain.lines().take(2), plain.lines().skip(2));
    let odd = lines.enumerate().map(|(k, line)| match k % 7 {
        1 => line.replace(' ', "\t "),
        2 => format!("  {line} \r"),
        3 => format!("% 1 1 1\n\n{line}"),
        4 => line.replacen(' ', " 000000000", 1),
        _ => line.to_owned(),
    });
    let mut odd: Vec<String> = head.map(str::to_owned).chain(odd).collect();
    assert_eq!(read_matrix::<f64>(&file(dir.path(), "odd.mtx", odd.join("\n").as_bytes()), options()).unwrap(), one);
    odd[2..].reverse();
    assert_eq!(read_matrix::<f64>(&file(dir.path(), "back.mtx", odd.join("\n").as_bytes()), options()).unwrap(), one);
    // A mistake near the end is found at its line.
    let mut text = std::fs::read(&path).unwrap();
    let at = text.len() - 3;
    text[at] = b'?';
    let lines = text.iter().filter(|&&c| c == b'\n').count() as u64;
    assert_eq!(refusal("late.mtx", &text).0, lines);
}

fn rayon_pool(threads: usize) -> sparsimd::Cpu {
    sparsimd::Cpu::builder().threads(threads).pin(false).build().unwrap()
}

/// The dimensions and counts that are known of the real matrices.
#[test]
fn real_matrices_have_their_known_sizes() {
    let Some(dir) = common::data_dir() else { return };
    let manifest = std::fs::read_to_string(dir.join("MANIFEST.tsv")).unwrap();
    let mut seen = 0;
    for line in manifest.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let path = dir.join(fields[0]);
        if sparsimd::io::Format::of(&path).is_err() {
            continue;
        }
        let matrix = read_matrix::<f32>(&path, options()).unwrap();
        let pattern = matrix.pattern();
        assert_eq!(format!("{}x{}", pattern.rows(), pattern.cols()), fields[3], "{}", fields[0]);
        assert_eq!(pattern.nnz().to_string(), fields[4], "{}", fields[0]);
        seen += 1;
    }
    assert!(seen >= 10, "{seen} matrices in {}", dir.display());
}

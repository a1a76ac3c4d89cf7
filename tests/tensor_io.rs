//! Tensor files: what is written is read back, real files are read as they are, damaged ones name the place.

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};

use sparsimd::generate::skewed;
use sparsimd::io::{
    Duplicates, ReadOptions, TnsbFile, TnsbStream, check_finite, read_dense, read_tensor, read_tns, read_tns_part,
    read_tnsb, read_tnsb_part, write_dense, write_tensor, write_tns, write_tnsb, write_tnsb_as,
};
use sparsimd::{CooTensor, Cpu, Error, Mat, bf16, f16};

fn options() -> ReadOptions<'static> {
    ReadOptions::default()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn file(dir: &tempfile::TempDir, name: &str, content: &[u8]) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn read(path: &Path) -> Result<CooTensor<f64>, Error> {
    read_tensor(path, false, Duplicates::Refuse, options())
}

#[test]
fn text_and_binary_files_hold_what_was_written() {
    let dir = folder();
    for dims in [vec![70, 600, 5], vec![1, 40, 3, 9], vec![50], vec![u32::MAX as usize, 4_000_000_000]] {
        let single: CooTensor<f32> = skewed(&dims, 50, 3).unwrap();
        let double: CooTensor<f64> = skewed(&dims, 50, 4).unwrap();
        for name in ["a.tns", "a.tns.gz", "a.tnsb"] {
            let path = dir.path().join(name);
            write_tensor(&path, &single).unwrap();
            assert!(read_tensor(&path, false, Duplicates::Refuse, options()).unwrap() == single, "{name} {dims:?}");
            write_tensor(&path, &double).unwrap();
            assert!(read(&path).unwrap() == double, "{name} {dims:?}");
        }
        for zero_based in [false, true] {
            let path = dir.path().join("b.tns");
            write_tns(&path, &double, true, zero_based).unwrap();
            assert!(read_tns::<f64>(&path, zero_based, options()).unwrap() == double);
        }
    }
    let empty = CooTensor::<f64>::new(vec![3, 0, 7], vec![vec![]; 3], vec![]).unwrap();
    for name in ["e.tns", "e.tnsb"] {
        let path = dir.path().join(name);
        write_tensor(&path, &empty).unwrap();
        assert!(read(&path).unwrap() == empty);
    }
}

#[test]
fn long_text_is_the_same_on_every_thread_count() {
    let dir = folder();
    let t: CooTensor<f64> = skewed(&[3000, 4000, 500], 200_000, 3).unwrap();
    let path = dir.path().join("long.tns");
    write_tns(&path, &t, true, false).unwrap();
    for threads in [1, 3] {
        let cpu = Cpu::builder().threads(threads).pin(false).build().unwrap();
        assert!(cpu.install(|| read(&path)).unwrap() == t);
    }
}

#[test]
fn comments_headers_and_odd_spacing_are_understood() {
    let dir = folder();
    let expected = CooTensor::new(vec![3, 5], vec![vec![0, 2], vec![4, 0]], vec![1.5, -2.0]).unwrap();
    for text in [
        "# c\n\n1 5 1.5\r\n # more\n\t3\t1  -2e0 ",
        "2\n3 5\n1 5 1.5\n3 1 -2\n",
        "#x\n 2 \n# y\n3\t5\n1 5 +1.5\n3 1 -2.",
    ] {
        assert!(read(&file(&dir, "t.tns", text.as_bytes())).unwrap() == expected, "{text:?}");
    }
    // Lengths of a header hold even where no entry reaches them, and where there is none.
    assert_eq!(read(&file(&dir, "t.tns", b"2\n9 7\n1 1 1\n")).unwrap().dims(), [9, 7]);
    assert_eq!(read(&file(&dir, "t.tns", b"2\n9 7\n")).unwrap().nnz(), 0);
}

#[test]
fn mistakes_in_text_name_the_line() {
    let dir = folder();
    for (text, line, word) in [
        ("", 0, "neither entries"),
        ("# only a comment\n", 1, "neither entries"),
        ("1 1 1 2.0\n1 1 2.0\n", 2, "coordinate 2 of 3"),
        ("1 1 1 2.0\n1 1\n", 2, "ends early"),
        ("1 1 1 2.0\n1 1 1 1 2.0\n", 2, "goes on"),
        ("1 1 1 2.0\n\n# c\n1 0 1 2.0\n", 4, "start at 1"),
        ("1 -1 1 2.0\n", 1, "not a whole number"),
        ("1 1.5 1 2.0\n", 1, "not a whole number"),
        ("1 1 x\n", 1, "not a number"),
        ("1 1 1 1 1 1 1 1 1 2.0\n", 1, "exceeds 8"),
        ("9\n1 1 1\n", 1, "order"),
        ("0\n\n", 1, "order"),
        ("3\n4 5\n", 2, "lengths of 3"),
        ("3\n", 1, "before the lengths"),
        ("2\n4 5\n1 6 1.0\n", 3, "exceeds 5"),
        ("2\n0 5\n1 1 1.0\n", 3, "mode 0, whose length is 0"),
        ("2\n4 5000000000\n", 2, "largest"),
        ("1 4294967296 1.0\n", 1, "exceeds 4294967295"),
        ("1 99999999999999999999999 1.0\n", 1, "not a whole number"),
        ("1 1 1.0\n2 2 1.0\n1 1 5.0\n", 3, "place of line 1"),
    ] {
        match read(&file(&dir, "bad.tns", text.as_bytes())) {
            Err(Error::Parse { line: found, detail, .. }) => {
                assert_eq!(found, line, "{text:?}: {detail}");
                assert!(detail.contains(word), "{text:?}: {detail}");
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }
    assert!(matches!(read(Path::new("/nonexistent/x.tns")), Err(Error::Io { .. })));
    assert!(matches!(read(Path::new("x.mtx")), Err(Error::Argument { .. })));
    assert!(matches!(read(Path::new("x.tnsb.gz")), Err(Error::Argument { .. })));
}

#[test]
fn duplicates_are_summed_on_request() {
    let dir = folder();
    let path = file(&dir, "d.tns", b"2 2 1.0\n1 1 1.0\n2 2 5.0\n");
    let t: CooTensor<f64> = read_tensor(&path, false, Duplicates::Sum, options()).unwrap();
    assert_eq!((t.coords(0), t.values()), (&[0, 1][..], &[1.0, 6.0][..]));
}

#[test]
fn every_damaged_byte_of_a_binary_file_is_noticed() {
    let dir = folder();
    let t: CooTensor<f32> = skewed(&[7, 6, 5], 30, 3).unwrap();
    let path = dir.path().join("a.tnsb");
    write_tnsb(&path, &t).unwrap();
    let opened = TnsbFile::open(&path).unwrap();
    assert_eq!((opened.dims(), opened.nnz(), opened.coords(1)), (&[7, 6, 5][..], 30, t.coords(1)));
    assert_eq!((opened.values_f32(), opened.values_f64()), (Some(t.values()), None));
    let good = std::fs::read(&path).unwrap();
    let covered = |at: usize| {
        // The header, its checksum, and the sections; only the padding between them is free.
        let sections = [(0, 176), (192, 120), (320, 120), (448, 120), (576, 120)];
        sections.iter().any(|&(start, len)| (start..start + len).contains(&at))
    };
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        let path = file(&dir, "bad.tnsb", &bad);
        match read_tnsb::<f32>(&path) {
            Err(Error::Parse { .. }) => assert!(covered(at), "byte {at}"),
            Ok(_) => assert!(!covered(at), "byte {at}"),
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    for len in [0, 7, 100, 191, good.len() - 1] {
        assert!(matches!(read_tnsb::<f32>(&file(&dir, "bad.tnsb", &good[..len])), Err(Error::Parse { .. })), "{len}");
    }
    let longer = [&good[..], &[0]].concat();
    assert!(read_tnsb::<f32>(&file(&dir, "bad.tnsb", &longer)).is_err());
    assert!(read_tnsb::<f32>(dir.path()).is_err());
    // Values are converted.
    assert!(read_tnsb::<f64>(&path).unwrap() == t.cast());
}

#[test]
fn halves_in_binary_files_are_rounded_once_and_widened() {
    // Ties, numbers that f32 would round onto a tie, NaN, infinity, subnormal and far too large ones.
    let just_above = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
    let values = vec![
        1.0,
        1.0 + 2f64.powi(-8),
        just_above,
        -just_above,
        1.0 + 3.0 * 2f64.powi(-8),
        1e-7,
        6e4,
        1e39,
        f64::NAN,
        -0.0,
    ];
    let n = values.len();
    let t = CooTensor::new(vec![n], vec![(0..n as u32).collect()], values).unwrap();
    let dir = folder();
    let path = dir.path().join("half.tnsb");
    let step = |x: f64| x.to_bits();
    write_tnsb_as::<bf16, f64>(&path, &t).unwrap();
    let got = read_tnsb::<f64>(&path).unwrap();
    let tie = 2f64.powi(-7);
    let wanted = [1.0, 1.0, 1.0 + tie, -1.0 - tie, 1.0 + 2.0 * tie];
    assert_eq!(got.values()[..5].iter().map(|&x| step(x)).collect::<Vec<_>>(), wanted.map(step));
    assert!(got.values()[7].is_infinite() && got.values()[8].is_nan() && step(got.values()[9]) == step(-0.0));
    assert!(read_tnsb::<f32>(&path).unwrap().values()[..7] == got.cast::<f32>().values()[..7]);
    let file = TnsbFile::open(&path).unwrap();
    assert!(file.values_f32().is_none() && file.values_f64().is_none() && file.coords(0) == t.coords(0));
    // A pass over the file has the same values.
    let stream = TnsbStream::open(&path).unwrap();
    let mut passed = Vec::new();
    let keep = |_, chunk: CooTensor<f64>| {
        passed.extend_from_slice(chunk.values());
        Ok(chunk)
    };
    stream.pass::<f64>(3, keep).unwrap();
    assert_eq!(
        passed.iter().map(|&x| step(x)).collect::<Vec<_>>(),
        got.values().iter().map(|&x| step(x)).collect::<Vec<_>>()
    );
    let bf16_bytes = std::fs::metadata(&path).unwrap().len();
    write_tnsb(&path, &t).unwrap();
    // Sections begin with whole cache lines.
    assert!((std::fs::metadata(&path).unwrap().len() - bf16_bytes).abs_diff(6 * n as u64) < 64);

    write_tnsb_as::<f16, f64>(&path, &t).unwrap();
    let got = read_tnsb::<f64>(&path).unwrap();
    assert_eq!(got.values()[..2], [1.0, 1.0 + 2f64.powi(-8)]);
    assert!((got.values()[5] - 1e-7).abs() <= 2f64.powi(-25) && (got.values()[6] - 6e4).abs() <= 16.0);
    assert!(got.values()[7].is_infinite() && got.values()[8].is_nan());
}

#[test]
fn parts_of_a_binary_file_are_the_whole() {
    let dir = folder();
    let path = dir.path().join("parts.tnsb");
    let t: CooTensor<f64> = skewed(&[900, 800, 700], 300_000, 3).unwrap();
    type Write = fn(&Path, &CooTensor<f64>) -> Result<(), Error>;
    let writers: [Write; 3] = [write_tnsb_as::<bf16, f64>, write_tnsb_as::<f32, f64>, write_tnsb];
    for write in writers {
        write(&path, &t).unwrap();
        let whole = read_tnsb::<f64>(&path).unwrap();
        for parts in [1, 3, 8] {
            let all: Vec<CooTensor<f64>> = (0..parts).map(|k| read_tnsb_part(&path, k, parts).unwrap()).collect();
            assert!(parts > 3 || all.iter().all(|part| part.nnz() > 0));
            assert!(all.iter().flat_map(|part| part.values()).eq(whole.values()));
            assert!((0..3).all(|mode| all.iter().flat_map(|part| part.coords(mode)).eq(whole.coords(mode))));
        }
    }
}

#[test]
fn messages_name_lines_and_quote_little() {
    let dir = folder();
    let message = |text: &str| {
        let path = file(&dir, "bad.tns", text.as_bytes());
        let error = read_tensor::<f64>(&path, false, Duplicates::Refuse, options()).unwrap_err().to_string();
        error.split_once("bad.tns:").unwrap().1.to_owned()
    };
    assert_eq!(message("1 1 2.0\n1 1 3.0\n"), "2: the place of line 1 occurs again");
    let headed = "# a comment\n2\n\n3 3\n1 2 1.0\n# another\n3 1 1.0\n\n1 2 5.0\n";
    assert_eq!(message(headed), "9: the place of line 5 occurs again");
    assert!(message("1 1 1.0\n2 2 1e400\n").starts_with("2: value: \"1e400\" is not a number"));
    assert!(message(&"7".repeat(100_000)).len() < 200);
    assert!(message(&format!("2\n{}\n", "7".repeat(100_000))).len() < 200);
    // Infinity as a word is a value, which a decomposition refuses with its line.
    let path = file(&dir, "inf.tns", b"1 1 1.0\n# comment\n2 2 -inf\n");
    let t: CooTensor<f64> = read_tensor(&path, false, Duplicates::Refuse, options()).unwrap();
    let error = check_finite(&path, &t).unwrap_err().to_string();
    assert!(error.ends_with("inf.tns:3: entry 2: the value -inf is not finite"), "{error}");
}

#[test]
fn a_file_that_others_cut_short_is_still_whole_where_it_was_opened() {
    let dir = folder();
    let t: CooTensor<f64> = skewed(&[700, 600, 500], 30_000, 3).unwrap();
    let path = dir.path().join("a.tnsb");
    write_tnsb(&path, &t).unwrap();
    let opened = TnsbFile::open(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    assert_eq!(opened.coords(2), t.coords(2));
    assert!(opened.into_coo::<f64>().unwrap() == t);
}

#[test]
fn real_tensors_have_their_documented_sizes() {
    let Some(dir) = common::data_dir() else { return };
    let sizes: Vec<(String, Vec<usize>, usize)> = common::tensor_files(&dir)
        .iter()
        .map(|path| {
            let t: CooTensor<f32> = read_tensor(path, false, Duplicates::Refuse, options()).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name.split('.').next().unwrap().to_owned(), t.dims().to_vec(), t.nnz())
        })
        .collect();
    for (name, dims, nnz) in [
        ("aminoacid", &[5, 201, 61][..], 61305),
        ("parti_3D_12031", &[100, 80, 60], 12031),
        ("nyc_taxi3", &[30, 30, 1464], 974456),
        ("yago_tkg4", &[6480, 10, 6327, 189], 201089),
        ("splatt_med5", &[60114, 83826, 23034, 1132, 100], 100000),
    ] {
        let found = sizes.iter().find(|s| s.0 == name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!((&found.1[..], found.2), (dims, nnz), "{name}");
    }
}

#[test]
fn dense_text_is_read_back() {
    let dir = folder();
    let path = dir.path().join("m.txt");
    for (rows, cols) in [(1, 1), (3, 40), (5000, 7), (1, 0)] {
        let a = Mat::from_fn(rows, cols, |i, j| (i as f64 - 0.1) / (j as f64 + 3.0)).unwrap();
        write_dense(&path, a.as_ref()).unwrap();
        let b: Mat<f64> = read_dense(&path, options()).unwrap();
        assert!(cols == 0 || (b.rows() == rows && (0..rows).all(|i| a.row(i) == b.row(i))));
    }
    let mut f = std::fs::File::create(&path).unwrap();
    write!(f, "# head\n1 2\n\n3 4 # tail\n").unwrap();
    let b: Mat<f32> = read_dense(&path, options()).unwrap();
    assert_eq!((b.rows(), b.row(1)), (2, &[3.0, 4.0][..]));
    for (text, line) in [("1 2\n3\n", 2), ("1 2\n\n3 x\n", 3)] {
        let path = file(&dir, "bad.txt", text.as_bytes());
        assert!(matches!(read_dense::<f64>(&path, options()), Err(Error::Parse { line: l, .. }) if l == line));
    }
}

#[test]
fn parts_of_a_text_are_the_whole_and_count_its_lines() {
    let dir = folder();
    let entries: String =
        (1..=300).map(|i| format!("{i} {} 2 {i}.5\n{}", i % 7 + 1, "# more\n".repeat(i % 3))).collect();
    for (head, lengths) in [("# without a header\n", [300, 7, 2]), ("3\n400 9 5\n", [400, 9, 5])] {
        let text = format!("{head}{entries}");
        let path = file(&dir, "a.tns", text.as_bytes());
        let whole = read(&path).unwrap();
        assert_eq!(whole.dims(), lengths);
        for parts in [1, 2, 5, 9, 1000] {
            let all: Vec<CooTensor<f64>> =
                (0..parts).map(|k| read_tns_part(&path, false, k, parts, options()).unwrap()).collect();
            let values: Vec<f64> = all.iter().flat_map(|part| part.values().to_vec()).collect();
            assert_eq!(values, whole.values());
            for (mode, &length) in lengths.iter().enumerate() {
                let coords: Vec<u32> = all.iter().flat_map(|part| part.coords(mode).to_vec()).collect();
                assert_eq!(coords, whole.coords(mode));
                assert_eq!(all.iter().map(|part| part.dims()[mode]).max(), Some(length));
            }
        }
        let line = 1 + text[..text.find("\n250 ").unwrap() + 1].matches('\n').count();
        let path = file(&dir, "b.tns", text.replace("\n250 ", "\n250.5 ").as_bytes());
        let results = (0..9).map(|k| read_tns_part::<f64>(&path, false, k, 9, options()));
        let errors: Vec<_> = results.filter_map(|part| part.err()).collect();
        assert!(matches!(&errors[..], [Error::Parse { line: l, .. }] if *l == line as u64), "{errors:?}");
    }
}

//! Dense matrices in files: numpy's format, Matrix Market arrays, and what is refused in which words.

use std::io::Write;
use std::path::{Path, PathBuf};

use sparsimd::io::{
    DenseFormat, ReadOptions, dense_header, read_dense, read_mtx_dense, read_npy, write_dense, write_npy,
};
use sparsimd::{Error, Mat, MatRef, Result, bf16, f16};

fn options() -> ReadOptions<'static> {
    ReadOptions::default()
}

/// An `.npy` file of version `version` with this header and these elements.
fn npy(version: u8, header: &str, elements: &[u8]) -> Vec<u8> {
    let mut out = b"\x93NUMPY".to_vec();
    out.extend([version, 0]);
    let len = header.len() as u32 + 1;
    out.extend(&len.to_le_bytes()[..if version == 1 { 2 } else { 4 }]);
    out.extend(header.bytes());
    out.push(b'\n');
    out.extend(elements);
    out
}

fn header(descr: &str, fortran: &str, shape: &str) -> String {
    format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}   ")
}

fn file(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn elements(a: &Mat<f64>) -> Vec<Vec<f64>> {
    a.iter_rows().map(<[f64]>::to_vec).collect()
}

#[test]
fn every_kind_of_numpy_file_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let x = [1.0, -2.5, 3.0, 1e30, 5.0, 0.1];
    let bytes = |one: fn(f64) -> Vec<u8>, order: [usize; 6]| order.iter().flat_map(|&p| one(x[p])).collect::<Vec<u8>>();
    let (by_rows, by_columns) = ([0, 1, 2, 3, 4, 5], [0, 3, 1, 4, 2, 5]);
    let single = |x: f64| f64::from(x as f32);
    for (descr, one, exact) in [
        ("<f4", (|x| (x as f32).to_le_bytes().to_vec()) as fn(f64) -> Vec<u8>, false),
        (">f4", |x| (x as f32).to_be_bytes().to_vec(), false),
        ("<f8", |x| x.to_le_bytes().to_vec(), true),
        (">f8", |x| x.to_be_bytes().to_vec(), true),
    ] {
        for (fortran, order) in [("False", by_rows), ("True", by_columns)] {
            for version in 1..=3 {
                let content = npy(version, &header(descr, fortran, "(2, 3)"), &bytes(one, order));
                let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                packed.write_all(&content).unwrap();
                let plain = file(dir.path(), "a.npy", &content);
                for path in [plain, file(dir.path(), "a.npy.gz", &packed.finish().unwrap())] {
                    let a: Mat<f64> = read_dense(&path, options()).unwrap();
                    let expected = x.map(|x| if exact { x } else { single(x) });
                    assert_eq!(elements(&a), [&expected[..3], &expected[3..]], "{descr} {fortran}");
                    let a: Mat<f32> = read_dense(&path, options()).unwrap();
                    assert_eq!(a.row(1), [1e30, 5.0, 0.1]);
                    let head = dense_header(&path).unwrap();
                    assert_eq!((head.rows, head.cols, head.element), (2, 3, Some(if exact { 8 } else { 4 })));
                }
            }
        }
    }
    let vector = file(
        dir.path(),
        "v.npy",
        &npy(1, &header("<f8", "False", "(2,)"), &bytes(|x| x.to_le_bytes().to_vec(), by_rows)[..16]),
    );
    assert_eq!(elements(&read_npy(&vector, options()).unwrap()), [[1.0], [-2.5]]);
    for (shape, rows, cols) in [("(0, 3)", 0, 3), ("(4, 0)", 4, 0), ("(0,)", 0, 1)] {
        let a: Mat<f32> =
            read_npy(&file(dir.path(), "e.npy", &npy(1, &header("<f4", "False", shape), &[])), options()).unwrap();
        assert_eq!((a.rows(), a.cols()), (rows, cols));
    }
}

/// Numbers of 16 bits are read as they are, and written with the types that numpy has for them.
#[test]
fn numpy_files_of_halves() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    // 1, -2.5, the largest, and the least number of f16; of bf16 1, -2.5, about 1e30, and its least.
    let single = [0x3c00u16, 0xc100, 0x7bff, 0x0001];
    let brain = [0x3f80u16, 0xc020, 0x7149, 0x0001];
    let numbers = |of: fn(u16) -> f64, bits: [u16; 4]| bits.map(of);
    let (of_f16, of_bf16) = (|x| f16::from_bits(x).to_f64(), |x| bf16::from_bits(x).to_f64());
    assert_eq!(numbers(of_f16, single)[..2], [1.0, -2.5]);
    assert_eq!(numbers(of_bf16, brain)[..2], [1.0, -2.5]);
    for (descr, bits, expected, little) in [
        ("<f2", single, numbers(of_f16, single), true),
        (">f2", single, numbers(of_f16, single), false),
        ("<V2", brain, numbers(of_bf16, brain), true),
        ("|V2", brain, numbers(of_bf16, brain), true),
    ] {
        let bytes: Vec<u8> = bits.iter().flat_map(|x| if little { x.to_le_bytes() } else { x.to_be_bytes() }).collect();
        let path = file(dir.path(), "h.npy", &npy(1, &header(descr, "False", "(2, 2)"), &bytes));
        assert_eq!(elements(&read_npy(&path, options())?).concat(), expected, "{descr}");
        assert_eq!(dense_header(&path)?.element, Some(2));
    }
    let path = dir.path().join("w.npy");
    let written = |descr: &str, bits: [u16; 4]| {
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes[10..].starts_with(format!("{{'descr': '{descr}'").as_bytes()));
        assert!(bytes.ends_with(&bits.map(u16::to_le_bytes).concat()), "{descr}");
    };
    write_npy(&path, &[4], MatRef::new(&single.map(f16::from_bits), 4, 1, 1)?)?;
    written("<f2", single);
    write_npy(&path, &[2, 2], MatRef::new(&brain.map(bf16::from_bits), 2, 2, 2)?)?;
    written("<V2", brain);
    Ok(())
}

#[test]
fn a_bad_numpy_file_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let of = |content: &[u8]| read_npy::<f64>(&file(dir.path(), "x.npy", content), options()).unwrap_err().to_string();
    let good = npy(1, &header("<f4", "False", "(2, 3)"), &[0; 24]);
    let text = of(&good[..good.len() - 1]);
    assert!(text.contains("x.npy:0: the header asks for 2 x 3 elements, 24 bytes; only 23 follow"), "{text}");
    assert!(of(&[&good[..], &[1]].concat()).contains("more: 25 follow"));
    assert!(of(&good[..60]).contains("the file ends in the header"));
    assert!(of(b"").contains("not an .npy file") && of(b"%%MatrixMarket").contains("not an .npy file"));
    assert!(of(&npy(4, "", &[])).contains("version 4.0"));
    for (descr, shape, words) in [
        ("<i8", "(2, 3)", "elements of type \"<i8\"; the types '<f2', '<f4' and '<f8' are read"),
        ("<c16", "(2, 3)", "elements of type"),
        ("|O", "(2, 3)", "elements of type"),
        ("<f4", "(2, 3, 1)", "an array of 3 dimensions"),
        ("<f4", "()", "an array of 0 dimensions"),
        ("<f8", "(99999999999, 99999999999)", "do not fit the address space"),
        ("<f8", "(9999999999, 9999999)", "only 24 follow"),
    ] {
        let text = of(&npy(1, &header(descr, "False", shape), &[0; 24]));
        assert!(text.contains(words), "{descr} {shape}: {text}");
    }
    assert!(of(&npy(1, "{'descr': '<f4'}", &[])).contains("does not describe an array"));
    assert!(of(&npy(2, "", &[])[..8]).contains("does not describe"));
    let long = [&b"\x93NUMPY\x02\x00"[..], &u32::MAX.to_le_bytes(), b"{"].concat();
    assert!(of(&long).contains("a header of 4294967295 bytes"));
    assert!(matches!(read_npy::<f32>(&dir.path().join("none.npy"), options()), Err(Error::Io { .. })));
    assert!(matches!(read_npy::<f32>(dir.path(), options()), Err(Error::Io { .. })));
}

#[test]
fn what_is_written_is_read_back() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.npy", "a.npy.gz", "a.mtx", "a.mtx.gz", "a.txt", "A.NPY"] {
        let path = dir.path().join(name);
        // The last one has a row longer than the pieces that are written.
        for (rows, cols) in [(1, 1), (3, 40), (500, 7), (2, if name == "a.txt" { 2_000 } else { 40_000 })] {
            let a = Mat::from_fn(rows, cols, |i, j| (i as f64 - 0.1) / (j as f64 + 3.0))?;
            write_dense(&path, a.as_ref())?;
            let (b, head) = (read_dense::<f64>(&path, options())?, dense_header(&path)?);
            assert!((head.rows, head.cols) == (rows, cols) && elements(&a) == elements(&b), "{name}");
            let narrow = MatRef::new(a.row(0), rows.min(2), cols / 2, cols - cols / 2)?;
            write_dense(&path, narrow)?;
            let b: Mat<f64> = read_dense(&path, options())?;
            assert!(cols < 2 || b.row(b.rows() - 1) == narrow.row(narrow.rows() - 1), "{name}");
        }
    }
    assert_eq!(DenseFormat::of(Path::new("a.npy.gz"))?, DenseFormat::Npy);
    assert!(DenseFormat::of(Path::new("a.csv")).unwrap_err().to_string().contains("a.csv"));
    Ok(())
}

#[test]
fn numpy_files_are_written_as_numpy_writes_them() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.npy");
    let a = Mat::<f32>::from_fn(2, 6, |i, j| (6 * i + j) as f32)?;
    write_npy(&path, &[2, 3, 2], a.as_ref())?;
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(&bytes[..10], b"\x93NUMPY\x01\x00\x76\x00");
    let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, 2), }";
    assert_eq!(bytes[10..128], *format!("{text:<117}\n").as_bytes());
    let numbers: Vec<f32> = bytes[128..].chunks(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
    assert_eq!(numbers, (0..12).map(|x| x as f32).collect::<Vec<_>>());
    write_npy(&path, &[12], a.as_ref())?;
    assert!(
        std::fs::read(&path).unwrap()[10..].starts_with(b"{'descr': '<f4', 'fortran_order': False, 'shape': (12,), }")
    );
    write_npy(&path, &[], Mat::<f64>::from_fn(1, 1, |_, _| 7.0)?.as_ref())?;
    assert!(
        std::fs::read(&path).unwrap()[10..].starts_with(b"{'descr': '<f8', 'fortran_order': False, 'shape': (), }")
    );
    assert!(matches!(write_npy(&path, &[11], a.as_ref()), Err(Error::Argument { name: "shape", .. })));
    assert!(write_npy(&path, &[usize::MAX, 2], a.as_ref()).is_err());
    Ok(())
}

#[test]
fn arrays_of_matrix_market_are_dense() {
    let dir = tempfile::tempdir().unwrap();
    let read = |text: &str| read_mtx_dense::<f64>(&file(dir.path(), "a.mtx", text.as_bytes()), options());
    let a = read("%%MatrixMarket matrix array real general\n% note\n2 3\n1\n0\n3\n4\n5\n6\n").unwrap();
    assert_eq!(elements(&a), [[1.0, 3.0, 5.0], [0.0, 4.0, 6.0]]);
    let a = read("%%MatrixMarket matrix array real symmetric\n2 2\n1\n2\n3\n").unwrap();
    assert_eq!(elements(&a), [[1.0, 2.0], [2.0, 3.0]]);
    let text = read("%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1 1\n").unwrap_err().to_string();
    assert!(text.contains("a.mtx:2: the format is coordinate"), "{text}");
    let text = read("%%MatrixMarket matrix array real general\n2 2\n1\n2\nx\n4\n").unwrap_err().to_string();
    assert!(text.contains("a.mtx:5:"), "{text}");
}

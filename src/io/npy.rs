//! numpy's format of one array, `.npy`, as numpy/lib/format.py describes it.
//!
//! ```text
//! 0    6 bytes  \x93NUMPY
//! 6    u8 u8    version: 1.0, 2.0 or 3.0
//! 8    u16      length of the header; u32 from version 2.0 on
//! ..   text     {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }, blanks, a line end
//! ..   ...      the elements, row by row, or column by column in Fortran's order
//! ```
//! Elements of 2, 4 or 8 bytes (`f2`, `f4`, `f8`) are read, of either byte order; little-endian ones are written. numpy has no bf16: what
//! `ml_dtypes` adds to it is written as bytes without a meaning, `V2`, and so here; reading takes them for bf16.

use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};

use sparsimd_kernels::{Number, Scalar, Stored, bf16, f16};

use super::text::{ReadOptions, Source, quoted};
use super::{DenseHeader, write_atomically};
use crate::dense::{Mat, MatRef};
use crate::error::{Error, Result};
use crate::memory;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Bytes of the longest header: that of a matrix has some 80, and numpy itself refuses more than 10 000.
const LONGEST_HEADER: usize = 64 << 10;
/// The elements start at a multiple of this, as numpy has it.
const ALIGN: usize = 64;
/// Elements that are read at a time.
pub(super) const PIECE: usize = 32 << 10;

/// How elements are stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element {
    /// 2, 4 or 8.
    pub bytes: usize,
    /// Whether those of 2 bytes are bf16.
    brain: bool,
    pub big_endian: bool,
}

impl Element {
    /// Calls `put(k, x)` with each element x of `bytes`, and its number k; `bytes` are overwritten.
    #[inline]
    pub fn decode(self, bytes: &mut [u8], mut put: impl FnMut(usize, f64)) {
        if self.big_endian {
            bytes.chunks_exact_mut(self.bytes).for_each(<[u8]>::reverse);
        }
        match self.bytes {
            2 if self.brain => {
                bytes.as_chunks().0.iter().enumerate().for_each(|(k, &x)| put(k, bf16::from_le_bytes(x).into()))
            }
            2 => bytes.as_chunks().0.iter().enumerate().for_each(|(k, &x)| put(k, f16::from_le_bytes(x).into())),
            4 => bytes.as_chunks().0.iter().enumerate().for_each(|(k, &x)| put(k, f32::from_le_bytes(x).into())),
            _ => bytes.as_chunks().0.iter().enumerate().for_each(|(k, &x)| put(k, f64::from_le_bytes(x))),
        }
    }
}

/// An open file whose header has been read.
pub(super) struct Npy {
    path: PathBuf,
    pub source: Source,
    /// Bytes before the elements.
    pub start: usize,
    pub element: Element,
    /// Whether elements come column by column.
    pub by_columns: bool,
    pub rows: usize,
    pub cols: usize,
}

/// What the header's text says.
#[derive(Debug, Default, PartialEq)]
struct Fields {
    descr: Option<String>,
    fortran_order: Option<bool>,
    shape: Option<Vec<usize>>,
}

/// What is left of a header's text: a literal of Python's.
struct Literal<'a>(&'a str);

impl<'a> Literal<'a> {
    /// Takes `word`, if it is next.
    fn take(&mut self, word: &str) -> Option<()> {
        self.0 = self.0.trim_start().strip_prefix(word)?;
        Some(())
    }

    /// Takes a text in quotes.
    fn text(&mut self) -> Option<&'a str> {
        let quote = ["'", "\""].into_iter().find(|quote| self.take(quote).is_some())?;
        let (text, rest) = self.0.split_once(quote)?;
        self.0 = rest;
        Some(text)
    }

    /// Takes a number.
    fn number(&mut self) -> Option<usize> {
        let text = self.0.trim_start();
        let (number, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        self.0 = rest;
        number.parse().ok()
    }

    /// Takes `(3, 4)`, `(3,)` or `()`.
    fn tuple(&mut self) -> Option<Vec<usize>> {
        let mut all = Vec::new();
        self.take("(")?;
        while self.take(")").is_none() {
            all.push(self.number()?);
            if self.take(",").is_none() {
                self.take(")")?;
                break;
            }
        }
        Some(all)
    }

    /// Takes the whole dictionary.
    fn fields(mut self) -> Option<Fields> {
        let mut fields = Fields::default();
        self.take("{")?;
        while self.take("}").is_none() {
            let key = self.text()?;
            self.take(":")?;
            match key {
                "descr" => fields.descr = Some(self.text()?.to_owned()),
                "shape" => fields.shape = Some(self.tuple()?),
                "fortran_order" => {
                    let yes = self.take("True").is_some();
                    if !yes {
                        self.take("False")?;
                    }
                    fields.fortran_order = Some(yes);
                }
                _ => return None,
            }
            if self.take(",").is_none() {
                self.take("}")?;
                break;
            }
        }
        self.0.trim().is_empty().then_some(fields)
    }
}

impl Npy {
    /// Opens `path` and reads its header.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let fail = |detail: String| Err(Error::Parse { path: path.to_owned(), line: 0, detail });
        let mut source = Source::open(path).map_err(io)?;
        let mut take = |len: usize| -> Result<Vec<u8>> {
            let mut bytes = Vec::new();
            (&mut source.reader).take(len as u64).read_to_end(&mut bytes).map_err(io)?;
            Ok(bytes)
        };
        let head = take(8)?;
        if !head.starts_with(MAGIC) || head.len() < 8 {
            return fail("not an .npy file".to_owned());
        }
        let wide = match head[6..] {
            [1, 0] => false,
            [2 | 3, 0] => true,
            _ => return fail(format!("version {}.{} of the format; 1.0, 2.0 and 3.0 are supported", head[6], head[7])),
        };
        let len = take(if wide { 4 } else { 2 })?;
        let bytes = len.iter().rev().fold(0usize, |sum, &byte| sum << 8 | usize::from(byte));
        if bytes > LONGEST_HEADER {
            return fail(format!("a header of {bytes} bytes; {LONGEST_HEADER} at most"));
        }
        let (start, header) = (head.len() + len.len() + bytes, take(bytes)?);
        if header.len() < bytes {
            return fail("the file ends in the header".to_owned());
        }
        let header = String::from_utf8_lossy(&header);
        let Some(Fields { descr: Some(descr), fortran_order: Some(by_columns), shape: Some(shape) }) =
            Literal(&header).fields()
        else {
            return fail(format!("the header {} does not describe an array of numbers", quoted(header.trim_end())));
        };
        let (big_endian, bytes) = match &descr[..] {
            "<f2" | "=f2" | "<V2" | "|V2" => (false, 2),
            ">f2" => (true, 2),
            "<f4" | "=f4" => (false, 4),
            "<f8" | "=f8" => (false, 8),
            ">f4" => (true, 4),
            ">f8" => (true, 8),
            _ => {
                let detail = "the types '<f2', '<f4' and '<f8' are read (in numpy: a.astype(\"f4\"))";
                return fail(format!("elements of type {}; {detail}", quoted(&descr)));
            }
        };
        let (rows, cols) = match shape[..] {
            [rows] => (rows, 1),
            [rows, cols] => (rows, cols),
            _ => return fail(format!("an array of {} dimensions; matrices have 2, vectors 1", shape.len())),
        };
        let element = Element { bytes, brain: descr.ends_with("V2"), big_endian };
        Ok(Self { path: path.to_owned(), source, start, element, by_columns, rows, cols })
    }

    fn fault(&self, detail: String) -> Error {
        Error::Parse { path: self.path.clone(), line: 0, detail }
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> Result<usize> {
        let bytes = self.rows.checked_mul(self.cols).and_then(|count| count.checked_mul(self.element.bytes));
        bytes
            .filter(|&bytes| bytes <= isize::MAX as usize)
            .ok_or_else(|| self.fault(format!("{} x {} elements do not fit the address space", self.rows, self.cols)))
    }

    /// Whether the elements' `bytes` are what follows the header: `there` bytes.
    pub fn check_length(&self, bytes: usize, there: u64) -> Result<()> {
        if there == bytes as u64 {
            return Ok(());
        }
        let word = if there < bytes as u64 { "only " } else { "more: " };
        let (rows, cols) = (self.rows, self.cols);
        Err(self.fault(format!("the header asks for {rows} x {cols} elements, {bytes} bytes; {word}{there} follow")))
    }

    /// The elements, after their number is known to be there.
    fn read<T: Scalar>(mut self, options: ReadOptions<'_>) -> Result<Mat<T>> {
        let io = |source| Error::Io { path: self.path.clone(), source };
        let (rows, cols, bytes) = (self.rows, self.cols, self.bytes()?);
        // What is compressed or comes from a pipe is not known to be there before it has been read.
        let (mut held, mut there) =
            (Cursor::new(Vec::new()), self.source.meter.stored.saturating_sub(self.start as u64));
        if !self.source.plain {
            let content = held.get_mut();
            (&mut self.source.reader).take(bytes as u64 + 1).read_to_end(content).map_err(io)?;
            there = content.len() as u64;
        }
        self.check_length(bytes, there)?;
        let each = self.element.bytes;
        memory::ensure(self.path.display(), bytes / each * size_of::<T>())?;
        let mut out = Mat::zeros(rows, cols)?;
        let reader: &mut dyn Read = if self.source.plain { &mut self.source.reader } else { &mut held };
        let len = if self.by_columns { rows } else { cols };
        let (count, mut line, mut at) = (bytes / each, 0, 0);
        let mut piece = vec![0u8; each * PIECE.min(count)];
        for start in (0..count).step_by(PIECE) {
            let mut piece = &mut piece[..each * PIECE.min(count - start)];
            reader.read_exact(piece).map_err(io)?;
            self.source.meter.report(options);
            while !piece.is_empty() {
                // Up to the end of the line: a row, or a column in Fortran's order.
                let (part, rest) = piece.split_at_mut(piece.len().min(each * (len - at)));
                self.element.decode(part, |k, x| match self.by_columns {
                    true => out.row_mut(at + k)[line] = T::from_f64(x),
                    false => out.row_mut(line)[at + k] = T::from_f64(x),
                });
                at += part.len() / each;
                if at == len {
                    (line, at) = (line + 1, 0);
                }
                piece = rest;
            }
        }
        Ok(out)
    }
}

/// Shape and element type of the matrix in the `.npy` file `path`.
pub(super) fn npy_header(path: &Path) -> Result<DenseHeader> {
    let Npy { rows, cols, element, .. } = Npy::open(path)?;
    Ok(DenseHeader { rows, cols, element: Some(element.bytes) })
}

/// The matrix in the `.npy` file `path`, elements rounded to `T`; a vector is one column.
///
/// # Errors
/// [`Error::Io`]; [`Error::Parse`] when the file is no `.npy` file, of other elements than floats of 2, 4 or 8 bytes, of other than one
/// or two dimensions, or of another length than its header says; [`Error::Memory`].
pub fn read_npy<T: Scalar>(path: &Path, options: ReadOptions<'_>) -> Result<Mat<T>> {
    Npy::open(path)?.read(options)
}

/// Writes the elements of `a`, row by row, to the `.npy` file `path` as an array of `shape`, of type `<f8`, `<f4`, `<f2` or, of bf16, `<V2`:
/// `numpy.load(path).view(ml_dtypes.bfloat16)`. A name ending in `.gz` is compressed.
///
/// # Errors
/// [`Error::Argument`] when `shape` does not have as many elements as `a`; [`Error::Io`], and nothing is left behind.
#[inline(never)]
pub fn write_npy<D: Stored>(path: &Path, shape: &[usize], a: MatRef<'_, D>) -> Result<()> {
    if shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim)) != a.rows().checked_mul(a.cols()) {
        return Err(Error::argument("shape", format!("{shape:?} for {} x {} elements", a.rows(), a.cols())));
    }
    let head = head::<D>(shape)?;
    write_atomically(path, |out| {
        out.write_all(&head)?;
        write_elements(out, a)
    })
}

/// The type of elements of `D`.
fn descr<D: Stored>() -> &'static str {
    match D::DTYPE {
        "f64" => "<f8",
        "f32" => "<f4",
        "f16" => "<f2",
        _ => "<V2",
    }
}

/// What comes before the elements of an array of `shape`.
pub(super) fn head<D: Stored>(shape: &[usize]) -> Result<Vec<u8>> {
    let dims: String = shape.iter().map(|dim| format!("{dim}, ")).collect();
    // One dimension keeps its comma, as tuples of Python's do.
    let dims = if shape.len() == 1 { dims.trim_end() } else { dims.trim_end_matches(", ") };
    let header = format!("{{'descr': '{}', 'fortran_order': False, 'shape': ({dims}), }}", descr::<D>());
    let before = MAGIC.len() + 4;
    let len = (before + header.len() + 1).next_multiple_of(ALIGN) - before;
    let Ok(header_len) = u16::try_from(len) else {
        return Err(Error::argument("shape", format!("{} dimensions", shape.len())));
    };
    let padded = format!("{header:<width$}\n", width = len - 1);
    Ok([&MAGIC[..], &[1, 0], &header_len.to_le_bytes(), padded.as_bytes()].concat())
}

/// Writes the elements of `a`, row by row.
pub(super) fn write_elements<D: Stored>(out: &mut dyn Write, a: MatRef<'_, D>) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    for row in a.iter_rows() {
        for part in row.chunks(PIECE) {
            bytes.clear();
            // Exact: the numbers are of that type.
            let each = part.iter().map(|x| x.widen().to_f64());
            match descr::<D>() {
                "<f8" => each.for_each(|x| bytes.extend(x.to_le_bytes())),
                "<f4" => each.for_each(|x| bytes.extend((x as f32).to_le_bytes())),
                "<f2" => each.for_each(|x| bytes.extend(f16::from_f64(x).to_le_bytes())),
                _ => each.for_each(|x| bytes.extend(bf16::from_f64(x).to_le_bytes())),
            }
            out.write_all(&bytes)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_literals_of_python() {
        let fields = |text: &str| Literal(text).fields();
        let of = |descr: &str, order, shape: &[usize]| {
            let (descr, shape) = (Some(descr.to_owned()), Some(shape.to_vec()));
            Some(Fields { descr, fortran_order: Some(order), shape })
        };
        let plain = "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }   \n";
        assert_eq!(fields(plain), of("<f8", false, &[3, 4]));
        assert_eq!(fields("{\"shape\":(7,),'fortran_order':True,'descr':'>f4'}"), of(">f4", true, &[7]));
        assert_eq!(fields("{'descr': 'O', 'fortran_order': False, 'shape': ()}"), of("O", false, &[]));
        assert_eq!(fields("{}"), Some(Fields::default()));
        let structured = "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (3,), }";
        let huge = "{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999,), }";
        for bad in [
            "",
            "{",
            "{'descr'}",
            "{'shape': (3, 4}",
            "{'shape': (-1,)}",
            "{'fortran_order': 1}",
            "{} x",
            structured,
            huge,
        ] {
            assert_eq!(fields(bad), None, "{bad}");
        }
        assert_eq!(fields("{'fortran_order': Maybe}"), None);
    }
}

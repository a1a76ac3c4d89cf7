//! Matrix Market: `%%MatrixMarket matrix coordinate|array real|integer|pattern general|symmetric|skew-symmetric`.
//!
//! ```text
//! %%MatrixMarket matrix coordinate real general      %%MatrixMarket matrix array real general
//! % comments                                         rows cols
//! rows cols entries                                  value        (one a line, column by column)
//! i j value        (one entry a line, 1-based)
//! ```
//! The mirror image of a symmetric or skew-symmetric file is filled in while reading. Of an array only what is not zero
//! is kept. Values are read as f64 and rounded to the element type. Blank lines are allowed anywhere, and comments too.

use std::path::Path;

use sparsimd_kernels::Scalar;

use super::number::{Cursor, write_chunks};
use super::text::{Cut, Fault, ReadOptions, Text, concat, quoted};
use super::{Matrix, write_atomically};
use crate::dense::{Mat, MatRef};
use crate::error::{Error, Result};
use crate::formats::Coo;

/// Dimensions that every header may claim, however short the file: 128 MiB of row pointers.
const FREE_DIM: u64 = 1 << 24;
/// Beyond [`FREE_DIM`], rows or columns allowed for each byte of text: far above any file that has a use for them.
const DIM_PER_BYTE: u64 = 256;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Field {
    Real,
    Integer,
    Pattern,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Symmetry {
    General,
    Symmetric,
    Skew,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub coordinate: bool,
    pub field: Field,
    symmetry: Symmetry,
    pub rows: u64,
    pub cols: u64,
    /// Entries of the file: as claimed for coordinates, as the dimensions and the symmetry have it for an array.
    pub entries: u64,
}

/// Entries of a stretch of the file, mirror images included.
pub(super) struct Entries<T> {
    pub rows: Vec<u32>,
    pub cols: Vec<u32>,
    pub values: Vec<T>,
    /// How many the file has, without mirror images.
    pub stored: u64,
}

/// The matrix in the Matrix Market file `path`, entries in file order, and whether the file has values: those of field
/// `pattern` have none, and 1 stands for each.
///
/// # Errors
/// [`Error::Io`]; [`Error::Parse`] with the line of the first mistake.
pub fn read_mtx<T: Scalar>(path: &Path, options: ReadOptions<'_>) -> Result<(Coo<T>, bool)> {
    let mut text = Text::open(path, options)?;
    let header = read_header(&mut text)?;
    let entries =
        if header.coordinate { read_coordinates(&mut text, &header)? } else { read_array(&mut text, &header)? };
    check_dims(&text, &header, text.bytes())?;
    let Entries { rows, cols, values, .. } = entries;
    let coo = Coo::new(header.rows as usize, header.cols as usize, rows, cols, values);
    Ok((coo.map_err(|e| super::matrix::whole_file(path, e))?, header.field != Field::Pattern))
}

/// The dense matrix in the Matrix Market file `path`, which must be of format `array`.
///
/// # Errors
/// As [`read_mtx`]; [`Error::Parse`] for a file of format `coordinate`.
pub fn read_mtx_dense<T: Scalar>(path: &Path, options: ReadOptions<'_>) -> Result<Mat<T>> {
    let mut text = Text::open(path, options)?;
    let header = read_array_header(&mut text)?;
    let entries = read_array::<T>(&mut text, &header)?;
    let mut out = Mat::zeros(header.rows as usize, header.cols as usize)?;
    for ((&i, &j), &x) in entries.rows.iter().zip(&entries.cols).zip(&entries.values) {
        out.row_mut(i as usize)[j as usize] = x;
    }
    Ok(out)
}

/// Rows and columns that the header of the Matrix Market file `path` has.
pub(super) fn mtx_shape(path: &Path) -> Result<(usize, usize)> {
    let header = read_array_header(&mut Text::open(path, ReadOptions::default())?)?;
    Ok((header.rows as usize, header.cols as usize))
}

/// The header of a dense matrix.
fn read_array_header(text: &mut Text<'_>) -> Result<Header> {
    let header = read_header(text)?;
    match header.coordinate {
        true => Err(text.fault("the format is coordinate, of sparse matrices: a dense one is an array")),
        false => Ok(header),
    }
}

/// Whether the dimensions are such as a text of so many bytes may claim.
pub(super) fn check_dims(text: &Text<'_>, header: &Header, bytes: u64) -> Result<()> {
    let (rows, cols) = (header.rows, header.cols);
    if rows.max(cols) > FREE_DIM.max(bytes.saturating_mul(DIM_PER_BYTE)) {
        return Err(text.fault(format!("{rows} x {cols} is more than a text of {bytes} bytes is trusted with")));
    }
    Ok(())
}

/// The banner, the comments and the size line.
pub(super) fn read_header(text: &mut Text<'_>) -> Result<Header> {
    let Some(banner) = text.next_line()? else {
        return Err(text.fault("the file is empty"));
    };
    let lower = banner.to_ascii_lowercase();
    let words: Vec<&str> = lower.split_whitespace().collect();
    let ["%%matrixmarket", object, format, field, symmetry] = words[..] else {
        return Err(text.fault("the first line is not `%%MatrixMarket matrix FORMAT FIELD SYMMETRY`"));
    };
    let unknown =
        |what: &str, word: &str, known: &str| Err(text.fault(format!("{what} {} is not {known}", quoted(word))));
    if object != "matrix" {
        return unknown("object", object, "matrix");
    }
    let coordinate = match format {
        "coordinate" => true,
        "array" => false,
        _ => return unknown("format", format, "coordinate or array"),
    };
    let field = match field {
        "real" | "double" => Field::Real,
        "integer" => Field::Integer,
        "pattern" if coordinate => Field::Pattern,
        "pattern" => return unknown("field of an array", field, "real or integer"),
        _ => return unknown("field", field, "real, integer or pattern"),
    };
    let symmetry = match symmetry {
        "general" => Symmetry::General,
        "symmetric" => Symmetry::Symmetric,
        "skew-symmetric" if field != Field::Pattern => Symmetry::Skew,
        "skew-symmetric" => return unknown("symmetry of a pattern", symmetry, "general or symmetric"),
        _ => return unknown("symmetry", symmetry, "general, symmetric or skew-symmetric"),
    };
    let size = loop {
        let Some(line) = text.next_line()? else {
            return Err(text.fault("the file ends before the size line"));
        };
        if !line.trim_start().is_empty() && !line.starts_with('%') {
            break line;
        }
    };
    let expected = if coordinate { "ROWS COLUMNS ENTRIES" } else { "ROWS COLUMNS" };
    let numbers: Option<Vec<u64>> = size.split_whitespace().map(|word| word.parse().ok()).collect();
    let (rows, cols, claimed) = match numbers.as_deref() {
        Some(&[rows, cols, entries]) if coordinate => (rows, cols, Some(entries)),
        Some(&[rows, cols]) if !coordinate => (rows, cols, None),
        _ => return Err(text.fault(format!("the size line {} is not `{expected}`", quoted(&size)))),
    };
    if rows.max(cols) > u64::from(u32::MAX) {
        return Err(text.fault(format!("{rows} x {cols} exceeds the largest dimension, {}", u32::MAX)));
    }
    if symmetry != Symmetry::General && rows != cols {
        return Err(text.fault(format!("{rows} x {cols} is not square, as a symmetric matrix is")));
    }
    // Neither product overflows: both factors are below 2^32.
    let places = match symmetry {
        Symmetry::General => rows * cols,
        _ if coordinate => rows * cols,
        Symmetry::Symmetric => rows * (rows + 1) / 2,
        Symmetry::Skew => rows * rows.saturating_sub(1) / 2,
    };
    let entries = claimed.unwrap_or(places);
    if entries > places {
        return Err(text.fault(format!("{entries} entries do not fit a {rows} x {cols} matrix")));
    }
    Ok(Header { coordinate, field, symmetry, rows, cols, entries })
}

/// The error of a file whose end comes before the last entry.
fn too_few(text: &Text<'_>, seen: u64, header: &Header) -> Error {
    text.fault(format!("the file ends after {seen} of {} entries", header.entries))
}

fn read_coordinates<T: Scalar>(text: &mut Text<'_>, header: &Header) -> Result<Entries<T>> {
    let mut chunks: Vec<Entries<T>> = Vec::new();
    let mut seen = 0u64;
    text.parse_blocks(
        Cut::Lines,
        |block| parse_coordinates(block, header, u64::MAX),
        |block, chunk| {
            let left = header.entries - seen;
            if chunk.stored > left {
                // Again, only to find the line of the first one too many.
                parse_coordinates::<T>(block, header, left)?;
            }
            seen += chunk.stored;
            chunks.push(chunk);
            Ok(())
        },
    )?;
    if seen < header.entries {
        return Err(too_few(text, seen, header));
    }
    Ok(Entries {
        rows: concat(text.path(), &mut chunks, |c| &mut c.rows)?,
        cols: concat(text.path(), &mut chunks, |c| &mut c.cols)?,
        values: concat(text.path(), &mut chunks, |c| &mut c.values)?,
        stored: seen,
    })
}

/// Parses whole lines `i j [value]`, at most `limit` of them.
pub(super) fn parse_coordinates<T: Scalar>(block: &[u8], header: &Header, limit: u64) -> Result<Entries<T>, Fault> {
    // A short entry, "123 456 1.25\n"; a mirror image each for those of symmetric files.
    let mirrored = if header.symmetry == Symmetry::General { 1 } else { 2 };
    let guess = mirrored * block.len() / 12;
    let mut out = Entries {
        rows: Vec::with_capacity(guess),
        cols: Vec::with_capacity(guess),
        values: Vec::with_capacity(guess),
        stored: 0,
    };
    let mut text = Cursor::new(block);
    loop {
        text.skip_space();
        match text.peek() {
            None => return Ok(out),
            Some(b'%') => {
                text.skip_line();
                continue;
            }
            Some(_) => {}
        }
        if out.stored == limit {
            return Err(fault(&text, format!("more entries than the {} of the size line", header.entries)));
        }
        let i = index(&mut text, "row", header.rows)?;
        let j = index(&mut text, "column", header.cols)?;
        let value = match header.field {
            Field::Pattern => T::ONE,
            field => T::from_f64(value(&mut text, field)?),
        };
        end_of_line(&mut text)?;
        out.stored += 1;
        out.rows.push(i);
        out.cols.push(j);
        out.values.push(value);
        if header.symmetry == Symmetry::General {
            continue;
        }
        let mirror = match header.symmetry {
            Symmetry::Skew if i == j => {
                return Err(fault(&text, "a skew-symmetric matrix has no entries on its diagonal".to_owned()));
            }
            Symmetry::Skew => -value,
            _ => value,
        };
        if i != j {
            out.rows.push(j);
            out.cols.push(i);
            out.values.push(mirror);
        }
    }
}

/// Takes a 1-based index up to `bound`, as a 0-based one.
#[inline(always)]
fn index(text: &mut Cursor<'_>, name: &str, bound: u64) -> Result<u32, Fault> {
    text.skip_blanks();
    let word = *text;
    match text.unsigned() {
        Some(i) if (1..=bound).contains(&i) && text.at_blank() => Ok((i - 1) as u32),
        Some(0) if text.at_blank() => Err(fault(text, format!("{name} index 0: indices start at 1"))),
        Some(i) if text.at_blank() => Err(fault(text, format!("{name} index {i} exceeds {bound}"))),
        _ => Err(fault(text, format!("{name} index: {} is not a number", word.word()))),
    }
}

/// Takes the value of an entry.
#[inline(always)]
fn value(text: &mut Cursor<'_>, field: Field) -> Result<f64, Fault> {
    text.skip_blanks();
    let word = *text;
    match text.float().filter(|_| text.at_blank()) {
        Some(x) if field == Field::Integer && x.fract() != 0.0 => {
            Err(fault(text, format!("value: {} is not an integer", word.word())))
        }
        Some(x) => Ok(x),
        None => Err(fault(text, format!("value: {} is not a number of double precision", word.word()))),
    }
}

/// Takes blanks up to the end of the line, which must be next.
#[inline]
fn end_of_line(text: &mut Cursor<'_>) -> Result<(), Fault> {
    text.skip_blanks();
    match text.peek() {
        None | Some(b'\n') => Ok(()),
        Some(_) => Err(fault(text, format!("{} follows a complete entry", text.word()))),
    }
}

#[cold]
fn fault(text: &Cursor<'_>, detail: String) -> Fault {
    Fault { line: text.line, detail }
}

/// The error of a file two of whose entries have the same place, at the line of the one that comes again; `None` when
/// there are no such entries. Lines are searched for by reading the file again.
pub(super) fn at_repeated<T: Scalar>(path: &Path, coo: &Coo<T>) -> Option<Error> {
    let (first, again) = coo.first_repeated()?;
    let (i, j) = (coo.row_idx()[again] + 1, coo.col_idx()[again] + 1);
    let before = match at_entry::<T>(path, first, String::new()) {
        Error::Parse { line, .. } => line,
        other => return Some(other),
    };
    Some(at_entry::<T>(path, again, format!("row {i}, column {j} occurs twice: line {before} has it too")))
}

/// The error `detail` at the line of entry `wanted` of a coordinate file, mirror images counted.
fn at_entry<T: Scalar>(path: &Path, wanted: usize, detail: String) -> Error {
    let search = || {
        let mut text = Text::open(path, ReadOptions::default())?;
        let header = read_header(&mut text)?;
        let mut seen = 0;
        text.parse_blocks(
            Cut::Lines,
            |block| parse_coordinates::<T>(block, &header, u64::MAX),
            |block, chunk| {
                let left = wanted - seen;
                seen += chunk.rows.len();
                if left >= chunk.rows.len() {
                    return Ok(());
                }
                // Lines before the entry's: each stands for it and, off the diagonal of a symmetric file, for its mirror.
                let (mut at, mut lines) = (0, 0);
                loop {
                    let mirrored = header.symmetry != Symmetry::General && chunk.rows[at] != chunk.cols[at];
                    at += 1 + usize::from(mirrored);
                    if at > left {
                        break;
                    }
                    lines += 1;
                }
                // The first entry too many is the one that is searched for.
                let stop = parse_coordinates::<T>(block, &header, lines).map(|_| ());
                stop.map_err(|fault| Fault { detail: detail.clone(), ..fault })
            },
        )
    };
    // A file that has become shorter meanwhile has no such line.
    search().err().unwrap_or_else(|| Error::Parse { path: path.to_owned(), line: 0, detail: detail.clone() })
}

/// The nonzeros of an array: its values come column by column, of a symmetric one only those from the diagonal down, of
/// a skew-symmetric one only those below it.
fn read_array<T: Scalar>(text: &mut Text<'_>, header: &Header) -> Result<Entries<T>> {
    let mut out = Entries { rows: Vec::new(), cols: Vec::new(), values: Vec::new(), stored: 0 };
    let first_row = |j: u64| match header.symmetry {
        Symmetry::General => 0,
        Symmetry::Symmetric => j,
        Symmetry::Skew => j + 1,
    };
    let (mut i, mut j) = (first_row(0), 0u64);
    text.parse_blocks(
        Cut::Lines,
        |block| parse_array(block, header, u64::MAX),
        |block, values| {
            let left = header.entries - out.stored;
            if values.len() as u64 > left {
                parse_array(block, header, left)?;
            }
            out.stored += values.len() as u64;
            for x in values {
                if x != 0.0 {
                    let x = T::from_f64(x);
                    let mirror = match header.symmetry {
                        Symmetry::Symmetric if i != j => Some(x),
                        Symmetry::Skew => Some(-x),
                        _ => None,
                    };
                    for (i, j, x) in [Some((i, j, x)), mirror.map(|x| (j, i, x))].into_iter().flatten() {
                        out.rows.push(i as u32);
                        out.cols.push(j as u32);
                        out.values.push(x);
                    }
                }
                i += 1;
                if i == header.rows {
                    j += 1;
                    i = first_row(j);
                }
            }
            Ok(())
        },
    )?;
    if out.stored < header.entries {
        return Err(too_few(text, out.stored, header));
    }
    Ok(out)
}

/// Parses whole lines of one value, at most `limit` of them.
fn parse_array(block: &[u8], header: &Header, limit: u64) -> Result<Vec<f64>, Fault> {
    let mut values = Vec::with_capacity(block.len() / 8);
    let mut text = Cursor::new(block);
    loop {
        text.skip_space();
        match text.peek() {
            None => return Ok(values),
            Some(b'%') => text.skip_line(),
            Some(_) if values.len() as u64 == limit => {
                let (rows, cols, entries) = (header.rows, header.cols, header.entries);
                return Err(fault(&text, format!("more than the {entries} values of a {rows} x {cols} array")));
            }
            Some(_) => {
                values.push(value(&mut text, header.field)?);
                end_of_line(&mut text)?;
            }
        }
    }
}

/// Writes `matrix` as a general coordinate file: of field `pattern` when it has no values, else `real` with the shortest
/// digits that read back as the same number. A name ending in `.gz` is compressed.
///
/// # Errors
/// [`Error::Io`]; nothing is left behind.
pub fn write_mtx<T: Scalar>(path: &Path, matrix: &Matrix<T>) -> Result<()> {
    let pattern = matrix.pattern();
    let (field, values) = match matrix {
        Matrix::Pattern(_) => ("pattern", None),
        Matrix::Values(csr) => ("real", Some(csr.values())),
    };
    write_atomically(path, |out| {
        writeln!(out, "%%MatrixMarket matrix coordinate {field} general")?;
        writeln!(out, "{} {} {}", pattern.rows(), pattern.cols(), pattern.nnz())?;
        write_chunks(out, pattern.nnz(), |text, range| {
            // The row of the first entry: the last one that starts at or before it.
            let mut i = pattern.row_ptr().partition_point(|&start| start <= range.start) - 1;
            for p in range {
                while pattern.row_ptr()[i + 1] <= p {
                    i += 1;
                }
                text.unsigned(i as u64 + 1).byte(b' ').unsigned(u64::from(pattern.col_idx()[p]) + 1);
                if let Some(values) = values {
                    text.byte(b' ').float(values[p]);
                }
                text.byte(b'\n');
            }
        })
    })
}

/// Writes the dense matrix `c` as a general array file, column by column. A name ending in `.gz` is compressed.
///
/// # Errors
/// [`Error::Io`]; nothing is left behind.
pub fn write_mtx_dense<T: Scalar>(path: &Path, c: MatRef<'_, T>) -> Result<()> {
    write_atomically(path, |out| {
        writeln!(out, "%%MatrixMarket matrix array real general\n{} {}", c.rows(), c.cols())?;
        write_chunks(out, c.rows() * c.cols(), |text, range| {
            for p in range {
                text.float(c.row(p % c.rows())[p / c.rows()]).byte(b'\n');
            }
        })
    })
}

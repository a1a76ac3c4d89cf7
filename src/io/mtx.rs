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

use super::entries::{Entries, Gathered, Lists};
use super::number::Cursor;
use super::text::{Cut, Fault, ReadOptions, Text, quoted};
use crate::dense::Mat;
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

/// A line's row, column and value.
type Entry = (u32, u32, f64);

/// The matrix in the Matrix Market file `path`, entries in file order, and whether the file has values: those of field
/// `pattern` have none, and 1 stands for each.
///
/// # Errors
/// [`Error::Io`]; [`Error::Parse`] with the line of the first mistake.
pub fn read_mtx<T: Scalar>(path: &Path, options: ReadOptions<'_>) -> Result<(Coo<T>, bool)> {
    let mut text = Text::open(path, options)?;
    let header = read_header(&mut text)?;
    let (entries, stored) = match header.coordinate {
        true => read_coordinates(&mut text, &header, header.entries)?,
        false => read_array(&mut text, &header)?,
    };
    check_all(&text, &header, stored)?;
    check_dims(&text, &header, text.bytes())?;
    Ok((to_coo(&header, entries), header.field != Field::Pattern))
}

/// The dense matrix in the Matrix Market file `path`, which must be of format `array`.
///
/// # Errors
/// As [`read_mtx`]; [`Error::Parse`] for a file of format `coordinate`.
pub fn read_mtx_dense<T: Scalar>(path: &Path, options: ReadOptions<'_>) -> Result<Mat<T>> {
    let mut text = Text::open(path, options)?;
    let header = read_array_header(&mut text)?;
    let (entries, stored) = read_array::<T>(&mut text, &header)?;
    check_all(&text, &header, stored)?;
    let mut out = Mat::zeros(header.rows as usize, header.cols as usize)?;
    for ((&i, &j), &x) in entries.indices[0].iter().zip(&entries.indices[1]).zip(&entries.values) {
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

/// Refuses a file that has fewer entries than its header says. The parser refuses more, by their line.
fn check_all(text: &Text<'_>, header: &Header, stored: u64) -> Result<()> {
    if stored < header.entries {
        return Err(text.fault(format!("the file ends after {stored} of {} entries", header.entries)));
    }
    Ok(())
}

/// The matrix of `entries`, whose indices were checked when they were parsed.
pub(super) fn to_coo<T: Scalar>(header: &Header, mut entries: Entries<T>) -> Coo<T> {
    let [rows, cols] = [0, 1].map(|mode| std::mem::take(&mut entries.indices[mode]));
    Coo::from_checked(header.rows as usize, header.cols as usize, rows, cols, entries.values)
}

/// The entries of the rest of a coordinate file, mirror images included, and how many the file has without these: at most `limit`.
pub(super) fn read_coordinates<T: Scalar>(
    text: &mut Text<'_>,
    header: &Header,
    limit: u64,
) -> Result<(Entries<T>, u64)> {
    let lists = Lists::new();
    let mirrored = if header.symmetry == Symmetry::General { 1 } else { 2 };
    // What the header claims, as far as the file can have it: a line has four bytes at least.
    let expected = mirrored * header.entries.min(text.share() / 4);
    let mut gathered = Gathered::new(text.path(), 2, expected as usize, &lists)?;
    let mut seen = 0u64;
    text.parse_blocks(
        Cut::Lines,
        |block| parse_coordinates(block, header, u64::MAX, &lists),
        |block, (entries, stored)| {
            let left = limit - seen;
            if stored > left {
                // Again, only to find the line of the first one too many.
                parse_coordinates::<T>(block, header, left, &lists)?;
            }
            seen += stored;
            Ok(gathered.push(entries)?)
        },
    )?;
    Ok((gathered.finish()?, seen))
}

/// Parses whole lines `i j [value]`, at most `limit` of them.
fn parse_coordinates<T: Scalar>(
    block: &[u8],
    header: &Header,
    limit: u64,
    lists: &Lists<T>,
) -> Result<(Entries<T>, u64), Fault> {
    // A short entry, "123 456 1.25\n"; a mirror image each for those of symmetric files.
    let mirrored = if header.symmetry == Symmetry::General { 1 } else { 2 };
    let mut out = lists.take(2, mirrored * block.len() / 12);
    let [mut rows, mut cols] = [0, 1].map(|mode| std::mem::take(&mut out.indices[mode]));
    let mut stored = 0;
    let mut text = Cursor::new(block);
    loop {
        let plain = if stored < limit { plain_entry(text, header) } else { None };
        let (i, j, value);
        ((i, j, value), text) = match plain {
            Some(entry) => entry,
            None => match next_entry(text, header, stored == limit)? {
                Some(entry) => entry,
                None => {
                    out.indices = vec![rows, cols];
                    return Ok((out, stored));
                }
            },
        };
        let value = T::from_f64(value);
        stored += 1;
        rows.push(i);
        cols.push(j);
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
            rows.push(j);
            cols.push(i);
            out.values.push(mirror);
        }
    }
}

/// Takes a line `i j [value]` and its end, as nearly all lines are; else nothing.
#[inline(always)]
fn plain_entry<'a>(mut ahead: Cursor<'a>, header: &Header) -> Option<(Entry, Cursor<'a>)> {
    let i = ahead.unsigned()?.wrapping_sub(1);
    ahead.take_blanks()?;
    let j = ahead.unsigned()?.wrapping_sub(1);
    let mut value = 1.0;
    if header.field != Field::Pattern {
        ahead.take_blanks()?;
        value = ahead.float()?;
    }
    ahead.skip_blanks();
    let integral = header.field != Field::Integer || value.fract() == 0.0;
    let faulty = i >= header.rows || j >= header.cols || !integral || (header.symmetry == Symmetry::Skew && i == j);
    if faulty || !ahead.take_newline() {
        return None;
    }
    Some(((i as u32, j as u32, value), ahead))
}

/// Takes the next entry, up to the end of its line; `None` at the end of the block. After a `full` number of entries there may be no more.
#[inline(never)]
fn next_entry<'a>(mut text: Cursor<'a>, header: &Header, full: bool) -> Result<Option<(Entry, Cursor<'a>)>, Fault> {
    loop {
        text.skip_space();
        match text.peek() {
            None => return Ok(None),
            Some(b'%') => text.skip_line(),
            Some(_) if full => {
                return Err(fault(&text, format!("more entries than the {} of the size line", header.entries)));
            }
            Some(_) => break,
        }
    }
    let i = index(&mut text, "row", header.rows)?;
    let j = index(&mut text, "column", header.cols)?;
    let value = match header.field {
        Field::Pattern => 1.0,
        field => value(&mut text, field)?,
    };
    end_of_line(&mut text)?;
    Ok(Some(((i, j, value), text)))
}

/// Takes a 1-based index up to `bound`, as a 0-based one.
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
        let lists = Lists::new();
        let mut seen = 0;
        text.parse_blocks(
            Cut::Lines,
            |block| parse_coordinates::<T>(block, &header, u64::MAX, &lists),
            |block, (entries, _)| {
                let (left, [rows, cols]) = (wanted - seen, [0, 1].map(|mode| &entries.indices[mode]));
                seen += rows.len();
                if left >= rows.len() {
                    return Ok(());
                }
                // Lines before the entry's: each stands for it and, off the diagonal of a symmetric file, for its mirror.
                let (mut at, mut lines) = (0, 0);
                loop {
                    let mirrored = header.symmetry != Symmetry::General && rows[at] != cols[at];
                    at += 1 + usize::from(mirrored);
                    if at > left {
                        break;
                    }
                    lines += 1;
                }
                // The first entry too many is the one that is searched for.
                let stop = parse_coordinates::<T>(block, &header, lines, &lists).map(drop);
                Ok(stop.map_err(|fault| Fault { detail: detail.clone(), ..fault })?)
            },
        )
    };
    // A file that has become shorter meanwhile has no such line.
    search().err().unwrap_or_else(|| Error::Parse { path: path.to_owned(), line: 0, detail: detail.clone() })
}

/// The nonzeros of an array: its values come column by column, of a symmetric one only those from the diagonal down, of
/// a skew-symmetric one only those below it. And how many values there are.
fn read_array<T: Scalar>(text: &mut Text<'_>, header: &Header) -> Result<(Entries<T>, u64)> {
    let (mut rows, mut cols, mut nonzeros, mut stored) = (Vec::new(), Vec::new(), Vec::new(), 0);
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
            let left = header.entries - stored;
            if values.len() as u64 > left {
                parse_array(block, header, left)?;
            }
            stored += values.len() as u64;
            for x in values {
                if x != 0.0 {
                    let x = T::from_f64(x);
                    let mirror = match header.symmetry {
                        Symmetry::Symmetric if i != j => Some(x),
                        Symmetry::Skew => Some(-x),
                        _ => None,
                    };
                    for (i, j, x) in [Some((i, j, x)), mirror.map(|x| (j, i, x))].into_iter().flatten() {
                        rows.push(i as u32);
                        cols.push(j as u32);
                        nonzeros.push(x);
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
    Ok((Entries { indices: vec![rows, cols], values: nonzeros }, stored))
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

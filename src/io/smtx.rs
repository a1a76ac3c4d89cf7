//! The Deep Learning Matrix Collection's format: a CSR pattern without values.
//!
//! ```text
//! rows, cols, nnz
//! row offsets: rows + 1 numbers, 0-based
//! column indices: nnz numbers, 0-based
//! ```
//! Columns stay in the order of the file.

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::number::{Cursor, write_chunks};
use super::text::{Cut, Fault, ReadOptions, Text, quoted};
use super::write_atomically;
use crate::error::{Error, Result};
use crate::formats::{Pattern, Place, Violation};
use crate::memory;

/// The pattern in the `.smtx` file `path`.
///
/// # Errors
/// [`Error::Io`]; [`Error::Parse`] with the line of the first mistake.
pub fn read_smtx(path: &Path, options: ReadOptions<'_>) -> Result<Arc<Pattern>> {
    let mut text = Text::open(path, options)?;
    let Some(header) = text.next_line()? else {
        return Err(text.fault("the file is empty"));
    };
    let numbers: Option<Vec<u64>> = header
        .split(|c: char| c == ',' || c.is_whitespace())
        .filter(|word| !word.is_empty())
        .map(|word| word.parse().ok())
        .collect();
    let Some(&[rows, cols, nnz]) = numbers.as_deref() else {
        return Err(text.fault(format!("the first line {} is not `ROWS, COLUMNS, NONZEROS`", quoted(&header))));
    };
    if rows.max(cols) > u64::from(u32::MAX) {
        return Err(text.fault(format!("{rows} x {cols} exceeds the largest dimension, {}", u32::MAX)));
    }
    if nnz > rows * cols {
        return Err(text.fault(format!("{nnz} nonzeros do not fit a {rows} x {cols} matrix")));
    }
    let (mut row_ptr, mut col_idx): (Vec<usize>, Vec<u32>) = (Vec::new(), Vec::new());
    // What the header claims, as far as the file can have it: a number has two bytes at least.
    let most = |claimed: u64| claimed.min(text.share() / 2) as usize;
    memory::grow(path.display(), &mut row_ptr, most(rows + 1))?;
    memory::grow(path.display(), &mut col_idx, most(nnz))?;
    // Numbers after the header: no overflow, since both are below 2^64 by far.
    let total = u128::from(rows) + 1 + u128::from(nnz);
    let mut seen = 0u128;
    // Memory that blocks are parsed to, again and again.
    let free = Mutex::new(Vec::new());
    let lock = || free.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    text.parse_blocks(
        Cut::Words,
        |block| {
            let room = lock().pop().unwrap_or_default();
            parse_numbers(block, u128::MAX, room)
        },
        |block, numbers| {
            if numbers.len() as u128 > total - seen {
                parse_numbers(block, total - seen, Vec::new())?;
            }
            seen += numbers.len() as u128;
            let offsets = numbers.len().min(rows as usize + 1 - row_ptr.len());
            row_ptr.extend(numbers[..offsets].iter().map(|&x| x as usize));
            // An index that does not fit u32 is out of range in any case: let the largest u32 stand for it.
            col_idx.extend(numbers[offsets..].iter().map(|&x| u32::try_from(x).unwrap_or(u32::MAX)));
            lock().push(numbers);
            Ok(())
        },
    )?;
    if seen < total {
        return Err(
            text.fault(format!("the file ends after {seen} of {total} numbers ({rows} + 1 offsets, {nnz} indices)"))
        );
    }
    Pattern::located(rows as usize, cols as usize, row_ptr, col_idx).map_err(
        |Violation { place, detail }| match place {
            Some(Place::Pointer(i)) => at_number(path, i as u128, detail),
            Some(Place::Column(p)) => at_number(path, u128::from(rows) + 1 + p as u128, detail),
            None => Error::Parse { path: path.to_owned(), line: 0, detail },
        },
    )
}

/// The error `detail` at the line of number `wanted` after the header, which is searched for by reading the file again.
fn at_number(path: &Path, wanted: u128, detail: String) -> Error {
    let search = || {
        let mut text = Text::open(path, ReadOptions::default())?;
        text.next_line()?;
        let mut seen = 0u128;
        text.parse_blocks(
            Cut::Words,
            |block| parse_numbers(block, u128::MAX, Vec::new()),
            |block, numbers| {
                if seen + numbers.len() as u128 > wanted {
                    // The first one too many is the one that is searched for.
                    let stop = parse_numbers(block, wanted - seen, Vec::new()).map(drop);
                    return Ok(stop.map_err(|fault| Fault { detail: detail.clone(), ..fault })?);
                }
                seen += numbers.len() as u128;
                Ok(())
            },
        )
    };
    // A file that has become shorter meanwhile has no such line.
    search().err().unwrap_or_else(|| Error::Parse { path: path.to_owned(), line: 0, detail: detail.clone() })
}

/// Parses blank-separated numbers, at most `limit` of them, to the memory of `out`.
fn parse_numbers(block: &[u8], limit: u128, mut out: Vec<u64>) -> Result<Vec<u64>, Fault> {
    out.clear();
    out.reserve(block.len() / 4);
    let mut text = Cursor::new(block);
    loop {
        // A number and a blank, as nearly all are.
        let mut ahead = text;
        if (out.len() as u128) < limit
            && let Some(x) = ahead.unsigned()
            && ahead.take_blanks().is_some()
        {
            out.push(x);
            text = ahead;
            continue;
        }
        text.skip_space();
        if text.peek().is_none() {
            return Ok(out);
        }
        let word = text;
        let fault = |detail: String| Fault { line: word.line, detail };
        if out.len() as u128 == limit {
            return Err(fault(format!("{} follows after the last column index", word.word())));
        }
        match text.unsigned().filter(|_| text.at_blank()) {
            Some(x) => out.push(x),
            None => return Err(fault(format!("{} is not a number", word.word()))),
        }
    }
}

/// Writes `pattern` to the `.smtx` file `path`; a name ending in `.gz` is compressed.
///
/// # Errors
/// [`Error::Io`]; nothing is left behind.
pub fn write_smtx(path: &Path, pattern: &Pattern) -> Result<()> {
    write_atomically(path, |out| {
        writeln!(out, "{}, {}, {}", pattern.rows(), pattern.cols(), pattern.nnz())?;
        write_chunks(out, pattern.rows() + 1, |text, range| {
            for &start in &pattern.row_ptr()[range] {
                text.unsigned(start as u64).byte(b' ');
            }
        })?;
        writeln!(out)?;
        write_chunks(out, pattern.nnz(), |text, range| {
            for &j in &pattern.col_idx()[range] {
                text.unsigned(u64::from(j)).byte(b' ');
            }
        })?;
        writeln!(out)
    })
}

//! Dense matrices as plain text, one row a line, as numpy.loadtxt and numpy.savetxt have it.

use std::path::Path;

use sparsimd_kernels::Scalar;

use super::number::{Cursor, write_chunks};
use super::text::{Cut, Fault, ReadOptions, Text};
use super::write_atomically;
use crate::dense::{Mat, MatRef};
use crate::error::Result;

/// Writes `a` to `path`, one row a line, elements separated by blanks, with the shortest digits that read back as the same
/// numbers.
pub(super) fn write_txt<T: Scalar>(path: &Path, a: MatRef<'_, T>) -> Result<()> {
    write_atomically(path, |out| {
        write_chunks(out, a.rows(), |text, range| {
            for i in range {
                for (j, &x) in a.row(i).iter().enumerate() {
                    if j > 0 {
                        text.byte(b' ');
                    }
                    text.float(x);
                }
                text.byte(b'\n');
            }
        })
    })
}

/// The matrix in the text file `path`: one row a line, elements separated by blanks; blank lines and what follows a `#` are
/// passed over. A file without rows is the 0 x 0 matrix.
/// The error of a mistake has its line: that of a word that is no number, or of a row of another length than the first one.
pub(super) fn read_txt<T: Scalar>(path: &Path, options: ReadOptions<'_>) -> Result<Mat<T>> {
    let mut text = Text::open(path, options)?;
    let mut cols: Option<usize> = None;
    let mut data: Vec<T> = Vec::new();
    text.parse_blocks(Cut::Lines, parse_rows, |_, rows| {
        for (line, row) in rows {
            let expected = *cols.get_or_insert(row.len());
            if row.len() != expected {
                let detail = format!("{} numbers in a matrix of {expected} columns", row.len());
                return Err(Fault { line, detail }.into());
            }
            data.extend(row.into_iter().map(T::from_f64));
        }
        Ok(())
    })?;
    let cols = cols.unwrap_or(0);
    let rows = data.len().checked_div(cols).unwrap_or(0);
    Mat::from_fn(rows, cols, |i, j| data[i * cols + j])
}

/// Parses whole lines of numbers; each row with its line.
fn parse_rows(block: &[u8]) -> Result<Vec<(u64, Vec<f64>)>, Fault> {
    let mut rows = Vec::new();
    let mut text = Cursor::new(block);
    while text.peek().is_some() {
        let line = text.line;
        let mut row = Vec::new();
        loop {
            text.skip_blanks();
            match text.peek() {
                None | Some(b'\n') => break,
                Some(b'#') => text.skip_line(),
                Some(_) => {
                    let word = text;
                    match text.float().filter(|_| text.at_blank()) {
                        Some(x) => row.push(x),
                        None => return Err(Fault { line, detail: format!("{} is not a number", word.word()) }),
                    }
                }
            }
        }
        text.take_newline();
        if !row.is_empty() {
            rows.push((line, row));
        }
    }
    Ok(rows)
}

//! FROSTT's text format of sparse tensors, `.tns`.
//!
//! ```text
//! # comment
//! ORDER              optional header (ParTI): the order alone on a line,
//! DIM DIM ... DIM    then the length of every mode
//! i j ... k value    one entry a line; coordinates start at 1 (or at 0 on request)
//! ```
//! Without a header the first entry tells the order and the largest coordinates the lengths. Values are read as f64 and
//! rounded to the element type.

use std::io::Write;
use std::path::Path;

use sparsimd_kernels::Scalar;

use super::atomic::write_pieces;
use super::entries::{Entries, Gathered, Lists};
use super::number::{Cursor, write_chunks};
use super::text::{Cut, Fault, ReadOptions, Text, quoted};
use super::write_atomically;
use crate::error::{Error, Result};
use crate::formats::{CooTensor, MAX_ORDER, SemiCoo, check_tensor_dims};
use crate::parallel;

/// What the lines of a file must look like.
struct Shape {
    order: usize,
    /// The lowest coordinate: 1 or 0.
    base: u64,
    /// From the header, if there is one.
    dims: Option<Vec<u64>>,
}

/// The tensor in the `.tns` file `path`, plain or gzip-compressed, entries in file order, repeated places included.
/// Coordinates start at 0 if `zero_based`, else at 1.
///
/// # Errors
/// [`crate::Error::Io`]; [`crate::Error::Parse`] with the line of the first mistake: an order outside 1 to 8, a line of another number of
/// words, a coordinate that is no number, 0 in a 1-based file, or beyond the header's length.
pub fn read_tns<T: Scalar>(path: &Path, zero_based: bool, options: ReadOptions<'_>) -> Result<CooTensor<T>> {
    read_tns_part(path, zero_based, 0, 1, options)
}

/// Part number `part` of `parts` of the `.tns` file `path`: lines of about as many bytes in each. Every entry is in one part; the parts'
/// entries, one part after the other, are those of [`read_tns`]. Without a header a part's own coordinates tell its lengths: those of
/// the tensor are the largest of all parts.
///
/// # Errors
/// As [`read_tns`], with lines counted in the file; [`crate::Error::Argument`] for a compressed file and several parts.
#[inline(never)]
pub fn read_tns_part<T: Scalar>(
    path: &Path,
    zero_based: bool,
    part: usize,
    parts: usize,
    options: ReadOptions<'_>,
) -> Result<CooTensor<T>> {
    let mut text = Text::open(path, options)?;
    let base = u64::from(!zero_based);
    let Some(line) = next_content(&mut text)? else {
        return Err(text.fault("the file has neither entries nor a header"));
    };
    let words = line.split_whitespace().count();
    let lists = Lists::new();
    let mut first: Option<Entries<T>> = None;
    let shape = if words == 1 {
        let dims = read_header(&mut text, &line)?;
        Shape { order: dims.len(), base, dims: Some(dims) }
    } else if words <= MAX_ORDER + 1 {
        let shape = Shape { order: words - 1, base, dims: None };
        let entry = parse_entries(line.as_bytes(), &shape, &lists).map_err(|fault| text.fault(fault.detail))?;
        first = Some(entry).filter(|_| part == 0);
        shape
    } else {
        return Err(text.fault(format!("{words} words a line: an order of {} exceeds {MAX_ORDER}", words - 1)));
    };
    text.take_part(part, parts)?;
    // As much memory as the file has bytes, four for each word.
    let expected = text.share() / (4 * (shape.order as u64 + 1));
    let mut gathered = Gathered::new(path, shape.order, expected as usize, &lists)?;
    first.into_iter().try_for_each(|entry| gathered.push(entry))?;
    text.parse_blocks(
        Cut::Lines,
        |block| parse_entries(block, &shape, &lists),
        |_, entries| Ok(gathered.push(entries)?),
    )?;
    let Entries { indices: coords, values } = gathered.finish()?;
    let dims: Vec<usize> = match shape.dims {
        Some(dims) => dims.iter().map(|&dim| dim as usize).collect(),
        None => coords.iter().map(|indices| parallel::max(indices).map_or(0, |i| i as usize + 1)).collect(),
    };
    // Coordinates were checked when they were parsed, or are not above their largest.
    check_tensor_dims(&dims).map_err(|e| super::matrix::whole_file(path, e))?;
    Ok(CooTensor::from_checked(dims, coords, values))
}

/// The lines of entries `wanted` of the file `path`, counted from 1, as far as the file still has them. The file is read again.
pub(super) fn entry_lines<const N: usize>(path: &Path, wanted: [usize; N]) -> Result<[u64; N]> {
    let mut text = Text::open(path, ReadOptions::default())?;
    let mut lines = [0; N];
    let Some(first) = next_content(&mut text)? else { return Ok(lines) };
    if first.split_whitespace().count() == 1 && next_content(&mut text)?.is_some() {
        next_content(&mut text)?;
    }
    for entry in 0..=wanted.iter().copied().max().unwrap_or(0) {
        for (line, _) in lines.iter_mut().zip(wanted).filter(|(_, wanted)| *wanted == entry) {
            *line = text.line();
        }
        if next_content(&mut text)?.is_none() {
            break;
        }
    }
    Ok(lines)
}

/// The next line that is neither blank nor a comment.
fn next_content(text: &mut Text<'_>) -> Result<Option<String>> {
    loop {
        match text.next_line()? {
            None => return Ok(None),
            Some(line) if line.trim_start().is_empty() || line.trim_start().starts_with('#') => {}
            Some(line) => return Ok(Some(line)),
        }
    }
}

/// The lengths of the modes, after the line that has the order alone.
fn read_header(text: &mut Text<'_>, line: &str) -> Result<Vec<u64>> {
    let order: usize = match line.trim().parse() {
        Ok(order) if (1..=MAX_ORDER).contains(&order) => order,
        _ => {
            return Err(
                text.fault(format!("a line of one word is the order, 1 to {MAX_ORDER}; this is {}", quoted(line)))
            );
        }
    };
    let Some(line) = next_content(text)? else {
        return Err(text.fault("the file ends before the lengths of the modes"));
    };
    let dims: Option<Vec<u64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
    match dims {
        Some(dims) if dims.len() == order => match dims.iter().find(|&&dim| dim > u64::from(u32::MAX)) {
            None => Ok(dims),
            Some(dim) => Err(text.fault(format!("length {dim} exceeds the largest one, {}", u32::MAX))),
        },
        _ => Err(text.fault(format!("{} is not the lengths of {order} modes", quoted(&line)))),
    }
}

/// Parses whole lines of `shape.order` coordinates and a value.
fn parse_entries<T: Scalar>(block: &[u8], shape: &Shape, lists: &Lists<T>) -> Result<Entries<T>, Fault> {
    // The shortest common entry: two digits and a blank for every word.
    let mut out = lists.take(shape.order, block.len() / (3 * (shape.order + 1)));
    let mut coordinates = [0; MAX_ORDER];
    let coordinates = &mut coordinates[..shape.order];
    let mut text = Cursor::new(block);
    loop {
        let value;
        (value, text) = match plain_entry(text, shape, coordinates) {
            Some(entry) => entry,
            None => match next_entry(text, shape, coordinates)? {
                Some(entry) => entry,
                None => return Ok(out),
            },
        };
        for (indices, &i) in out.indices.iter_mut().zip(&*coordinates) {
            indices.push(i);
        }
        out.values.push(T::from_f64(value));
    }
}

/// Takes a line of coordinates and a value, and its end, as nearly all lines are; else nothing.
#[inline(always)]
fn plain_entry<'a>(mut text: Cursor<'a>, shape: &Shape, coordinates: &mut [u32]) -> Option<(f64, Cursor<'a>)> {
    for (mode, coordinate) in coordinates.iter_mut().enumerate() {
        let i = text.unsigned()?.wrapping_sub(shape.base);
        if i >= bound(shape, mode) {
            return None;
        }
        *coordinate = i as u32;
        text.take_blanks()?;
    }
    let value = text.float()?;
    text.skip_blanks();
    text.take_newline().then_some((value, text))
}

/// Takes the next entry, up to the end of its line; `None` at the end of the block.
#[inline(never)]
fn next_entry<'a>(
    mut text: Cursor<'a>,
    shape: &Shape,
    coordinates: &mut [u32],
) -> Result<Option<(f64, Cursor<'a>)>, Fault> {
    loop {
        text.skip_space();
        match text.peek() {
            None => return Ok(None),
            Some(b'#') => text.skip_line(),
            Some(_) => break,
        }
    }
    for (mode, coordinate) in coordinates.iter_mut().enumerate() {
        text.skip_blanks();
        let word = text;
        match text.unsigned().filter(|_| text.at_blank()) {
            Some(i) if i >= shape.base && i - shape.base < bound(shape, mode) => *coordinate = (i - shape.base) as u32,
            found => return Err(bad_coordinate(&word, found, shape, mode)),
        }
    }
    text.skip_blanks();
    let word = text;
    let value = match text.float().filter(|_| text.at_blank()) {
        Some(x) => x,
        None if matches!(word.peek(), None | Some(b'\n')) => return Err(ragged(&word, shape, "ends early")),
        None => {
            let detail = format!("value: {} is not a number of double precision", word.word());
            return Err(Fault { line: word.line, detail });
        }
    };
    text.skip_blanks();
    match text.peek() {
        None | Some(b'\n') => Ok(Some((value, text))),
        Some(_) => Err(ragged(&text, shape, &format!("goes on with {}", text.word()))),
    }
}

/// The number of coordinates of `mode`.
#[inline]
fn bound(shape: &Shape, mode: usize) -> u64 {
    shape.dims.as_ref().map_or(u64::from(u32::MAX), |dims| dims[mode])
}

#[cold]
fn bad_coordinate(word: &Cursor<'_>, found: Option<u64>, shape: &Shape, mode: usize) -> Fault {
    let detail = match found {
        Some(0) => format!("coordinate 0 of mode {mode}: coordinates start at 1 in this file"),
        Some(i) if bound(shape, mode) == 0 => format!("coordinate {i} of mode {mode}, whose length is 0"),
        Some(i) => format!("coordinate {i} of mode {mode} exceeds {}", bound(shape, mode) - 1 + shape.base),
        None if matches!(word.peek(), None | Some(b'\n')) => return ragged(word, shape, "ends early"),
        None => format!("coordinate {mode} of {}: {} is not a whole number", shape.order, word.word()),
    };
    Fault { line: word.line, detail }
}

#[cold]
fn ragged(at: &Cursor<'_>, shape: &Shape, how: &str) -> Fault {
    Fault { line: at.line, detail: format!("the line {how}: entries have {} coordinates and a value", shape.order) }
}

/// Writes `tensor` to the `.tns` file `path`, with the shortest digits that read back as the same values; a name ending in
/// `.gz` is compressed. `header` adds the order and the lengths, which the entries alone do not always tell. Coordinates start at
/// 0 if `zero_based`, else at 1.
///
/// # Errors
/// [`crate::Error::Io`]; nothing is left behind.
#[inline(never)]
pub fn write_tns<T: Scalar>(path: &Path, tensor: &CooTensor<T>, header: bool, zero_based: bool) -> Result<()> {
    let base = u64::from(!zero_based);
    write_atomically(path, |out| {
        if header {
            write_header(out, tensor.dims())?;
        }
        write_chunks(out, tensor.nnz(), |text, range| {
            for p in range {
                for indices in tensor.all_coords() {
                    text.unsigned(u64::from(indices[p]) + base).byte(b' ');
                }
                text.float(tensor.values()[p]).byte(b'\n');
            }
        })
    })
}

/// The order and the lengths.
fn write_header(out: &mut dyn Write, dims: &[usize]) -> std::io::Result<()> {
    let lens: Vec<String> = dims.iter().map(usize::to_string).collect();
    writeln!(out, "{}\n{}", dims.len(), lens.join(" "))
}

/// Writes a tensor of the lengths `dims` to the `.tns` file `path`, with a header and 1-based, whose blocks come some at a time: `fill` calls
/// what it is given with each of them. Zeros are left out; a name ending in `.gz` is compressed.
///
/// # Errors
/// What `fill` returns; [`Error::Shape`] for blocks of a tensor of other lengths; [`Error::Io`]. Nothing is left behind.
pub fn write_tns_blocks<T: Scalar>(
    path: &Path,
    dims: &[usize],
    fill: impl FnOnce(&mut dyn FnMut(&SemiCoo<T>) -> Result<()>) -> Result<()>,
) -> Result<()> {
    write_pieces(path, |out| {
        let io = |source| Error::Io { path: path.to_owned(), source };
        write_header(out, dims).map_err(io)?;
        fill(&mut |y| {
            if y.dims() != dims {
                return Err(Error::shape("write_tns_blocks", format!("blocks of {:?} for {dims:?}", y.dims())));
            }
            let block = y.block_len();
            let written = write_chunks(out, y.num_blocks() * block, |text, range| {
                let mut place = [0; MAX_ORDER];
                for p in range.filter(|p| y.values().row(p / block)[p % block] != T::ZERO) {
                    y.sparse_modes().iter().zip(y.all_coords()).for_each(|(&mode, i)| place[mode] = i[p / block]);
                    let mut rest = p % block;
                    for &mode in y.dense_modes().iter().rev() {
                        place[mode] = (rest % dims[mode]) as u32;
                        rest /= dims[mode];
                    }
                    for &i in &place[..dims.len()] {
                        text.unsigned(u64::from(i) + 1).byte(b' ');
                    }
                    text.float(y.values().row(p / block)[p % block]).byte(b'\n');
                }
            });
            written.map_err(io)
        })
    })
}

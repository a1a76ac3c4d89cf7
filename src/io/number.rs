//! Numbers out of bytes and back, without the detour over `str`.

use std::io::Write;
use std::ops::Range;

use rayon::prelude::*;
use sparsimd_kernels::Scalar;

/// Numbers formatted by one task: some 100 KiB of text.
const WRITE_CHUNK: usize = 4096;

/// A position in a block of text.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Lines ended so far.
    pub line: u64,
}

impl<'a> Cursor<'a> {
    /// The start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, line: 0 }
    }

    /// The next byte, not taken.
    #[inline]
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Whether the last word taken was whole: a blank or the end of the line or of the text is next.
    #[inline]
    pub fn at_blank(&self) -> bool {
        matches!(self.peek(), None | Some(b' ' | b'\t' | b'\r' | b'\n'))
    }

    /// Passes over blanks inside the line.
    #[inline]
    pub fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r')) {
            self.at += 1;
        }
    }

    /// Passes over blanks and ends of lines.
    #[inline]
    pub fn skip_space(&mut self) {
        loop {
            self.skip_blanks();
            if !self.take_newline() {
                return;
            }
        }
    }

    /// Takes the end of the line if it is next.
    #[inline]
    pub fn take_newline(&mut self) -> bool {
        let newline = self.peek() == Some(b'\n');
        self.at += usize::from(newline);
        self.line += u64::from(newline);
        newline
    }

    /// Passes over the rest of the line, but not its end.
    pub fn skip_line(&mut self) {
        while self.peek().is_some_and(|c| c != b'\n') {
            self.at += 1;
        }
    }

    /// Takes a decimal number without sign, if one that fits is next.
    #[inline]
    pub fn unsigned(&mut self) -> Option<u64> {
        let start = self.at;
        let mut value = 0u64;
        while let Some(digit) = self.peek().map(|c| c.wrapping_sub(b'0')).filter(|&d| d < 10) {
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
            self.at += 1;
        }
        // 19 digits always fit.
        (1..=19).contains(&(self.at - start)).then_some(value)
    }

    /// Takes a decimal floating point number (`inf` and `nan` included), if one that double precision has is next.
    #[inline]
    pub fn float(&mut self) -> Option<f64> {
        let (value, len): (f64, usize) = fast_float2::parse_partial(&self.bytes[self.at..]).ok()?;
        // Digits that exceed the largest number; the words for infinity have none.
        if value.is_infinite() && self.bytes[self.at..][..len].iter().any(u8::is_ascii_digit) {
            return None;
        }
        self.at += len;
        Some(value)
    }

    /// The word at the cursor, shortened, for messages.
    pub fn word(&self) -> String {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|c| c.is_ascii_whitespace()).unwrap_or(rest.len());
        let shown = String::from_utf8_lossy(&rest[..len.min(24)]).into_owned();
        match len {
            0 => "the end of the line".to_owned(),
            25.. => format!("{shown:?}..."),
            _ => format!("{shown:?}"),
        }
    }
}

/// Text under construction.
pub(super) struct Digits(Vec<u8>);

impl Digits {
    /// Appends one byte.
    #[inline]
    pub fn byte(&mut self, c: u8) -> &mut Self {
        self.0.push(c);
        self
    }

    /// Appends a whole number.
    #[inline]
    pub fn unsigned(&mut self, x: u64) -> &mut Self {
        self.0.extend_from_slice(itoa::Buffer::new().format(x).as_bytes());
        self
    }

    /// Appends the shortest digits that read back as `x`.
    #[inline]
    pub fn float<T: Scalar>(&mut self, x: T) -> &mut Self {
        let mut buffer = ryu::Buffer::new();
        // Every f32 is the f64 that it is widened to; its own shortest digits are fewer.
        let digits = if size_of::<T>() == 4 { buffer.format(x.to_f64() as f32) } else { buffer.format(x.to_f64()) };
        self.0.extend_from_slice(digits.as_bytes());
        self
    }
}

/// Formats the items `0..count` in chunks by all threads and writes the chunks in order.
pub(super) fn write_chunks(
    out: &mut dyn Write,
    count: usize,
    format: impl Fn(&mut Digits, Range<usize>) + Sync,
) -> std::io::Result<()> {
    let chunks: Vec<usize> = (0..count).step_by(WRITE_CHUNK).collect();
    for batch in chunks.chunks(16 * rayon::current_num_threads()) {
        let texts: Vec<Digits> = batch
            .par_iter()
            .map(|&start| {
                let mut text = Digits(Vec::with_capacity(32 * WRITE_CHUNK));
                format(&mut text, start..(start + WRITE_CHUNK).min(count));
                text
            })
            .collect();
        texts.iter().try_for_each(|text| out.write_all(&text.0))?;
    }
    Ok(())
}

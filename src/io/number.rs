//! Numbers out of bytes and back, without the detour over `str`.

use std::io::Write;
use std::ops::Range;

use sparsimd_kernels::Scalar;

use crate::parallel;

/// Numbers formatted by one task: some 100 KiB of text.
const WRITE_CHUNK: usize = 4096;

/// Decimal digits that always fit 64 bits.
const MOST_DIGITS: usize = 19;
/// Integers up to here double precision has: all of 15 digits, and most of the 16 that numbers such as `1.000000000000000e+00` have.
const EXACT_INTEGERS: u64 = 1 << 53;
/// Powers of ten that fit 64 bits, and those that double precision has.
const POWERS: [u64; MOST_DIGITS + 1] = {
    let mut powers = [1; MOST_DIGITS + 1];
    let mut k = 1;
    while k < powers.len() {
        powers[k] = 10 * powers[k - 1];
        k += 1;
    }
    powers
};
const EXACT_POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

/// The number that the first decimal digits of `bytes` are, and how many there are: all in one register, a byte each.
#[inline(always)]
fn leading_digits(bytes: &[u8; 8]) -> (u64, usize) {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let digits = u64::from_le_bytes(*bytes) ^ (0x30 * ONES);
    // The high bit of every byte above 9, up to the first such byte: what it carries over is behind it.
    let others = (digits.wrapping_add(0x76 * ONES) | digits) & (0x80 * ONES);
    let count = others.trailing_zeros() as usize / 8;
    // Zeros in front; then pairs, fours and all eight are joined.
    let all = digits.unbounded_shl(64 - 8 * count as u32);
    let pairs = (all.wrapping_mul(10) + (all >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100) + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    ((fours.wrapping_mul(10_000) + (fours >> 32)) & 0xffff_ffff, count)
}

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
    #[inline(always)]
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Whether the last word taken was whole: a blank or the end of the line or of the text is next.
    #[inline(always)]
    pub fn at_blank(&self) -> bool {
        matches!(self.peek(), None | Some(b' ' | b'\t' | b'\r' | b'\n'))
    }

    /// Passes over blanks inside the line.
    #[inline(always)]
    pub fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r')) {
            self.at += 1;
        }
    }

    /// Passes over blanks and ends of lines.
    #[inline(always)]
    pub fn skip_space(&mut self) {
        loop {
            self.skip_blanks();
            if !self.take_newline() {
                return;
            }
        }
    }

    /// Takes the end of the line if it is next.
    #[inline(always)]
    pub fn take_newline(&mut self) -> bool {
        // A branch, not a sum: where the next line begins does not wait for this byte.
        if self.peek() != Some(b'\n') {
            return false;
        }
        self.at += 1;
        self.line += 1;
        true
    }

    /// Passes over the rest of the line, but not its end.
    pub fn skip_line(&mut self) {
        while self.peek().is_some_and(|c| c != b'\n') {
            self.at += 1;
        }
    }

    /// Takes blanks inside the line, of which there must be one at least.
    #[inline(always)]
    pub fn take_blanks(&mut self) -> Option<()> {
        let start = self.at;
        self.skip_blanks();
        (self.at > start).then_some(())
    }

    /// Takes a decimal number without sign, if one that fits is next.
    #[inline(always)]
    pub fn unsigned(&mut self) -> Option<u64> {
        if let Some((value, count @ 1..8)) = self.ahead(0).map(leading_digits) {
            self.at += count;
            return Some(value);
        }
        let (value, after) = self.long_unsigned()?;
        *self = after;
        Some(value)
    }

    /// The bytes from `offset` behind the cursor, where there are as many.
    #[inline(always)]
    fn ahead(&self, offset: usize) -> Option<&'a [u8; 8]> {
        self.bytes.get(self.at + offset..)?.first_chunk()
    }

    /// The number of any length, and the cursor after it.
    #[inline(never)]
    fn long_unsigned(mut self) -> Option<(u64, Self)> {
        let start = self.at;
        let mut value = 0u64;
        while let Some((digits, count)) = self.ahead(0).map(leading_digits) {
            value = value.wrapping_mul(POWERS[count]).wrapping_add(digits);
            self.at += count;
            if count < 8 {
                break;
            }
        }
        while let Some(digit) = self.peek().map(|c| c.wrapping_sub(b'0')).filter(|&d| d < 10) {
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
            self.at += 1;
        }
        (1..=MOST_DIGITS).contains(&(self.at - start)).then_some((value, self))
    }

    /// Takes a decimal floating point number (`inf` and `nan` included), if one that double precision has is next.
    #[inline(always)]
    pub fn float(&mut self) -> Option<f64> {
        let mut ahead = *self;
        let short = ahead.short_float().map(|value| (value, ahead));
        let (value, after) = short.or_else(|| self.long_float())?;
        *self = after;
        Some(value)
    }

    /// The number of any form, and the cursor after it.
    #[inline(never)]
    fn long_float(mut self) -> Option<(f64, Self)> {
        let (value, len): (f64, usize) = fast_float2::parse_partial(&self.bytes[self.at..]).ok()?;
        // Digits that exceed the largest number; the words for infinity have none.
        if value.is_infinite() && self.bytes[self.at..][..len].iter().any(u8::is_ascii_digit) {
            return None;
        }
        self.at += len;
        Some((value, self))
    }

    /// Takes a whole word `[-]digits[.digits][e[+-]digits]` whose digits, as an integer, and power of ten are so small that both are exact in
    /// double precision, and one operation rounds correctly (W. D. Clinger, "How to read floating point numbers accurately", 1990).
    #[inline(always)]
    fn short_float(&mut self) -> Option<f64> {
        let negative = self.take(b'-');
        let start = self.at;
        let mut mantissa = self.unsigned()?;
        let mut digits = self.at - start;
        let mut power = 0i64;
        if self.take(b'.') {
            let (fraction, places) = self.fraction()?;
            digits += places;
            // Whole numbers with a point are many: they need no division.
            if fraction != 0 {
                mantissa = mantissa.wrapping_mul(*POWERS.get(places)?).wrapping_add(fraction);
                power = -(places as i64);
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            power = power.checked_add(self.exponent()?)?;
        }
        if digits > MOST_DIGITS || mantissa > EXACT_INTEGERS || !self.at_blank() {
            return None;
        }
        let scale = *EXACT_POWERS.get(power.unsigned_abs() as usize)?;
        let value = if power < 0 { mantissa as f64 / scale } else { mantissa as f64 * scale };
        // The sign bit, since a branch on signs that alternate costs more.
        Some(f64::from_bits(value.to_bits() | u64::from(negative) << 63))
    }

    /// Takes a power of ten with or without a sign. A sign and two digits, as nearly all have, are taken by a branch: where the next
    /// number begins does not wait for them.
    #[inline(always)]
    fn exponent(&mut self) -> Option<i64> {
        let next = self.bytes.get(self.at..)?;
        if let Some(&[sign @ (b'+' | b'-'), tens @ b'0'..=b'9', ones @ b'0'..=b'9', end]) = next.first_chunk()
            && !end.is_ascii_digit()
        {
            self.at += 3;
            let power = i64::from(10 * (tens - b'0') + (ones - b'0'));
            return Some(if sign == b'-' { -power } else { power });
        }
        let minus = self.take(b'-');
        if !minus {
            self.take(b'+');
        }
        let power = i64::try_from(self.unsigned()?).ok()?;
        Some(if minus { -power } else { power })
    }

    /// Takes the digits behind a point: their number, and how many there are. Up to 16 of them are read without a branch, since numbers
    /// of 7 and of 9 digits alternate.
    #[inline(always)]
    fn fraction(&mut self) -> Option<(u64, usize)> {
        if let (Some(first), Some(second)) = (self.ahead(0), self.ahead(8)) {
            let ((first, places), (second, more)) = (leading_digits(first), leading_digits(second));
            let full = places / 8;
            let (second, more) = (second * full as u64, more * full);
            let places = places + more;
            let ends = (places < 16) | self.bytes.get(self.at + 16).is_none_or(|c| !c.is_ascii_digit());
            if places > 0 && ends {
                self.at += places;
                return Some((first * POWERS[more] + second, places));
            }
        }
        let (value, after) = self.long_unsigned()?;
        let places = after.at - self.at;
        *self = after;
        Some((value, places))
    }

    /// Takes `byte` if it is next.
    #[inline(always)]
    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
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
    let chunks = count.div_ceil(WRITE_CHUNK);
    let batch = 16 * parallel::threads();
    for first in (0..chunks).step_by(batch) {
        let texts = parallel::map_tasks(batch.min(chunks - first), |k| {
            let start = (first + k) * WRITE_CHUNK;
            let mut text = Digits(Vec::with_capacity(32 * WRITE_CHUNK));
            format(&mut text, start..(start + WRITE_CHUNK).min(count));
            text
        });
        texts.iter().try_for_each(|text| out.write_all(&text.0))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_words_and_long_ones_are_the_numbers_that_the_standard_library_reads() {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..200_000u64 {
            let digits = |random: &mut dyn FnMut(u64) -> u64| -> String {
                (0..=random(if round % 10 == 0 { 21 } else { 9 }))
                    .map(|_| char::from(b'0' + random(10) as u8))
                    .collect()
            };
            let sign = ["", "-", "+"][random(3) as usize];
            let mut word = format!("{sign}{}", digits(&mut random));
            if random(2) == 0 {
                word += &format!(".{}", digits(&mut random));
            }
            if random(3) == 0 {
                word +=
                    &format!("{}{}{}", ["e", "E"][random(2) as usize], ["", "-", "+"][random(3) as usize], random(40));
            }
            // Also where the text ends.
            for text in [word.clone(), format!("{word} 7 8 9 10 11"), format!("{word}\n3")] {
                let mut cursor = Cursor::new(text.as_bytes());
                let got = cursor.float().map(f64::to_bits);
                assert_eq!(got, word.parse().ok().map(f64::to_bits), "{word}");
                assert_eq!(cursor.at, word.len(), "{word}");
                let mut cursor = Cursor::new(text.as_bytes());
                let whole: String = text.chars().take_while(char::is_ascii_digit).collect();
                let want = whole.parse().ok().filter(|_| whole.len() <= MOST_DIGITS);
                assert_eq!(cursor.unsigned(), want, "{text}");
                assert!(want.is_none() || cursor.at == whole.len(), "{text}");
            }
        }
        for (word, bits) in [
            ("-0", -0.0f64),
            ("-0.0e5", -0.0),
            ("inf", f64::INFINITY),
            ("1e400", f64::NAN),
            ("9.007199254740993e15", 9007199254740992.0),
            ("-9.007199254740992e-7", -9.007199254740992e-7),
            ("1.000000000000000e+00", 1.0),
        ] {
            let got = Cursor::new(word.as_bytes()).float().unwrap_or(f64::NAN);
            assert_eq!(got.to_bits(), bits.to_bits(), "{word}");
        }
    }
}

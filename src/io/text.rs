//! Text as a stream of blocks, parsed in parallel in file order.
//!
//! ```text
//! while blocks are left:
//!     join( read (and inflate) the next batch of blocks,
//!           parse the blocks of the last batch in parallel, then hand the results on in order )
//! ```
//! A block ends between two lines, or between two words where a format has lines without bound, so that each can be
//! parsed alone. Memory is two batches, whatever the file's size or its compression ratio.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;

use crate::error::{Error, Result};
use crate::{memory, parallel};

/// Bytes of one block: large against the cost of a task, small enough that parsing finds the text in the L2 cache.
const BLOCK: usize = 512 << 10;
/// Blocks of one batch and thread: several, since blocks take unequal times.
const BLOCKS_PER_THREAD: usize = 4;
/// Bytes that one byte of text is parsed to, at most: an array of lines of one digit becomes numbers of 8 bytes, with as much
/// room again while they grow.
const PARSED: usize = 8;
/// The longest header line: ten times what any format needs.
const LONGEST_LINE: u64 = 1 << 20;
/// The first two bytes of every gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// How to read: so far only whom to tell about progress.
#[derive(Clone, Copy, Default)]
pub struct ReadOptions<'a> {
    progress: Option<&'a (dyn Fn(u64, u64) + Sync)>,
}

impl<'a> ReadOptions<'a> {
    /// Calls `progress(done, total)` now and then while a file is read, in bytes of the file as it is stored.
    pub fn progress(mut self, progress: &'a (dyn Fn(u64, u64) + Sync)) -> Self {
        self.progress = Some(progress);
        self
    }
}

impl std::fmt::Debug for ReadOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadOptions").field("progress", &self.progress.is_some()).finish()
    }
}

/// A mistake in a block: the line, counted from the block's first one, and what is wrong.
#[derive(Debug)]
pub(super) struct Fault {
    /// 0-based line inside the block.
    pub line: u64,
    /// What is wrong with it.
    pub detail: String,
}

/// Why reading ends with a block.
#[derive(Debug)]
pub(super) enum Stop {
    /// A mistake in it.
    Fault(Fault),
    /// Not the text's fault.
    Error(Error),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Where a block may end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cut {
    /// After a line.
    Lines,
    /// After a blank or a line.
    Words,
}

/// A file's content, inflated where the file is gzip-compressed.
pub(super) struct Source {
    /// The content.
    pub reader: BufReader<Box<dyn Read + Send>>,
    /// How far the file has been read.
    pub meter: Meter,
    /// Whether the content is what is stored, in a regular file.
    pub plain: bool,
}

/// How far a file has been read.
pub(super) struct Meter {
    /// Bytes of the file as it is stored.
    pub stored: u64,
    /// How many of them have been read.
    consumed: Arc<AtomicU64>,
}

impl Meter {
    /// Tells `options`.
    pub fn report(&self, options: ReadOptions<'_>) {
        if let Some(progress) = options.progress {
            progress(self.consumed.load(Ordering::Relaxed), self.stored);
        }
    }
}

impl Source {
    /// Opens `path`; the content, not the name, tells whether it is compressed.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if meta.is_dir() {
            return Err(std::io::Error::from(ErrorKind::IsADirectory));
        }
        let consumed = Arc::new(AtomicU64::new(0));
        let mut file = Counted { file, consumed: Arc::clone(&consumed) };
        let mut start = [0; GZIP_MAGIC.len()];
        let len = fill(&mut file, &mut start)?;
        let compressed = start[..len] == GZIP_MAGIC;
        let raw = std::io::Cursor::new(start).take(len as u64).chain(file);
        let source: Box<dyn Read + Send> = match compressed {
            true => Box::new(MultiGzDecoder::new(BufReader::with_capacity(BLOCK, raw))),
            false => Box::new(raw),
        };
        // Blocks are longer than its buffer: they are read past it.
        let reader = BufReader::with_capacity(64 << 10, source);
        let meter = Meter { stored: meta.len(), consumed };
        Ok(Self { reader, meter, plain: meta.is_file() && !compressed })
    }
}

/// An open text file, plain or gzip-compressed.
pub(super) struct Text<'a> {
    path: PathBuf,
    source: Source,
    /// Lines given out so far, after those of `skipped`.
    line: u64,
    /// Bytes of the file that others read: their lines are counted when an error needs their number.
    skipped: Range<u64>,
    /// Bytes of the file, or of the part of it that is read.
    share: u64,
    /// Bytes of text given out so far.
    bytes: u64,
    options: ReadOptions<'a>,
}

/// A stretch of text, in memory that is used again.
struct Block {
    bytes: Vec<u8>,
    len: usize,
}

impl Block {
    fn text(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Counts what is read from the file itself, before any decompression.
struct Counted {
    file: File,
    consumed: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.file.read(buf)?;
        self.consumed.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// `text` in quotes for a message, its first 80 characters at most.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// Reads until `buf` is full or nothing is left: how many bytes.
fn fill(reader: &mut impl Read, buf: &mut [u8]) -> std::io::Result<usize> {
    let mut len = 0;
    while len < buf.len() {
        match reader.read(&mut buf[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(len)
}

/// How many lines end in `block`.
fn ends_of_lines(block: &[u8]) -> u64 {
    // A byte holds the count of 255: the compiler adds a register of them at a time.
    let of_chunk = |chunk: &[u8]| chunk.iter().map(|&c| u8::from(c == b'\n')).sum::<u8>();
    block.chunks(255).map(|chunk| u64::from(of_chunk(chunk))).sum()
}

/// Where the first line begins that starts at `at` or later; lines start at `first` and after every end of a line.
fn line_start(file: &mut File, first: u64, at: u64) -> std::io::Result<u64> {
    if at <= first {
        return Ok(first);
    }
    // The byte before may be the end of a line.
    let mut position = file.seek(SeekFrom::Start(at - 1))?;
    let mut text = BufReader::new(file);
    loop {
        let block = text.fill_buf()?;
        let end = block.iter().position(|&c| c == b'\n');
        let len = end.map_or(block.len(), |end| end + 1);
        position += len as u64;
        if end.is_some() || len == 0 {
            return Ok(position);
        }
        text.consume(len);
    }
}

impl<'a> Text<'a> {
    /// Opens `path`, plain or compressed.
    pub fn open(path: &Path, options: ReadOptions<'a>) -> Result<Self> {
        let source = Source::open(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
        let share = source.meter.stored;
        Ok(Self { path: path.to_owned(), source, line: 0, skipped: 0..0, share, bytes: 0, options })
    }

    /// Goes on with part number `part` of `parts` parts of about as many bytes of the rest of the file, cut between lines. Lines of
    /// errors stay those of the file.
    pub fn take_part(&mut self, part: usize, parts: usize) -> Result<()> {
        if part >= parts {
            return Err(Error::argument("part", format!("number {part} of {parts} parts; they count from 0")));
        }
        if parts == 1 {
            return Ok(());
        }
        if !self.source.plain {
            let why = match self.path.is_file() {
                true => "is compressed: several ranks read it once it is unpacked",
                false => "is no regular file: several ranks cannot share it",
            };
            return Err(Error::argument("file", format!("{} {why}", self.path.display())));
        }
        let fail = |source| Error::Io { path: self.path.clone(), source };
        let mut file = File::open(&self.path).map_err(fail)?;
        let (first, rest) = (self.bytes, self.stored().saturating_sub(self.bytes));
        let cut = |k: usize| first + (u128::from(rest) * k as u128 / parts as u128) as u64;
        let begin = line_start(&mut file, first, cut(part)).map_err(fail)?;
        let end = line_start(&mut file, first, cut(part + 1)).map_err(fail)?.max(begin);
        file.seek(SeekFrom::Start(begin)).map_err(fail)?;
        let part = Counted { file, consumed: Arc::clone(&self.source.meter.consumed) }.take(end - begin);
        self.source.reader = BufReader::new(Box::new(part));
        self.skipped = first..begin;
        self.share = end - begin;
        Ok(())
    }

    /// The lines that end in the bytes that others read; 0 where they cannot be read any more.
    fn lines_skipped(&self) -> u64 {
        let count = || -> std::io::Result<u64> {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(self.skipped.start))?;
            let mut text = BufReader::with_capacity(BLOCK, file.take(self.skipped.end - self.skipped.start));
            let mut lines = 0;
            loop {
                let block = text.fill_buf()?;
                if block.is_empty() {
                    return Ok(lines);
                }
                lines += ends_of_lines(block);
                let len = block.len();
                text.consume(len);
            }
        };
        if self.skipped.is_empty() { 0 } else { count().unwrap_or(0) }
    }

    /// The next line without its end, for headers; `None` at the end of the file.
    pub fn next_line(&mut self) -> Result<Option<String>> {
        let mut line = Vec::new();
        let n = (&mut self.source.reader)
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut line)
            .map_err(|source| Error::Io { path: self.path.clone(), source })?;
        if n == 0 {
            return Ok(None);
        }
        self.line += 1;
        self.bytes += n as u64;
        if n as u64 == LONGEST_LINE {
            return Err(self.fault(format!("the line is longer than {LONGEST_LINE} bytes")));
        }
        match String::from_utf8(line) {
            Ok(text) => Ok(Some(text.trim_end().to_owned())),
            Err(_) => Err(self.fault("the line is not text")),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The line given out last, counted from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// An error at the line given out last.
    pub fn fault(&self, detail: impl Into<String>) -> Error {
        let line = self.line + self.lines_skipped();
        Error::Parse { path: self.path.clone(), line, detail: detail.into() }
    }

    /// Bytes of the file.
    pub fn stored(&self) -> u64 {
        self.source.meter.stored
    }

    /// Bytes of text, after decompression, given out so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the file, or of the part of it that is read, as they are stored.
    pub fn share(&self) -> u64 {
        self.share
    }

    /// Parses the rest of the file by blocks, in parallel, and hands each block with its result to `sink` in file order.
    ///
    /// A [`Fault`] of either becomes an error with its line in the file.
    pub fn parse_blocks<R: Send>(
        &mut self,
        cut: Cut,
        parse: impl Fn(&[u8]) -> Result<R, Fault> + Sync,
        mut sink: impl FnMut(&[u8], R) -> Result<(), Stop> + Send,
    ) -> Result<()> {
        let mut carry = Vec::new();
        self.ensure_batches()?;
        let mut batch = self.read_batch(cut, &mut carry, Vec::new())?;
        let mut free = Vec::new();
        while !batch.is_empty() {
            self.ensure_batches()?;
            let (next, taken) = parallel::join(
                || self.read_batch(cut, &mut carry, free),
                || {
                    let parsed =
                        parallel::map_tasks(batch.len(), |k| (parse(batch[k].text()), ends_of_lines(batch[k].text())));
                    let (mut lines, mut bytes) = (0, 0);
                    for (block, (result, ends)) in batch.iter().zip(parsed) {
                        let taken = result.map_err(Stop::from).and_then(|r| sink(block.text(), r));
                        taken.map_err(|stop| (lines, stop))?;
                        lines += ends;
                        bytes += block.len as u64;
                    }
                    Ok((lines, bytes))
                },
            );
            match taken {
                Ok((lines, bytes)) => {
                    self.line += lines;
                    self.bytes += bytes;
                }
                Err((lines, Stop::Fault(fault))) => {
                    self.line += lines + fault.line + 1;
                    return Err(self.fault(fault.detail));
                }
                Err((_, Stop::Error(error))) => return Err(error),
            }
            free = std::mem::replace(&mut batch, next?);
        }
        Ok(())
    }

    /// Whether there is memory for the next batches: one that is read, and what another is parsed to.
    fn ensure_batches(&self) -> Result<()> {
        let blocks = BLOCKS_PER_THREAD * parallel::threads();
        memory::ensure(self.path.display(), blocks * BLOCK * (1 + PARSED))
    }

    /// Reads up to one batch of blocks, into those of `free` as far as there are some; none at the end of the file. `carry` keeps
    /// what follows the last cut.
    fn read_batch(&mut self, cut: Cut, carry: &mut Vec<u8>, mut free: Vec<Block>) -> Result<Vec<Block>> {
        let mut batch = Vec::new();
        while batch.len() < BLOCKS_PER_THREAD * parallel::threads() {
            let mut block = free.pop().unwrap_or_else(|| Block { bytes: vec![0; BLOCK], len: 0 });
            let carried = carry.len();
            block.bytes[..carried].copy_from_slice(carry);
            carry.clear();
            let read = fill(&mut self.source.reader, &mut block.bytes[carried..])
                .map_err(|source| Error::Io { path: self.path.clone(), source })?;
            block.len = carried + read;
            if block.len < BLOCK {
                // The end of the file ends the last line too.
                if block.len > 0 {
                    batch.push(block);
                }
                break;
            }
            let separator = |c: &u8| *c == b'\n' || (cut == Cut::Words && c.is_ascii_whitespace());
            let Some(last) = block.bytes.iter().rposition(separator) else {
                return Err(self.fault(format!("text without a break in the {BLOCK} bytes after this line")));
            };
            carry.extend_from_slice(&block.bytes[last + 1..]);
            block.len = last + 1;
            batch.push(block);
        }
        self.source.meter.report(self.options);
        Ok(batch)
    }
}

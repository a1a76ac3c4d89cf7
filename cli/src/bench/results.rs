//! What a run of a suite leaves behind: results.json, from which everything else is made, and results.csv.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sparsimd::io::write_atomically;
use sparsimd::{Error, Result};

/// Of the file; another number is another meaning.
const FORMAT: u32 = 1;

/// One contender of a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Who, and by which function.
    pub name: String,
    /// Whether it is this library.
    pub ours: bool,
    /// The plan, the format, or what else says how.
    pub detail: String,
    /// Seconds of preparing the sparse operand once; null where there is nothing to prepare.
    pub prepare_s: Option<f64>,
    /// The shortest run in seconds, operands warm.
    pub min_s: f64,
    /// The median run.
    pub median_s: f64,
    /// A run after all caches were filled with something else: the median of a few. (On a device all times are of kernels.)
    pub cold_s: f64,
    /// Timed runs, without the cold ones.
    pub runs: usize,
    /// Useful operations by the shortest run.
    pub gflops: f64,
    /// The largest error against the reference, in units of its bound.
    pub error: Option<f64>,
    /// What else the suite measures, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
}

/// One operation on one input, and everybody who did it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Case {
    /// The job that made it.
    pub id: String,
    /// The operation.
    pub op: String,
    /// The input's name.
    pub input: String,
    /// Its dimensions.
    pub dims: Vec<usize>,
    /// Its nonzeros.
    pub nnz: usize,
    /// Dense columns, or the rank.
    pub n: usize,
    /// Useful operations, counted as the papers do.
    pub flops: f64,
    /// Bytes that the operation asks memory for, by the model.
    pub bytes: f64,
    /// The highest rate of multiply-adds of the same threads in the run so far; on a device the one that was given, or 0.
    pub peak_gflops: f64,
    /// Who was right, and how fast.
    pub samples: Vec<Sample>,
    /// Who was left out, and why.
    pub notes: Vec<String>,
    /// Whether our own result was outside its bound; then nothing was timed.
    pub wrong: bool,
}

impl Case {
    /// Our sample; the first if there are several.
    pub fn ours(&self) -> Option<&Sample> {
        self.samples.iter().find(|sample| sample.ours)
    }

    /// The others.
    pub fn peers(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(|sample| !sample.ours)
    }
}

/// What must be the same for results to stand in one file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The suite.
    pub suite: String,
    /// Whether it is the short form.
    pub quick: bool,
    /// Whether tensors are as large as in the papers.
    #[serde(default)]
    pub full: bool,
    /// Element type.
    pub dtype: String,
    /// Threads, ours and each peer's.
    pub threads: usize,
    /// Our instruction set.
    pub simd: String,
    /// The processor.
    pub processor: String,
    /// The device on which we ran, if not on the processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// This program: its version and a hash of its file.
    pub program: String,
    /// Every peer: its name, version and path taken.
    pub peers: BTreeMap<String, String>,
}

/// How we compare with one contender over the cases of one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The operation.
    pub op: String,
    /// The peer, "fastest peer", "fastest peer but NAME", or "FMA peak".
    pub against: String,
    /// Cases that both did.
    pub cases: usize,
    /// Geometric mean of their time by ours; of our share of the peak for "FMA peak".
    pub mean: f64,
    /// The least.
    pub min: f64,
    /// In which case that was.
    pub min_case: String,
    /// The greatest.
    pub max: f64,
}

/// The file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    format: u32,
    /// Of the whole file.
    pub settings: Settings,
    /// Peers that are not there, in words.
    pub absent: Vec<String>,
    /// Seconds since 1970 at which it was last written.
    pub written: u64,
    /// Cases that the suite has with these settings and this filter.
    pub planned: usize,
    /// How we compare, by operation and peer.
    pub summary: Vec<Ratio>,
    /// Finished cases.
    pub cases: Vec<Case>,
}

impl Results {
    /// Those in `folder` if they were made with `settings`, else none yet.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be read, [`Error::Argument`] when it holds something else.
    pub fn open(folder: &Path, settings: Settings, absent: Vec<String>) -> Result<Self> {
        let fresh =
            Self { format: FORMAT, settings, absent, written: 0, planned: 0, summary: Vec::new(), cases: Vec::new() };
        let path = Self::json(folder);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(fresh),
            Err(source) => return Err(Error::Io { path, source }),
        };
        let other = |what: String| Error::Argument {
            name: "out",
            detail: format!("{} {what}; choose another folder or remove the file", path.display()),
        };
        let known: Self =
            serde_json::from_slice(&bytes).map_err(|e| other(format!("is not a file of results ({e})")))?;
        if known.format != FORMAT {
            return Err(other(format!("has format {}, not {FORMAT}", known.format)));
        }
        if known.settings != fresh.settings {
            let (old, new) = (fields(&known.settings), fields(&fresh.settings));
            let differ: Vec<_> = new
                .iter()
                .filter(|(name, value)| old.get(*name) != Some(value))
                .map(|(name, value)| {
                    format!("{name} {value} instead of {}", old.get(name).unwrap_or(&Default::default()))
                })
                .collect();
            return Err(other(format!("was made otherwise (now {})", differ.join(", "))));
        }
        Ok(Self { cases: known.cases, ..fresh })
    }

    /// Where they are in `folder`.
    pub fn json(folder: &Path) -> PathBuf {
        folder.join("results.json")
    }

    /// Whether the job `id` is done.
    pub fn has(&self, id: &str) -> bool {
        self.cases.iter().any(|case| case.id == id)
    }

    /// Writes results.json and results.csv.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&mut self, folder: &Path) -> Result<()> {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        self.written = since.map_or(0, |time| time.as_secs());
        self.summary = super::summary::ratios(&self.cases);
        let path = Self::json(folder);
        let text = serde_json::to_vec_pretty(self).map_err(|e| Error::Io { path: path.clone(), source: e.into() })?;
        write_atomically(&path, |file| file.write_all(&text))?;
        write_atomically(&folder.join("results.csv"), |file| file.write_all(self.csv().as_bytes()))
    }

    /// One line per contender of each case.
    fn csv(&self) -> String {
        let figures: std::collections::BTreeSet<&str> = self
            .cases
            .iter()
            .flat_map(|case| &case.samples)
            .flat_map(|s| s.figures.keys().map(String::as_str))
            .collect();
        let mut text = "op,input,dims,nnz,n,contender,ours,detail,prepare_s,min_s,median_s,cold_s,runs,gflops,\
                        peak_gflops,peak_share,error"
            .to_owned();
        for name in &figures {
            let _ = write!(text, ",{}", quoted(name));
        }
        text.push('\n');
        for case in &self.cases {
            let dims = case.dims.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
            for s in &case.samples {
                let head = [&case.op, &case.input, &dims].map(|field| quoted(field)).join(",");
                let optional = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
                let _ = write!(
                    text,
                    "{head},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
                    case.nnz,
                    case.n,
                    quoted(&s.name),
                    s.ours,
                    quoted(&s.detail),
                    optional(s.prepare_s),
                    s.min_s,
                    s.median_s,
                    s.cold_s,
                    s.runs,
                    s.gflops,
                    case.peak_gflops,
                    optional((case.peak_gflops > 0.0).then(|| s.gflops / case.peak_gflops)),
                    optional(s.error)
                );
                for name in &figures {
                    let _ = write!(text, ",{}", optional(s.figures.get(*name).copied()));
                }
                text.push('\n');
            }
        }
        text
    }
}

/// Each field of `settings` as text.
fn fields(settings: &Settings) -> BTreeMap<String, String> {
    let value = serde_json::to_value(settings).unwrap_or_default();
    value.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), value.to_string())).collect()
}

/// A field of a CSV file (RFC 4180).
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field.to_owned() }
}

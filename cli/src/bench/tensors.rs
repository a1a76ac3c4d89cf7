//! What the tensor suites share: inputs that fit this machine, and their operations as contenders.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sparsimd::generate::{self, TensorSpec};
use sparsimd::machine::available_memory;
use sparsimd::reference::Deviation;
use sparsimd::{CooTensor, Cpu, Mat, Result, Scalar};

use super::Bench;
use super::files::below;
use super::race::Contender;
use super::results::Case;
use crate::tensor::read_file;

/// Longest mode of a generated tensor: its factor of 32 columns takes half a gigabyte.
const LONGEST: usize = 1 << 22;

/// How large a suite is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Under a minute.
    Quick,
    /// Tensors cut to what some minutes allow.
    Usual,
    /// Tensors as large as in the papers, as far as they fit the memory.
    Full,
}

/// Nonzeros at most of a generated tensor.
pub enum Most {
    /// These, of modes no longer than [`LONGEST`].
    Nonzeros(usize),
    /// As many as fit so many bytes, by this function of the tensor.
    Memory(f64, fn(&TensorSpec) -> f64),
}

impl Form {
    /// What a suite with `most` nonzeros in its usual and its short form, and the bytes `memory` of a tensor, allows. Three
    /// quarters of the free memory are used.
    pub fn most(self, [usual, quick]: [usize; 2], memory: fn(&TensorSpec) -> f64) -> Most {
        match (self, available_memory()) {
            (Self::Quick, _) => Most::Nonzeros(quick),
            (Self::Usual, _) | (Self::Full, None) => Most::Nonzeros(usual),
            (Self::Full, Some(free)) => Most::Memory(0.75 * free as f64, memory),
        }
    }
}

/// Where a tensor comes from.
#[derive(Clone, Debug)]
pub enum Input {
    File(PathBuf),
    /// Name, what is generated, and how it differs from what the name stands for.
    Made(String, TensorSpec, Option<String>),
}

impl Input {
    /// The generated tensor called `name`, as large as `most` allows.
    pub fn within(name: &str, most: &Most) -> Option<Self> {
        match *most {
            Most::Nonzeros(most) => Self::made(name, most),
            Most::Memory(bytes, of) => {
                let full = TensorSpec::named(name)?;
                let mut most = full.nnz;
                if of(&full) <= bytes {
                    return Some(Self::Made(name.to_owned(), full, None));
                }
                // Cut by quarters until it fits.
                loop {
                    most = most / 4 * 3;
                    match Self::made(name, most)? {
                        Self::Made(_, spec, _) if of(&spec) > bytes && most > 1 => {}
                        fitting => return Some(fitting),
                    }
                }
            }
        }
    }

    /// The generated tensor called `name`, with at most `most` nonzeros. Where it is cut, every mode is shortened by the
    /// same factor, as far as it is longer than 1024, so that slices stay as full as they were; and to a length whose
    /// factors fit the memory.
    pub fn made(name: &str, most: usize) -> Option<Self> {
        let full = TensorSpec::named(name)?;
        let mut spec = full.clone();
        spec.nnz = full.nnz.min(most);
        let share = spec.nnz as f64 / full.nnz as f64;
        for dim in &mut spec.dims {
            if *dim > 1024 {
                *dim = ((*dim as f64 * share) as usize).clamp(1024, LONGEST);
            }
        }
        // A Kronecker tensor's modes are powers of two.
        if name.starts_with("reg") {
            spec.dims.iter_mut().for_each(|dim| *dim = dim.next_power_of_two());
        }
        let dims = |spec: &TensorSpec| spec.dims.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
        let cut = (spec != full).then(|| {
            let (was, is) = (dims(&full), dims(&spec));
            format!("{name}: {} of {} nonzeros, {is} instead of {was}", spec.nnz, full.nnz)
        });
        Some(Self::Made(name.to_owned(), spec, cut))
    }

    /// The files below `data`, else the generated tensors of these names as large as `most` allows; not more than `limit`.
    ///
    /// # Errors
    /// As [`Input::files`].
    pub fn list(data: Option<&std::path::Path>, names: &[&str], most: Most, limit: usize) -> Result<Vec<Self>> {
        let mut inputs = match data {
            Some(folder) => Self::files(folder)?,
            None => names.iter().filter_map(|name| Self::within(name, &most)).collect(),
        };
        inputs.truncate(limit);
        Ok(inputs)
    }

    /// Every .tns file below `folder`, the smallest first.
    ///
    /// # Errors
    /// As [`below`].
    pub fn files(folder: &std::path::Path) -> Result<Vec<Self>> {
        let mut files = below(folder, &[".tns"])?;
        files.sort();
        Ok(files.into_iter().map(|(_, path)| Self::File(path)).collect())
    }

    /// How results call it.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Self::Made(name, ..) => name.clone(),
        }
    }

    /// In what it differs from its name.
    pub fn cut(&self) -> Option<&str> {
        match self {
            Self::Made(_, _, cut) => cut.as_deref(),
            Self::File(_) => None,
        }
    }

    /// Nonzeros, roughly.
    pub fn size(&self) -> f64 {
        match self {
            Self::File(path) => std::fs::metadata(path).map_or(0.0, |meta| meta.len() as f64 / 8.0),
            Self::Made(_, spec, _) => spec.nnz as f64,
        }
    }

    /// Reads or makes it.
    pub fn load<T: Scalar>(&self, cpu: &Cpu) -> Result<CooTensor<T>> {
        cpu.install(|| match self {
            Self::File(path) => read_file(path, false, true),
            Self::Made(_, spec, _) => spec.generate(0),
        })
    }
}

/// What the report says of tensors that are smaller than what they are called after.
pub fn cuts<'a>(inputs: impl Iterator<Item = &'a Input>) -> Vec<String> {
    super::summary::distinct(inputs.filter_map(Input::cut)).into_iter().map(str::to_owned).collect()
}

/// The order of a tensor in a file, from its first line of numbers: a header's, which is the order, or an entry; 0 when it has none, or is
/// no text.
pub fn order_of(path: &std::path::Path) -> usize {
    use std::io::{BufRead, BufReader, Read};
    let Ok(file) = std::fs::File::open(path) else { return 0 };
    let compressed = path.extension().is_some_and(|ending| ending == "gz");
    let text: Box<dyn Read> =
        if compressed { Box::new(flate2::read::MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut lines = BufReader::new(text).lines().map_while(std::result::Result::ok);
    let line = lines.find(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let words: Vec<&str> = line.iter().flat_map(|line| line.split_whitespace()).collect();
    match words[..] {
        [order] => order.parse().unwrap_or(0),
        _ => words.len().saturating_sub(1),
    }
}

/// The last tensor, which several jobs in a row share, with what was made of it.
pub struct Kept<T>(Option<(usize, T)>);

impl<T> Kept<T> {
    /// None yet.
    pub fn none() -> Self {
        Self(None)
    }

    /// That of `input`: the one kept, or what `make` makes of it after the old one is gone.
    pub fn get(&mut self, input: usize, make: impl FnOnce() -> Result<T>) -> Result<&T> {
        if self.0.as_ref().is_none_or(|(kept, _)| *kept != input) {
            self.0 = None;
            self.0 = Some((input, make()?));
        }
        match &self.0 {
            Some((_, value)) => Ok(value),
            None => unreachable!("just made"),
        }
    }
}

/// A factor for each mode of `x`.
pub fn factors(cpu: &Cpu, x: &CooTensor<f32>, rank: usize) -> Result<Vec<Mat<f32>>> {
    let factor = |(mode, &rows): (usize, &usize)| generate::uniform_dense(rows, rank, 1 + mode as u64);
    cpu.install(|| x.dims().iter().enumerate().map(factor).collect())
}

/// An empty case of `op` on `x`.
pub fn empty<T: Scalar>(id: &str, op: &str, input: &str, x: &CooTensor<T>, n: usize) -> Case {
    Case {
        id: id.to_owned(),
        op: op.to_owned(),
        input: input.to_owned(),
        dims: x.dims().to_vec(),
        nnz: x.nnz(),
        n,
        ..Case::default()
    }
}

/// One of our ways to do a case, verified: adds it to `list`, or marks the case as wrong.
pub fn way<'a>(
    case: &mut Case,
    list: &mut Vec<Contender<'a>>,
    name: &str,
    prepare_s: f64,
    deviation: Deviation,
    run: impl FnMut() -> Result<()> + 'a,
) {
    if deviation.error > 1.0 {
        case.wrong = true;
        case.notes.push(format!("{name}: {:.3} times the bound in row {}", deviation.error, deviation.row));
        return;
    }
    let mut run = run;
    list.push(Contender {
        name: name.to_owned(),
        ours: true,
        detail: String::new(),
        prepare_s: Some(prepare_s),
        error: Some(deviation.error),
        figures: BTreeMap::new(),
        run: Box::new(move || run().map_err(|e| e.to_string())),
    });
}

/// Times all of `list` into `case`.
pub fn race(bench: &Bench, case: &mut Case, list: Vec<Contender<'_>>) -> Result<()> {
    if list.is_empty() {
        return Ok(());
    }
    let (samples, notes) = bench.race.run(&bench.cpu, case.flops, list)?;
    case.samples = samples;
    case.notes.extend(notes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_tensors_are_cut_to_size() {
        for name in TensorSpec::names() {
            let Some(Input::Made(_, spec, cut)) = Input::made(&name, 100_000) else { panic!("{name}") };
            assert!(spec.nnz <= 100_000 && spec.dims.iter().all(|&dim| dim <= LONGEST), "{name}: {spec:?}");
            assert!(cut.is_some_and(|cut| cut.contains(&name)));
            // There is room for so many different places, with much to spare.
            assert!(spec.dims.iter().map(|&dim| dim as f64).product::<f64>() > 4.0 * spec.nnz as f64, "{spec:?}");
        }
        assert!(Input::made("no such name", 1).is_none());
        let Some(Input::Made(_, _, cut)) = Input::made("skew3d", usize::MAX) else { panic!() };
        assert_eq!(cut, None);
        // The paper's own size where it fits, else as much as fits.
        let bytes: fn(&TensorSpec) -> f64 = |spec| 100.0 * spec.nnz as f64;
        let Some(Input::Made(_, spec, None)) = Input::within("irrL", &Most::Memory(1e11, bytes)) else { panic!() };
        assert_eq!(Some(spec), TensorSpec::named("irrL"));
        let Some(Input::Made(_, spec, Some(_))) = Input::within("irrL", &Most::Memory(1e8, bytes)) else { panic!() };
        assert!((500_000..=1_000_000).contains(&spec.nnz), "{spec:?}");
    }
}

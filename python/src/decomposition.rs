//! CP-ALS and Tucker.

use std::ops::ControlFlow;
use std::path::PathBuf;

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use sparsimd::decomp::{CpInit, CpOptions, CpState, TuckerInit, TuckerOptions, TuckerState};
use sparsimd::{Error, Mat, MatRef};

use crate::array::{Dense, Element};
use crate::error::{count, exception, value};
use crate::mttkrp::{Held, held};
use crate::observe::{Run, observed};
use crate::sparse::each;
use crate::tensor::{Entries, Tensor};

/// Weights or core, factors, fits, and whether Ctrl-C ended the run.
type Model<'py> = (Bound<'py, PyAny>, Bound<'py, PyList>, Bound<'py, PyAny>, bool);

/// `matrix` as a new array.
fn array_of<'py, T: Element>(py: Python<'py>, matrix: MatRef<'_, T>) -> Bound<'py, PyAny> {
    // SAFETY: every element is written before anybody sees the array.
    let array = unsafe { PyArray2::<T>::new(py, [matrix.rows(), matrix.cols()], false) };
    // SAFETY: nobody else has the array.
    let slice = unsafe { array.as_slice_mut() }.expect("a new array is contiguous");
    for (to, from) in slice.chunks_exact_mut(matrix.cols().max(1)).zip(matrix.iter_rows()) {
        to.copy_from_slice(from);
    }
    array.into_any()
}

fn arrays_of<'py, T: Element>(py: Python<'py>, matrices: &[Mat<T>]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, matrices.iter().map(|matrix| array_of(py, matrix.as_ref())))
}

/// Factors given as arrays.
fn matrices<T: Element>(init: &Bound<'_, PyAny>) -> PyResult<Vec<Mat<T>>> {
    let each = init.try_iter().map_err(|_| PyTypeError::new_err("init: a name, factors or a path is expected"))?;
    each.enumerate()
        .map(|(m, factor)| {
            let factor = Dense::<T>::of(&factor?, &format!("init[{m}]"), false, true)?;
            factor.view().to_mat().map_err(exception)
        })
        .collect()
}

/// `init` as a path, if it is an object that stands for one.
fn path_of(init: &Bound<'_, PyAny>) -> PyResult<Option<PathBuf>> {
    if init.hasattr("__fspath__")? { init.extract().map(Some) } else { Ok(None) }
}

/// How long to go on, and what is told.
pub struct Control<'a, 'py> {
    iterations: usize,
    tolerance: f64,
    seed: u64,
    callback: Option<&'a Bound<'py, PyAny>>,
    checkpoint: Option<PathBuf>,
}

impl<'a, 'py> Control<'a, 'py> {
    fn new(
        maxiters: i128,
        tolerance: f64,
        seed: i128,
        callback: Option<&'a Bound<'py, PyAny>>,
        checkpoint: Option<PathBuf>,
    ) -> PyResult<Self> {
        let (iterations, seed) = (count(maxiters, "maxiters")?, count(seed, "seed")? as u64);
        Ok(Self { iterations, tolerance, seed, callback, checkpoint })
    }
}

/// CP-ALS; `sparsimd.cp_als` calls it.
///
/// Returns
/// -------
/// tuple
///     Weights, factors, fits, and whether Ctrl-C ended it.
#[pyfunction]
#[pyo3(signature = (T, rank, maxiters, stoptol, init, seed, ridge, nonnegative, callback, checkpoint))]
#[expect(non_snake_case, reason = "Python's names")]
#[expect(clippy::too_many_arguments, reason = "Python's own")]
pub fn _cp_als<'py>(
    T: &Bound<'py, PyAny>,
    rank: i128,
    maxiters: i128,
    stoptol: f64,
    init: &Bound<'py, PyAny>,
    seed: i128,
    ridge: f64,
    nonnegative: bool,
    callback: Option<&Bound<'py, PyAny>>,
    checkpoint: Option<PathBuf>,
) -> PyResult<Model<'py>> {
    let rank = count(rank, "rank")?;
    let control = Control::new(maxiters, stoptol, seed, callback, checkpoint)?;
    each!(held(T, rank, None)?, held => typed_cp_als(&held, rank, init, ridge, nonnegative, control))
}

fn typed_cp_als<'py, T: Element>(
    tensor: &Held<T>,
    rank: usize,
    init: &Bound<'py, PyAny>,
    ridge: f64,
    nonnegative: bool,
    Control { iterations, tolerance, seed, callback, checkpoint }: Control<'_, 'py>,
) -> PyResult<Model<'py>> {
    let py = init.py();
    let init = match (init.extract::<&str>().ok(), path_of(init)?) {
        (Some("random"), _) => CpInit::Seed(seed),
        (Some(name), _) => return Err(value("init", format!("{name:?} is not \"random\""))),
        (None, Some(path)) => CpInit::Resume(CpState::load(&path).map_err(exception)?),
        (None, None) => CpInit::Factors(matrices(init)?),
    };
    let mut options = CpOptions::new(rank);
    (options.iterations, options.tolerance, options.ridge) = (iterations, tolerance, ridge);
    (options.nonnegative, options.init) = (nonnegative, init);
    let cpu = crate::threads::cpu()?;
    let Run { result: state, interrupted } = observed(py, callback, |tell| {
        let mut failed: Option<Error> = None;
        let state = cpu.cp_als(tensor, &options, |state, iteration| {
            if let Some(Err(error)) = checkpoint.as_ref().map(|path| state.save(path)) {
                failed = Some(error);
                return ControlFlow::Break(());
            }
            tell(iteration.number, iteration.fit)
        })?;
        failed.map_or(Ok(state), Err)
    })?;
    let weights = PyArray1::from_slice(py, &state.lambda).into_any();
    let fits = PyArray1::from_slice(py, &state.fits).into_any();
    Ok((weights, arrays_of(py, &state.factors)?, fits, interrupted))
}

/// Tucker's decomposition; `sparsimd.tucker` calls it.
///
/// Returns
/// -------
/// tuple
///     Core, factors, fits, and whether Ctrl-C ended it.
#[pyfunction]
#[pyo3(signature = (T, ranks, maxiters, stoptol, init, seed, callback, checkpoint))]
#[expect(non_snake_case, reason = "Python's names")]
#[expect(clippy::too_many_arguments, reason = "Python's own")]
pub fn _tucker<'py>(
    T: &Bound<'py, PyAny>,
    ranks: Vec<i128>,
    maxiters: i128,
    stoptol: f64,
    init: &Bound<'py, PyAny>,
    seed: i128,
    callback: Option<&Bound<'py, PyAny>>,
    checkpoint: Option<PathBuf>,
) -> PyResult<Model<'py>> {
    let Ok(tensor) = T.cast::<Tensor>() else {
        return Err(PyTypeError::new_err(format!("T: {} is not a Tensor", T.get_type().name()?)));
    };
    let ranks = ranks.into_iter().map(|rank| count(rank, "ranks")).collect::<PyResult<Vec<_>>>()?;
    let control = Control::new(maxiters, stoptol, seed, callback, checkpoint)?;
    each!(&tensor.get().inner, entries => typed_tucker(entries, ranks, init, control))
}

fn typed_tucker<'py, T: Element>(
    entries: &Entries<T>,
    ranks: Vec<usize>,
    init: &Bound<'py, PyAny>,
    Control { iterations, tolerance, seed, callback, checkpoint }: Control<'_, 'py>,
) -> PyResult<Model<'py>> {
    let py = init.py();
    let init = match (init.extract::<&str>().ok(), path_of(init)?) {
        (Some("svd"), _) => TuckerInit::Svd,
        (Some("random"), _) => TuckerInit::Random,
        (Some(name), _) => return Err(value("init", format!("{name:?} is none of \"svd\", \"random\""))),
        (None, Some(path)) => TuckerInit::Resume(TuckerState::load(&path).map_err(exception)?),
        (None, None) => TuckerInit::Given(matrices(init)?),
    };
    let mut options = TuckerOptions::new(ranks.clone());
    (options.iterations, options.tolerance, options.seed, options.init) = (iterations, tolerance, seed, init);
    let cpu = crate::threads::cpu()?;
    let Run { result: model, interrupted } = observed(py, callback, |tell| {
        let mut failed: Option<Error> = None;
        let model = cpu.tucker(&entries.coo, &options, |state, iteration| {
            if let Some(Err(error)) = checkpoint.as_ref().map(|path| state.save(path)) {
                failed = Some(error);
                return ControlFlow::Break(());
            }
            tell(iteration.number, iteration.fit)
        })?;
        failed.map_or(Ok(model), Err)
    })?;
    let core = PyArray1::from_slice(py, &model.core).reshape(ranks)?.into_any();
    let fits = PyArray1::from_slice(py, &model.fits).into_any();
    Ok((core, arrays_of(py, &model.factors)?, fits, interrupted))
}

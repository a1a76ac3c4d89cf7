//! Errors of the library as exceptions of Python, and calls into the library with the interpreter released.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::{PyException, PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;
use sparsimd::{Cpu, Error};

use crate::threads;

pyo3::create_exception!(
    sparsimd,
    SparsimdError,
    PyException,
    "What is neither a wrong argument, nor a file, nor memory."
);

/// Arguments that Python calls differently.
const NAMES: [(&str, &str); 6] = [
    ("iterations", "maxiters"),
    ("tolerance", "stoptol"),
    ("file", "path"),
    ("threads", "n"),
    ("s", "other"),
    ("mode_order", "mode"),
];

/// `error` as the exception that Python has for it.
pub fn exception(error: Error) -> PyErr {
    match error {
        Error::Argument { name, detail } => {
            let name = NAMES.iter().find(|(ours, _)| *ours == name).map_or(name, |(_, theirs)| theirs);
            PyValueError::new_err(format!("{name}: {detail}"))
        }
        Error::Shape { .. } | Error::Structure { .. } | Error::Parse { .. } => PyValueError::new_err(error.to_string()),
        Error::Io { ref path, ref source } => match source.raw_os_error() {
            // With a number Python makes FileNotFoundError, PermissionError, ... of it, and says the number itself.
            Some(number) => {
                let text = source.to_string();
                let text = text.strip_suffix(&format!(" (os error {number})")).unwrap_or(&text).to_owned();
                PyOSError::new_err((number, text, path.display().to_string()))
            }
            None => PyOSError::new_err(error.to_string()),
        },
        Error::Memory { .. } => PyMemoryError::new_err(error.to_string()),
        _ => SparsimdError::new_err(error.to_string()),
    }
}

/// A `ValueError` that names the argument.
pub fn value(name: &str, detail: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("{name}: {detail}"))
}

/// `n` as a number of things; an error that names the argument when it is negative or too large.
pub fn count(n: i128, name: &str) -> PyResult<usize> {
    usize::try_from(n).map_err(|_| value(name, format!("{n} is negative or too large")))
}

/// An error that names the argument, unless it has `expected` numbers, one for each of `what`.
pub fn expect_count(name: &str, found: usize, expected: usize, what: &str) -> PyResult<()> {
    if found == expected {
        return Ok(());
    }
    Err(value(name, format!("{found} values for {expected} {what}")))
}

/// What `f` gives on the executor of this process, the interpreter released meanwhile. A panic becomes an exception.
pub fn released<R: Send>(py: Python<'_>, f: impl FnOnce(&Cpu) -> sparsimd::Result<R> + Send) -> PyResult<R> {
    let cpu = threads::cpu()?;
    py.detach(|| guarded(|| f(cpu))).map_err(PyErr::from)
}

/// Why a call failed.
pub enum Failure {
    /// The library says so.
    Library(Error),
    /// A mistake in the library.
    Panic(String),
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Library(error) => exception(error),
            Failure::Panic(text) => SparsimdError::new_err(format!("a mistake in sparsimd: {text}")),
        }
    }
}

/// What `f` gives; its panic as a failure.
pub fn guarded<R>(f: impl FnOnce() -> sparsimd::Result<R>) -> Result<R, Failure> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result.map_err(Failure::Library),
        Err(panic) => Err(Failure::Panic(text(&*panic))),
    }
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}

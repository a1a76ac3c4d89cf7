//! A shared library that stays open: peers keep threads of their own, which must not lose their code.

use std::path::{Path, PathBuf};

use libloading::Library as Handle;

use crate::error::{Error, Result};

/// An opened library.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    handle: &'static Handle,
}

impl Library {
    /// Opens the first of `places` that opens.
    pub fn open_first(places: &[PathBuf], absent: impl FnOnce() -> Error) -> Result<Self> {
        let mut first = None;
        for path in places {
            match Self::open(path) {
                Ok(library) => return Ok(library),
                // That the loader does not know a bare name is no news; that a file does not open is.
                Err(error) => first = first.or(path.is_file().then_some(error)),
            }
        }
        Err(first.unwrap_or_else(absent))
    }

    fn open(path: &Path) -> Result<Self> {
        // SAFETY: opening runs the library's initialisers. These are libraries that the user installed to be run.
        let handle = unsafe { Handle::new(path) };
        let handle = handle.map_err(|e| Error::Load { path: path.to_owned(), detail: words(&e) })?;
        Ok(Self { path: path.to_owned(), handle: Box::leak(Box::new(handle)) })
    }

    /// Opens `path` for all libraries opened later to find its functions; whether it opened.
    #[cfg(unix)]
    pub fn open_for_all(path: &Path) -> bool {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
        // SAFETY: as in `open`.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
        library.map(Library::into_raw).is_ok()
    }

    /// Elsewhere all libraries see each other's functions.
    #[cfg(not(unix))]
    pub fn open_for_all(path: &Path) -> bool {
        Self::open(path).is_ok()
    }

    /// Where it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The first function of `names` that it has.
    ///
    /// # Safety
    /// `F` must be the type of a pointer to each of these functions.
    pub unsafe fn function<F: Copy>(&self, names: &[&str]) -> Result<F> {
        for name in names {
            // SAFETY: the caller's promise; the library is never closed.
            if let Ok(function) = unsafe { self.handle.get::<F>(*name) } {
                return Ok(*function);
            }
        }
        Err(Error::Load { path: self.path.clone(), detail: format!("has no function {}", names.join(" or ")) })
    }
}

/// The loader's own words, where libloading has them only as the cause.
fn words(error: &libloading::Error) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

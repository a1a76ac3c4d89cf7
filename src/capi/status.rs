//! What a call came to, and the message of the last one that failed.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::Error;

/// What a call came to. sparsimd_last_error() has the details.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// An argument is outside its domain, a pointer is null or misaligned, or an output overlaps another operand.
    Argument = 1,
    /// Operands do not fit together.
    Shape = 2,
    /// Arrays do not form a valid matrix or tensor.
    Structure = 3,
    /// A handle is null, of another kind, of another element type, or destroyed.
    Handle = 4,
    /// This build or this machine lacks what was asked for.
    Unavailable = 5,
    /// Reading or writing failed.
    Io = 6,
    /// A mistake in the library. The operation did not finish; outputs are unspecified.
    Internal = 7,
}

/// A status and its message.
pub(super) struct Failure(pub Status, pub String);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::Shape { .. } => Status::Shape,
            Error::Structure { .. } => Status::Structure,
            Error::Argument { .. } => Status::Argument,
            Error::Parse { .. } | Error::Io { .. } => Status::Io,
            Error::Unavailable { .. } | Error::Device { .. } | Error::Memory { .. } => Status::Unavailable,
        };
        Self(status, error.to_string())
    }
}

impl Failure {
    /// `name` is outside its domain.
    pub fn argument(name: &str, detail: &str) -> Self {
        Self(Status::Argument, format!("{name}: {detail}"))
    }
}

pub(super) type Outcome<T = ()> = Result<T, Failure>;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs `call`: its error becomes a status and the thread's message, and so does a panic, which must not unwind into C.
pub(super) fn guard(call: impl FnOnce() -> Outcome) -> Status {
    let Failure(status, message) = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure(Status::Internal, panic_text(&*panic)),
    };
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // While a thread ends its message is gone; the status remains.
    let _ = LAST.try_with(|last| *last.borrow_mut() = message);
    status
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("a mistake in sparsimd: {}", text.unwrap_or("it panicked"))
}

pub(super) fn last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::{Status, guard, last_error};

    #[test]
    fn a_panic_becomes_a_status_and_a_message() {
        std::panic::set_hook(Box::new(|_| ()));
        let status = guard(|| panic!("index {} of 3", 7));
        let _ = std::panic::take_hook();
        assert_eq!(status, Status::Internal);
        // SAFETY: the message lives until this thread's next failure.
        let text = unsafe { CStr::from_ptr(last_error()) };
        assert_eq!(text.to_str(), Ok("a mistake in sparsimd: index 7 of 3"));
    }
}

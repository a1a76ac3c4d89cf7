//! Handles: a value behind a pointer that C cannot look into, with a tag at its start that tells what it is.

use super::status::{Failure, Outcome, Status};

/// The C name of a kind of handle, as a type.
pub(super) trait Handle {
    /// What it holds.
    type Value;
    /// How messages call it.
    const NAME: &'static str;
    /// At the start of every handle of this kind.
    const TAG: u64;
}

/// What a handle points to.
#[repr(C)]
struct Tagged<T> {
    tag: u64,
    value: T,
}

fn refused<H: Handle>(detail: &str) -> Failure {
    Failure(Status::Handle, format!("{}: {detail}", H::NAME))
}

/// `handle` as what it holds, if it is of kind `H`.
///
/// # Safety
/// At least 8 bytes can be read there, or it is null or misaligned; a handle of this kind is alive.
unsafe fn tagged<H: Handle>(handle: *const H) -> Outcome<*mut Tagged<H::Value>> {
    let place = handle.cast::<Tagged<H::Value>>().cast_mut();
    if place.is_null() {
        return Err(refused::<H>("the handle is null"));
    }
    // SAFETY: aligned, and readable by the caller's promise.
    if !place.is_aligned() || unsafe { (&raw const (*place).tag).read() } != H::TAG {
        return Err(refused::<H>("the handle is of another kind or was destroyed"));
    }
    Ok(place)
}

/// The value of `handle`.
///
/// # Safety
/// As [`tagged`]; nobody changes the value while the reference lives.
pub(super) unsafe fn get<'a, H: Handle>(handle: *const H) -> Outcome<&'a H::Value> {
    // SAFETY: by the caller's promise; the tag says that it was made by `Place::put`.
    unsafe { Ok(&(*tagged(handle)?).value) }
}

/// The value of `handle`, to be changed.
///
/// # Safety
/// As [`tagged`]; nobody else uses the value while the reference lives.
pub(super) unsafe fn get_mut<'a, H: Handle>(handle: *mut H) -> Outcome<&'a mut H::Value> {
    // SAFETY: by the caller's promise; the tag says that it was made by `Place::put`.
    unsafe { Ok(&mut (*tagged(handle.cast_const())?).value) }
}

/// Drops the value of `handle`; nothing when it is null.
///
/// # Safety
/// As [`get_mut`], and the handle is not used again.
pub(super) unsafe fn destroy<H: Handle>(handle: *mut H) -> Outcome {
    if handle.is_null() {
        return Ok(());
    }
    // SAFETY: by the caller's promise; the tag says that it came from `Box::into_raw` in `Place::put`. The tag is wiped
    // first, volatile lest it be optimised away, so that a second call is refused as long as the memory is not reused.
    unsafe {
        let place = tagged(handle.cast_const())?;
        (&raw mut (*place).tag).write_volatile(0);
        drop(Box::from_raw(place));
    }
    Ok(())
}

/// Where a new handle goes; checked before anything is made.
pub(super) struct Place<H>(*mut *mut H);

impl<H: Handle> Place<H> {
    /// Checks `out` and puts null there, which remains when the call fails.
    ///
    /// # Safety
    /// A pointer can be written there, or it is null or misaligned.
    pub unsafe fn new(out: *mut *mut H) -> Outcome<Self> {
        // SAFETY: by the caller's promise.
        unsafe { super::view::put(H::NAME, out, std::ptr::null_mut())? };
        Ok(Self(out))
    }

    /// A handle of `value`.
    pub fn put(self, value: H::Value) {
        let boxed = Box::new(Tagged { tag: H::TAG, value });
        // SAFETY: checked and promised in `new`.
        unsafe { self.0.write(Box::into_raw(boxed).cast()) };
    }
}

//! Ctrl-C and SIGTERM as a wish to end soon, not at once.

use std::sync::atomic::{AtomicBool, Ordering};

use sparsimd::{Error, Result};

/// The exit status of a run that was ended early: 128 + SIGINT, as shells report it.
pub const STATUS: u8 = 130;

/// Whether a signal came since [`flag`].
#[derive(Clone, Copy, Debug)]
pub struct Flag(());

static RAISED: AtomicBool = AtomicBool::new(false);

/// From now on, Ctrl-C, SIGTERM or SIGHUP raises the flag, and only a second one ends the program. SIGHUP stays ignored where it was:
/// by `nohup`.
pub fn flag() -> Result<Flag> {
    let handler = || {
        if RAISED.swap(true, Ordering::Relaxed) {
            std::process::exit(STATUS.into());
        }
    };
    // SAFETY: both calls only read or set what becomes of a signal, and none runs code of this process.
    let hangup = unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    let set = ctrlc::set_handler(handler);
    if hangup == libc::SIG_IGN {
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    }
    match set {
        Ok(()) => Ok(Flag(())),
        Err(e) => Err(Error::Unavailable { what: "a handler for Ctrl-C", detail: e.to_string() }),
    }
}

impl Flag {
    /// Whether one did.
    pub fn raised(self) -> bool {
        RAISED.load(Ordering::Relaxed)
    }
}

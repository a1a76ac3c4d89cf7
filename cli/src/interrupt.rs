//! Ctrl-C and SIGTERM as a wish to end soon, not at once.

use std::sync::atomic::{AtomicBool, Ordering};

use sparsimd::{Error, Result};

/// The exit status of a run that was ended early: 128 + SIGINT, as shells report it.
pub const STATUS: u8 = 130;

/// Whether a signal came since [`flag`].
#[derive(Clone, Copy, Debug)]
pub struct Flag(());

static RAISED: AtomicBool = AtomicBool::new(false);

/// From now on, Ctrl-C, SIGTERM or SIGHUP raises the flag, and only a second one ends the program.
pub fn flag() -> Result<Flag> {
    let handler = || {
        if RAISED.swap(true, Ordering::Relaxed) {
            std::process::exit(STATUS.into());
        }
    };
    match ctrlc::set_handler(handler) {
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

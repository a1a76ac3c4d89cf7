//! Ctrl-C as a wish to end soon, not at once.

use std::sync::atomic::{AtomicBool, Ordering};

use sparsimd::{Error, Result};

/// Whether Ctrl-C was pressed since [`flag`].
#[derive(Clone, Copy, Debug)]
pub struct Flag(());

static RAISED: AtomicBool = AtomicBool::new(false);

/// From now on, Ctrl-C raises the flag, and only a second one ends the program.
pub fn flag() -> Result<Flag> {
    let handler = || {
        if RAISED.swap(true, Ordering::Relaxed) {
            // 128 + SIGINT, as shells report it.
            std::process::exit(130);
        }
    };
    match ctrlc::set_handler(handler) {
        Ok(()) => Ok(Flag(())),
        Err(e) => Err(Error::Unavailable { what: "a handler for Ctrl-C", detail: e.to_string() }),
    }
}

impl Flag {
    /// Whether it was.
    pub fn raised(self) -> bool {
        RAISED.load(Ordering::Relaxed)
    }
}

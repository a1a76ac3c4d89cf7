//! One test with Vulkan devices at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};

static DEVICES: Mutex<()> = Mutex::new(());

thread_local! {
    /// Held from a test's first device until its thread ends, its devices dropped.
    static TURN: MutexGuard<'static, ()> = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
}

/// Waits for this test's turn: validation layers of 2023 and before look objects up in a table that they change, without a lock,
/// when a device comes or goes, and crash now and then when another thread calls meanwhile (their issue 4391).
pub fn wait() {
    TURN.with(|_| ());
}

//! Tests that cannot run for want of something: counted, and told in one line when the test program ends.

use std::fmt::Display;
use std::sync::Mutex;

/// What is missing.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "each test program uses its own part")]
pub enum Missing {
    /// Real matrices and tensors. `SPARSIMD_REQUIRE_DATA=1` makes it a failure.
    Data,
    /// A Vulkan device, or a property of one. `SPARSIMD_REQUIRE_GPU=1` makes it a failure.
    Device,
    /// Anything else.
    Other,
}

/// Reasons, and how many tests each has stopped.
static SKIPPED: Mutex<Vec<(String, usize)>> = Mutex::new(Vec::new());

/// Notes that the calling test ends here, and `why`.
///
/// # Panics
/// Where the environment says that nothing may be missing.
pub fn skip(missing: Missing, why: impl Display) {
    let required = match missing {
        Missing::Data => Some("SPARSIMD_REQUIRE_DATA"),
        Missing::Device => Some("SPARSIMD_REQUIRE_GPU"),
        Missing::Other => None,
    };
    if let Some(name) = required.filter(|name| std::env::var_os(name).is_some_and(|value| value == "1")) {
        panic!("{name} is set, and there is {why}");
    }
    let why = why.to_string();
    let mut skipped = SKIPPED.lock().expect("no test panics here");
    if skipped.is_empty() {
        // SAFETY: the function is C's, and takes one that is there as long as the program.
        assert_eq!(unsafe { atexit(tell) }, 0);
    }
    match skipped.iter_mut().find(|(known, _)| *known == why) {
        Some((_, count)) => *count += 1,
        None => skipped.push((why, 1)),
    }
}

unsafe extern "C" {
    fn atexit(f: extern "C" fn()) -> i32;
}

/// Runs when the program ends: the test harness, which keeps what passing tests print to itself, is done.
extern "C" fn tell() {
    let reasons = SKIPPED.lock().map(|skipped| skipped.clone()).unwrap_or_default();
    let reasons: Vec<String> = reasons.iter().map(|(why, count)| format!("{why} ({count} times)")).collect();
    eprintln!("skipped: {}", reasons.join("; "));
}

//! A bar on standard error, when that is a terminal, for what takes longer than a second.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Work that is done sooner shows no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Progress through a file, in bytes; the bar goes when the value does.
pub struct Progress {
    start: Instant,
    name: String,
    bar: OnceLock<ProgressBar>,
}

impl Progress {
    /// Of reading `path`.
    pub fn of(path: &Path) -> Self {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Self { start: Instant::now(), name, bar: OnceLock::new() }
    }

    /// `done` of `total` bytes.
    pub fn update(&self, done: u64, total: u64) {
        if self.start.elapsed() < PATIENCE {
            return;
        }
        let bar = self.bar.get_or_init(|| {
            // Draws nothing where standard error is no terminal.
            let bar = ProgressBar::new(total).with_message(self.name.clone());
            let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }
}

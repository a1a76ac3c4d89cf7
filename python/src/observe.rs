//! Long runs in a thread of their own, so that Python's handlers of signals and callbacks run in the caller's.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

use crate::error::{Failure, guarded};

/// How often the caller looks for signals.
const POLL: Duration = Duration::from_millis(50);

/// What a run came to, and whether Ctrl-C ended it.
pub struct Run<R> {
    pub result: R,
    pub interrupted: bool,
}

/// What a run tells after every iteration: its number and the fit. It ends when the answer is to break.
pub type Tell<'a> = dyn FnMut(usize, f64) -> ControlFlow<()> + Send + 'a;

/// Runs `work` in a thread of its own. `callback(number, fit)` is called here after every iteration, which waits for it, and ends the
/// run by a true value; its exception, and that of a handler of signals, is passed on when the run has ended.
pub fn observed<R: Send>(
    py: Python<'_>,
    callback: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&mut Tell<'_>) -> sparsimd::Result<R> + Send,
) -> PyResult<Run<R>> {
    let stop = AtomicBool::new(false);
    let waits = callback.is_some();
    let (tell, told) = mpsc::channel::<(usize, f64)>();
    let (answer, answered) = mpsc::channel::<()>();
    let mut error: Option<PyErr> = None;
    let result: Result<R, Failure> = std::thread::scope(|scope| {
        let stop = &stop;
        let worker = scope.spawn(move || {
            guarded(|| {
                work(&mut move |number, fit| {
                    if waits && tell.send((number, fit)).is_ok() {
                        // The caller has gone only if it failed.
                        let _ = answered.recv();
                    }
                    if stop.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })
            })
        });
        let mut told = told;
        loop {
            let event;
            (told, event) = py.detach(move || {
                let event = told.recv_timeout(POLL);
                (told, event)
            });
            let delivered = match event {
                Ok((number, fit)) => {
                    let wanted = callback.map_or(Ok(false), |callback| callback.call1((number, fit))?.is_truthy());
                    wanted.map(|ends| stop.fetch_or(ends, Relaxed)).map(|_| ())
                }
                Err(RecvTimeoutError::Timeout) => Ok(()),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if let Err(e) = delivered.and_then(|()| py.check_signals()) {
                stop.store(true, Relaxed);
                error.get_or_insert(e);
            }
            if event.is_ok() {
                let _ = answer.send(());
            }
        }
        py.detach(|| worker.join()).unwrap_or_else(|_| Err(Failure::Panic("the helper thread ended".to_owned())))
    });
    let interrupted = error.as_ref().is_some_and(|e| e.is_instance_of::<PyKeyboardInterrupt>(py));
    match error {
        Some(error) if !interrupted => Err(error),
        _ => Ok(Run { result: result?, interrupted }),
    }
}

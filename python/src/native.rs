//! How long a product takes without Python: what `benchmarks/compare.py` subtracts from the time of a call.

use std::time::Instant;

use pyo3::prelude::*;

use crate::array::{Dense, Output};
use crate::error::{released, value};
use crate::sparse::{Either, Given};

/// Seconds of the shortest of some batches of `runs` products in single precision, one after the other, mean of the batch: of the library's
/// function, by which C and Rust programs call it, operands ready.
#[pyfunction]
#[pyo3(name = "_spmm_seconds")]
pub fn spmm_seconds(a: &Bound<'_, PyAny>, x: &Bound<'_, PyAny>, out: &Bound<'_, PyAny>, runs: u32) -> PyResult<f64> {
    let given = Given::of(a)?;
    let Either::F32(source) = given.source()? else { return Err(value("a", "float32 is expected")) };
    let values = source.values(x.py())?;
    let x = Dense::<f32>::of(x, "x", false, false)?;
    x.expect("x", given.shape().1, None)?;
    let mut out = Output::<f32>::of(x.py(), Some(out), (given.shape().0, x.cols()), false, &[x.range()])?;
    let (operand, mut c, values) = (x.view(), out.view(), values.as_ref().map(|values| values.slice()));
    released(x.py(), |cpu| {
        let mut least = f64::INFINITY;
        for _ in 0..16 {
            let start = Instant::now();
            for _ in 0..runs {
                source.with(values, |a| cpu.spmm(1.0, a, operand, 0.0, c.reborrow()))?;
            }
            least = least.min(start.elapsed().as_secs_f64() / f64::from(runs.max(1)));
        }
        Ok(least)
    })
}

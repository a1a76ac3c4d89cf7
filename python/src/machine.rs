//! What the library knows about the machine and itself.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use sparsimd::machine::{CpuSet, Machine, Source, TransparentHugePages};

use crate::threads;

/// What the library is and what it runs on.
///
/// Returns
/// -------
/// dict
///     ``version``, ``processor``, ``simd`` (instruction set in use) and ``simd_available``, ``vector_bytes``, ``threads``,
///     ``l1d_bytes``, ``l2_bytes``, ``l3_bytes``, ``cores``, ``numa_nodes``.
#[pyfunction]
pub fn info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let cpu = threads::cpu()?;
    let machine = cpu.machine();
    let dict = PyDict::new(py);
    dict.set_item("version", env!("CARGO_PKG_VERSION"))?;
    dict.set_item("processor", machine.processor())?;
    dict.set_item("simd", cpu.arch().name())?;
    let available: Vec<_> = sparsimd::Arch::available().into_iter().map(|arch| arch.name()).collect();
    dict.set_item("simd_available", available)?;
    dict.set_item("vector_bytes", cpu.arch().vector_bytes())?;
    dict.set_item("threads", cpu.threads())?;
    dict.set_item("l1d_bytes", machine.l1d_bytes())?;
    dict.set_item("l2_bytes", machine.l2_bytes())?;
    dict.set_item("l3_bytes", machine.l3_bytes())?;
    dict.set_item("cores", machine.cores())?;
    dict.set_item("numa_nodes", machine.nodes().len())?;
    Ok(dict)
}

/// The processors, caches and memory nodes of the machine.
///
/// Returns
/// -------
/// dict
///     ``source`` of the facts; ``allowed``, the processors that the process may use, as ``"0-3,8"``; ``processors``, a list
///     with ``cpu``, ``core``, ``smt``, ``l3``, ``node`` and ``socket`` of each; ``nodes``, a list with ``id``,
///     ``memory_bytes`` and ``distances`` of each; ``huge_pages``.
#[pyfunction]
pub fn topology(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let machine = py.detach(Machine::detect);
    let dict = PyDict::new(py);
    let source = match machine.source() {
        Source::Sysfs => "sysfs",
        Source::Hwloc => "hwloc",
        Source::Described => "described",
        _ => "assumed",
    };
    dict.set_item("source", source)?;
    dict.set_item("allowed", machine.allowed().to_string())?;
    let processors = PyList::empty(py);
    for thread in machine.threads() {
        let one = PyDict::new(py);
        one.set_item("cpu", thread.cpu)?;
        one.set_item("core", thread.core)?;
        one.set_item("smt", thread.smt)?;
        one.set_item("l3", thread.l3)?;
        one.set_item("node", thread.node)?;
        one.set_item("socket", thread.socket)?;
        processors.append(one)?;
    }
    dict.set_item("processors", processors)?;
    let nodes = PyList::empty(py);
    for (at, node) in machine.nodes().iter().enumerate() {
        let one = PyDict::new(py);
        one.set_item("id", node.id)?;
        one.set_item("memory_bytes", node.memory)?;
        one.set_item("distances", node.distances.clone())?;
        let cpus: CpuSet = machine.threads().iter().filter(|t| t.node == at).map(|t| t.cpu).collect();
        one.set_item("cpus", cpus.to_string())?;
        nodes.append(one)?;
    }
    dict.set_item("nodes", nodes)?;
    let pages = machine.huge_pages();
    let transparent = match pages.transparent {
        TransparentHugePages::Always => "always",
        TransparentHugePages::Madvise => "madvise",
        TransparentHugePages::Never => "never",
        _ => "unknown",
    };
    dict.set_item("huge_pages", transparent)?;
    Ok(dict)
}

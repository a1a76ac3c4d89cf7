"""CP decomposition of fluorescence of amino acids: the components are the spectra of three of them.

    python python/examples/cp_aminoacid.py [FILE.tns] [--picture aminoacid.png]

Without a file: aminoacid.tns of the folder that SPARSIMD_DATA names (Bro 1997; samples x emission x excitation), else made spectra.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

import sparsimd as ss


def made() -> ss.Tensor:
    """Five mixtures of three substances with bell-shaped spectra, and some noise."""
    rng = np.random.default_rng(0)
    emission, excitation = np.arange(201)[:, None], np.arange(61)[:, None]
    amounts = rng.uniform(0.2, 2, (5, 3))
    emitted = np.exp(-(((emission - np.array([50, 90, 110])) / 22.0) ** 2))
    excited = np.exp(-(((excitation - np.array([15, 30, 40])) / 9.0) ** 2))
    x = np.einsum("ir,jr,kr->ijk", amounts, emitted, excited)
    return ss.Tensor.from_tensorly(x + 0.002 * rng.standard_normal(x.shape))


def source(given: Path | None) -> ss.Tensor:
    """The tensor."""
    path = given or Path(os.environ.get("SPARSIMD_DATA", ".")) / "aminoacid.tns"
    if given is None and not path.exists():
        print("no aminoacid.tns: made spectra instead")
        return made()
    tensor: ss.Tensor = ss.read(path)
    return tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()

    T = source(arguments.file)
    print(T)
    starts = [ss.cp_als(T, 3, maxiters=400, stoptol=1e-8, seed=seed, nonnegative=True) for seed in range(4)]
    weights, factors, fits = max(starts, key=lambda model: model.fits[-1])
    print(f"fit {fits[-1]:.5f} after {len(fits)} iterations, weights {np.round(weights, 1)}")
    assert fits[-1] > 0.95, "three components explain the data"

    if arguments.picture is None:
        return
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("matplotlib is not installed: no picture")
        return
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
    for axis, factor, name in zip(axes, factors, ("sample", "emission", "excitation"), strict=True):
        for r in range(3):
            axis.plot(factor[:, r], "o-" if len(factor) < 10 else "-", label=f"component {r + 1}")
        axis.set_xlabel(name)
    axes[0].set_ylabel("factor")
    axes[1].legend()
    figure.savefig(arguments.picture, dpi=120)
    print("picture:", arguments.picture)


if __name__ == "__main__":
    main()

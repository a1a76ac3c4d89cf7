#!/usr/bin/env python3
"""MTTKRP by a Python package, timed, as `sparsimd bench mttkrp` starts it; SPARSIMD_PACKAGE names it: pyttb or tensorly.

Reads one JSON object a line and answers with one line. {"load": ...} names a folder with a tensor (subs: 32-bit coordinates,
nonzero by nonzero; vals: doubles) and factors (factor0, factor1, ...: doubles, row by row); {"check": mode} computes the mode's
product into the folder's file out (doubles, row by row); {"sweeps": n} computes the products of all modes n times and answers with
the seconds of each sweep. Without the package it says so and ends.
"""

import json
import os
import pathlib
import sys
import time

# What the library prints is none of the answers.
answers = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
package = os.environ.get("SPARSIMD_PACKAGE", "")


def answer(what):
    print(json.dumps(what), file=answers, flush=True)


class Problem:
    """A tensor and factors."""

    def __init__(self, folder, dims, rank):
        self.folder = pathlib.Path(folder)
        subs = numpy.fromfile(self.folder / "subs", numpy.uint32).reshape(-1, len(dims))
        vals = numpy.fromfile(self.folder / "vals")
        self.factors = [numpy.fromfile(self.folder / f"factor{m}").reshape(dim, rank) for m, dim in enumerate(dims)]
        if package == "pyttb":
            self.tensor = pyttb.sptensor(subs.astype(numpy.int64), vals.reshape(-1, 1), tuple(dims))
        else:
            self.tensor = sparse.COO(subs.T.astype(numpy.int64), vals, shape=tuple(dims))

    def product(self, mode):
        if package == "pyttb":
            return self.tensor.mttkrp(self.factors, mode)
        return unfolding_dot_khatri_rao(self.tensor, (None, self.factors), mode)

    def check(self, mode):
        product = self.product(mode)
        dense = product.todense() if hasattr(product, "todense") else product
        numpy.ascontiguousarray(dense, dtype=numpy.float64).tofile(self.folder / "out")
        return {}

    def sweeps(self, n):
        seconds = []
        for _ in range(n):
            start = time.perf_counter()
            for mode in range(len(self.factors)):
                self.product(mode)
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds}


def serve():
    problem = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "load" in request:
                problem = None
                problem = Problem(**request["load"])
                answer({})
            elif "check" in request:
                answer(problem.check(request["check"]))
            else:
                answer(problem.sweeps(request["sweeps"]))
        except Exception as error:  # noqa: BLE001 - whatever the library raises is the answer
            answer({"failed": f"{type(error).__name__}: {error}".splitlines()[0]})


try:
    import numpy
    from importlib.metadata import version

    if package == "pyttb":
        import pyttb

        detail = f"pyttb {version('pyttb')}"
    elif package == "tensorly":
        import sparse
        from tensorly.contrib.sparse.cp_tensor import unfolding_dot_khatri_rao

        detail = f"tensorly {version('tensorly')} on sparse {version('sparse')}"
    else:
        raise ImportError("SPARSIMD_PACKAGE names neither pyttb nor tensorly")
except Exception as error:  # noqa: BLE001 - it may also be there and not load
    answer({"absent": f"{package} does not load ({error})"})
else:
    answer({"detail": f"{detail}, numpy {numpy.__version__}"})
    serve()

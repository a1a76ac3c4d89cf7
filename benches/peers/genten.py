#!/usr/bin/env python3
"""GenTen's CP-ALS (PyPI's package pygenten), timed, as `sparsimd bench cp` starts it.

Reads one JSON object a line and answers with one line. {"load": ...} names a folder with a tensor (subs: 32-bit coordinates,
nonzero by nonzero; vals: doubles) and a first guess (factor0, factor1, ...: doubles, row by row); {"method": ..., "iterations": ...}
runs so many iterations with that way of MTTKRP and answers with the seconds of each, those in MTTKRP, and the fit. Iterations have
GenTen's own times. Without the package it says so and ends.
"""

import json
import os
import pathlib
import sys

# What the library prints is none of the answers.
answers = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def answer(what):
    print(json.dumps(what), file=answers, flush=True)


class Problem:
    """A tensor and a first guess."""

    def __init__(self, folder, dims, rank):
        folder = pathlib.Path(folder)
        subs = numpy.fromfile(folder / "subs", numpy.uint32).reshape(-1, len(dims))
        factors = [numpy.fromfile(folder / f"factor{m}").reshape(dim, rank) for m, dim in enumerate(dims)]
        self.rank = rank
        self.tensor = genten.Sptensor(tuple(dims), subs, numpy.fromfile(folder / "vals"))
        self.guess = genten.Ktensor(numpy.ones(rank), factors)

    def run(self, method, iterations):
        settings = {"rank": self.rank, "maxiters": iterations, "tol": 0.0, "printitn": 0}
        method = getattr(genten, "Mttkrp" + method)
        history = genten.cp_als(self.tensor, init=self.guess, mttkrp_method=method, **settings)[2]
        entries = [history.getEntry(i) for i in range(iterations + 1)]
        pairs = list(zip(entries, entries[1:]))
        return {
            "seconds": [after.cum_time - before.cum_time for before, after in pairs],
            "mttkrp": [after.cum_mttkrp_time - before.cum_mttkrp_time for before, after in pairs],
            "fit": entries[-1].fit,
        }


def serve():
    problem = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "load" in request:
                problem = None
                problem = Problem(**request["load"])
                answer({})
            else:
                answer(problem.run(**request))
        except Exception as error:  # noqa: BLE001 - whatever the library raises is the answer
            answer({"failed": f"{type(error).__name__}: {error}".splitlines()[0]})


try:
    import numpy
    import pygenten as genten
    from importlib.metadata import version
except Exception as error:  # noqa: BLE001 - it may also be there and not load
    answer({"absent": f"pygenten does not load ({error})"})
else:
    answer({"detail": f"GenTen as pygenten {version('pygenten')} has it, numpy {numpy.__version__}"})
    serve()
# Arrays of the library must not outlive it, and Python ends modules in no particular order.
os._exit(0)

#!/usr/bin/env python3
"""sparsimd beside scipy, torch, pyttb and GraphBLAS: one process for each peer, equal threads, in turns, every result verified first.

    python python/benchmarks/compare.py [--threads 1 2] [--filter spmm] [--out DIR]

Prints a table, and one that has what is asked of each case beside what was measured; DIR/compare.json has all times, DIR/compare.png a picture where matplotlib is installed. Peers that are not installed
are named and left out. Real matrices are taken from the folder that SPARSIMD_DATA names; without it those of the project are used.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import peers

ROOT = Path(__file__).resolve().parents[2]


class Peer:
    """A process that runs the operations of one package."""

    def __init__(self, name: str, threads: int) -> None:
        environment = dict(os.environ)
        # Threads that wait by spinning would take the time of the peer whose turn it is.
        environment |= {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
        for variable in ("SPARSIMD", "OMP", "MKL", "OPENBLAS"):
            environment[f"{variable}_NUM_THREADS"] = str(threads)
        command = [sys.executable, str(Path(peers.__file__)), name]
        pipes: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.name, self.process = name, subprocess.Popen(command, **pipes)
        self.missing = self._answer().get("missing")

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **request: Any) -> dict[str, Any]:
        """What the process answers to a request."""
        assert self.process.stdin
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self._answer()

    def end(self) -> None:
        """Ends the process."""
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait()


def cases(data: Path | None, quick: bool) -> list[dict[str, Any]]:
    """What is compared: an operation, its variants, and the file or the random matrix it runs on."""
    own = ROOT / "tests" / "data"
    matrices = [str(own / "ca-CondMat.mtx.gz"), "random:4096x4096@0.9"]
    tensors = ["random:300x400x500@200000"]
    texts = [str(own / "pyfr_p6hex_m460.mtx")]
    if data and not quick:
        names = ["pubmed.mtx", "facebook_combined.mtx", "p2p-Gnutella31.mtx.gz", "amazon_book.mtx.gz"]
        matrices += [str(data / name) for name in names if (data / name).exists()]
        tensors = [str(data / name) for name in ["nell995.tns.gz"] if (data / name).exists()] + tensors
        texts += [str(data / name) for name in ["facebook_combined.mtx", "pubmed.mtx"] if (data / name).exists()]
    calls = ("call", "call new", "operator", "operator new")
    found = [{"op": op, "operand": "random:64x64@0.9", "n": 64} for op in calls]
    for operand in matrices:
        found.append({"op": "spmm", "operand": operand, "n": 128})
        found.append({"op": "spmm new", "operand": operand, "n": 128})
        found += [{"op": op, "operand": operand, "n": 128} for op in ("max", "mean")]
        found.append({"op": "sddmm", "operand": operand, "n": 128})
        found.append({"op": "attention", "operand": operand, "n": 64})
    # A scatter has a row of terms for each nonzero: the smallest matrix is enough.
    found += [{"op": op, "operand": matrices[0], "n": 128} for op in ("scatter", "semiring")]
    for operand in tensors:
        found.append({"op": "mttkrp", "operand": operand, "n": 16})
        found.append({"op": "cp_als", "operand": operand, "n": 16})
    found += [{"op": "read", "operand": operand, "n": 0} for operand in texts]
    return found


def compare(case: dict[str, Any], running: list[Peer], rounds: int) -> dict[str, Any]:
    """Verifies the case with every peer that has it, then times them in turns."""
    ours, lines = [], []
    for peer in running:
        answer = peer.ask(**case, do="verify")
        if answer["has"] and not answer["right"]:
            raise SystemExit(f"{peer.name} is wrong on {case}: {answer['error']}")
        if answer["has"]:
            ours.append(peer)
            kept = {name: answer[name] for name in ("variant", "bytes", "error")}
            lines.append({"peer": peer.name, **kept, "times": [], "native": []})
    for _ in range(rounds):
        for peer, line in zip(ours, lines, strict=True):
            answer = peer.ask(**case, do="time")
            line["times"].append(answer["seconds"])
            line["native"] += [answer["native"]] if answer["native"] else []
    for peer in ours:
        peer.ask(**case, do="forget")
    return {**case, "operand": Path(case["operand"]).name, "peers": lines}


def table(results: list[dict[str, Any]]) -> str:
    """The shortest times, the memory that a run takes, and how many times as long each peer takes."""
    rows = ["| operation | operand | threads | " + " | ".join(peers.PEERS) + " |"]
    rows.append("| --- " * (3 + len(peers.PEERS)) + "|")
    for result in results:
        lines = {line["peer"]: line for line in result["peers"]}
        ours = min(lines["sparsimd"]["times"]) if "sparsimd" in lines else None
        cells = []
        for name in peers.PEERS:
            best = min(lines[name]["times"]) if name in lines else None
            cell = f"{1e3 * best:.4g} ms, {lines[name]['bytes'] / 1e6:.1f} MB" if best else ""
            cells.append(cell + (f", {best / ours:.2f} x" if best and ours and name != "sparsimd" else ""))
        where = f"| {result['op']} | {result['operand']}, {result['n']} | {result['threads']} | "
        rows.append(where + " | ".join(cells) + " |")
    return "\n".join(rows)


# By operation: the peer, how many times as long it takes at least, and whether that is asked on one thread only.
RATIOS: dict[str, list[tuple[str, float, bool]]] = {
    "spmm": [("scipy", 2.0, True), ("torch", 1.8, False)],
    "sddmm": [("torch", 1.8, False)],
    "attention": [("torch", 3.0, False)],
    "mttkrp": [("pyttb", 40.0, False)],
    "cp_als": [("pyttb", 10.0, False)],
    "read": [("scipy", 1.0, False)],
}
# At most so many microseconds more than the library's own function, which C programs call.
OVERHEADS = {"call": 1.0, "operator": 5.0}
# At most this part of the peer's extra memory.
MEMORY = {"attention": ("torch", 0.1)}
FIT = 1e-6


def bounds(results: list[dict[str, Any]]) -> list[tuple[str, str, str, bool]]:
    """What is asked of each case: the case, what was measured, the bound, and whether it is met."""
    found = []
    for result in results:
        lines = {line["peer"]: line for line in result["peers"]}
        if "sparsimd" not in lines:
            continue
        ours, op = lines["sparsimd"], result["op"].split()[0]
        case = f"{result['op']}, {result['operand']}, {result['threads']} thr."
        best = min(ours["times"])
        if op in OVERHEADS and ours["native"]:
            more = 1e6 * (best - min(ours["native"]))
            text = f"{more:.2f} us more than the library's {1e6 * min(ours['native']):.2f}"
            found.append((case, text, f"<= {OVERHEADS[op]} us", more <= OVERHEADS[op]))
        for peer, least, alone in RATIOS.get(op, []):
            if peer in lines and not (alone and result["threads"] > 1):
                ratio = min(lines[peer]["times"]) / best
                found.append((case, f"{ratio:.2f} x {peer}", f">= {least} x", ratio >= least))
        peer, part = MEMORY.get(op, ("", 0.0))
        if peer in lines and lines[peer]["bytes"]:
            share = ours["bytes"] / lines[peer]["bytes"]
            found.append((case, f"{share:.3f} of {peer}'s extra memory", f"<= {part}", share <= part))
        if op == "cp_als" and "pyttb" in lines:
            apart = FIT * lines["pyttb"]["error"]
            found.append((case, f"fits {apart:.1e} apart", f"<= {FIT:.0e}", apart <= FIT))
    return found


def bounds_table(found: list[tuple[str, str, str, bool]]) -> str:
    """The bounds as a table, and how many are met."""
    rows = ["| case | measured | asked | met |", "| --- | --- | --- | --- |"]
    rows += [f"| {case} | {measured} | {asked} | {'yes' if met else 'NO'} |" for case, measured, asked, met in found]
    return "\n".join([*rows, "", f"{sum(met for *_, met in found)} of {len(found)} bounds are met."])


def picture(results: list[dict[str, Any]], path: Path) -> bool:
    """Bars of the peers' time by ours; whether there is matplotlib to draw them."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import patches, pyplot
    except ImportError:
        return False
    bars = []
    for result in results:
        best = {line["peer"]: min(line["times"]) for line in result["peers"]}
        label = f"{result['op']}, {result['operand']}, {result['threads']} thr."
        ours = best.get("sparsimd")
        bars += [(label, name, best[name] / ours) for name in peers.PEERS[1:] if ours and name in best]
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.22 * len(bars)), layout="constrained")
    colours = {name: f"C{at}" for at, name in enumerate(peers.PEERS[1:])}
    axes.barh(range(len(bars)), [bar[2] for bar in bars], color=[colours[bar[1]] for bar in bars])
    axes.set_yticks(range(len(bars)), [bar[0] for bar in bars], fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("time by that of sparsimd: above 1 we are faster")
    handles = [patches.Patch(color=colour) for colour in colours.values()]
    axes.legend(handles, list(colours), loc="lower right")
    figure.savefig(path, dpi=120)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, len(os.sched_getaffinity(0))}))
    parser.add_argument("--filter", default="", help="only operations whose name contains this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="only the matrices that come with the project")
    parser.add_argument("--out", type=Path, help="folder for compare.json and compare.png")
    arguments = parser.parse_args()
    data = os.environ.get("SPARSIMD_DATA")
    results = []
    for threads in arguments.threads:
        running = [Peer(name, threads) for name in peers.PEERS]
        for peer in running:
            if peer.missing:
                print(f"{peer.name} is left out: {peer.missing}")
        running = [peer for peer in running if not peer.missing]
        for case in cases(Path(data) if data else None, arguments.quick):
            if arguments.filter in case["op"]:
                results.append({**compare(case, running, arguments.rounds), "threads": threads})
        for peer in running:
            peer.end()
    text = table(results)
    print(text, bounds_table(bounds(results)), sep="\n\n")
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=arguments.out, delete=False, suffix=".json") as file:
            json.dump(results, file, indent=1)
        os.replace(file.name, arguments.out / "compare.json")
        if not picture(results, arguments.out / "compare.png"):
            print("matplotlib is not installed: no picture")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""PyTorch's CSR matmul and sampled_addmm (cuSPARSE), timed on an NVIDIA GPU.

    python3 benches/peers/torch_gpu.py [--out DIR] [--filter 4k/4k]     the 72 cases of the ESIMD paper, by itself
    python3 benches/peers/torch_gpu.py --serve                          as `sparsimd bench esimd --device gpu` starts it

By itself it draws random matrices and writes DIR/torch_gpu.json, whose cases have the names and the fields of the program's own
results.json. As a server it reads one JSON object a line with a case, whose matrix lies in files (crow, col: 32-bit integers, val:
32-bit floats), and answers with one line. Times are of kernels alone, by CUDA events. Every result is verified first, some rows
of it against a product in double precision. Without a GPU or PyTorch it says so and exits with status 0.
"""

import argparse
import json
import os
import pathlib
import sys
import time

K = 1024
SHAPES = [
    (1, 1), (2, 2), (4, 4), (8, 8), (3, 1), (6, 2), (12, 4), (24, 8), (4, 1), (8, 2), (16, 4), (32, 8),
]  # fmt: skip
COLUMNS = [32, 128]
ZEROS = [70, 80, 90]
NAMES = {"sddmm": "SDDMM", "spmm": "SpMM", "fusedmm": "FusedMM"}
WARM_UP_S, COLD_RUNS, LEAST_RUNS, MOST_RUNS = 0.2, 3, 3, 1000
CHECKED_ROWS = 16
FLUSH_BYTES = 128 << 20


def cuda():
    """PyTorch, or None and why not."""
    try:
        import torch
    except ImportError:
        return None, "PyTorch is not installed"
    if not torch.cuda.is_available():
        return None, "PyTorch sees no NVIDIA GPU"
    return torch, f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}"


def measure(torch, op, a, n, seconds):
    """Kernel times of `op` on the sparse matrix `a` with `n` dense columns, timed for about so many seconds."""
    generator = torch.Generator(device="cuda").manual_seed(0)

    def uniform(rows):
        return torch.rand(rows, n, device="cuda", generator=generator) - 0.5

    m, k = a.shape
    crow, col, values = a.crow_indices(), a.col_indices(), a.values()
    b, c, d = uniform(k), uniform(m), uniform(k)
    transposed = b.t()
    zero = torch.sparse_csr_tensor(crow, col, torch.zeros_like(values), a.shape)

    def sample():
        return torch.sparse.sampled_addmm(zero, c, transposed, beta=0.0)

    # FusedMM with D = B: the same calls on one operand less.
    if op == "fusedmm-d=b":
        op, d = "fusedmm", b
    run = {"spmm": lambda: a @ b, "sddmm": sample, "fusedmm": lambda: sample() @ d}[op]
    got = run()
    for i in range(0, m, max(1, m // CHECKED_ROWS)):
        start, end = int(crow[i]), int(crow[i + 1])
        rows = col[start:end].long()
        dots = b[rows].double() @ c[i].double()
        if op == "spmm":
            want, have = values[start:end].double() @ b[rows].double(), got[i].double()
        elif op == "sddmm":
            want, have = dots, got.values()[start:end].double()
        else:
            want, have = dots @ d[rows].double(), got[i].double()
        error = float((have - want).abs().max() / want.abs().max().clamp(min=1e-30)) if end > start else 0.0
        if not error < 1e-3:
            raise RuntimeError(f"{op}: PyTorch's row {i} is off by {error:.1e}")
    del got

    def once():
        begin, finish = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        finish.record()
        finish.synchronize()
        return begin.elapsed_time(finish) * 1e-3

    fill = torch.empty(FLUSH_BYTES // 4, device="cuda")
    cold = []
    for _ in range(COLD_RUNS):
        fill.zero_()
        cold.append(once())
    begin = time.monotonic()
    while time.monotonic() - begin < WARM_UP_S:
        once()
    warm, begin = [], time.monotonic()
    while len(warm) < LEAST_RUNS or (len(warm) < MOST_RUNS and time.monotonic() - begin < seconds):
        warm.append(once())
    cold.sort()
    warm.sort()
    middle = {"median_s": warm[len(warm) // 2], "cold_s": cold[len(cold) // 2]}
    return {"min_s": warm[0], "runs": len(warm)} | middle


def serve():
    """Answers a line for each line."""
    torch, detail = cuda()
    print(json.dumps({"absent": detail} if torch is None else {"detail": detail}), flush=True)
    kept = None
    for line in sys.stdin if torch else ():
        case = json.loads(line)
        try:
            folder = pathlib.Path(case["folder"])
            stamp = (case["m"], case["k"], os.stat(folder / "val").st_mtime_ns)
            if kept is None or kept[0] != stamp:

                def read(name, dtype, size):
                    if size == 0:
                        return torch.empty(0, dtype=dtype, device="cuda")
                    return torch.from_file(str(folder / name), size=size, dtype=dtype).cuda()

                kept = None
                crow = read("crow", torch.int32, case["m"] + 1)
                col = read("col", torch.int32, case["nnz"])
                values = read("val", torch.float32, case["nnz"])
                kept = stamp, torch.sparse_csr_tensor(crow, col, values, (case["m"], case["k"]))
            answer = measure(torch, case["op"], kept[1], case["n"], case["seconds"])
        except Exception as error:  # noqa: BLE001 - whatever PyTorch raises is the answer
            answer = {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), flush=True)
    return 0


def random_csr(torch, m, k, zeros):
    generator = torch.Generator(device="cuda").manual_seed(0)
    mask = torch.rand(m, k, device="cuda", generator=generator) >= zeros / 100
    values = torch.rand(m, k, device="cuda", generator=generator) - 0.5
    dense = torch.where(mask, values, 0.0).to_sparse_csr()
    parts = dense.crow_indices().int(), dense.col_indices().int(), dense.values()
    return torch.sparse_csr_tensor(*parts, (m, k))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("target"))
    parser.add_argument("--filter", default="")
    parser.add_argument("--serve", action="store_true")
    args = parser.parse_args()
    if args.serve:
        return serve()
    torch, detail = cuda()
    if torch is None:
        print(f"skipped: {detail}")
        return 0
    cases = []
    for m, k in SHAPES:
        for zeros in ZEROS:
            inputs = [(n, f"{m}k/{k}k/{n}/{zeros}%") for n in COLUMNS]
            inputs = [(n, name) for n, name in inputs if args.filter in name]
            a = random_csr(torch, m * K, k * K, zeros) if inputs else None
            for n, name in inputs:
                for op in NAMES:
                    flops = (4 if op == "fusedmm" else 2) * a.values().numel() * n
                    times = measure(torch, op, a, n, 0.25)
                    sample = {"name": "cuSPARSE", "ours": False, "gflops": flops / times["min_s"] / 1e9} | times
                    case = {"id": f"{NAMES[op]} {name}", "op": NAMES[op], "input": name, "dims": [m * K, k * K]}
                    case |= {"nnz": a.values().numel(), "n": n, "flops": flops, "samples": [sample]}
                    cases.append(case)
                    print(f"{case['id']:28} {sample['gflops']:10.0f} GFLOP/s", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    fresh = args.out / "torch_gpu.json.new"
    fresh.write_text(json.dumps({"written": int(time.time()), "peer": detail, "cases": cases}, indent=1) + "\n")
    fresh.rename(args.out / "torch_gpu.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""PyTorch's CSR matmul and sampled_addmm (cuSPARSE) on the 72 cases of the ESIMD paper, and ours on the same machine.

    python3 benches/peers/torch_gpu.py [--sparsimd target/release/sparsimd] [--out DIR] [--filter 4k/4k]

Needs an NVIDIA GPU, PyTorch with CUDA, and the program built with `--features vulkan`. Writes DIR/torch_gpu.json (one object for
each case and operation, with the date and the device) and prints a table with the geometric means. Times are of kernels alone: CUDA
events for PyTorch, Vulkan timestamps for ours. Each case is verified first: PyTorch against a product in double precision,
ours by --verify. Without a GPU or PyTorch it says so and exits with status 0: there is nothing to compare.
"""

import argparse
import datetime
import json
import math
import pathlib
import subprocess
import sys

K = 1024
SHAPES = [
    (1, 1), (2, 2), (4, 4), (8, 8), (3, 1), (6, 2), (12, 4), (24, 8), (4, 1), (8, 2), (16, 4), (32, 8),
]  # fmt: skip
COLUMNS = [32, 128]
SPARSITIES = [0.7, 0.8, 0.9]
WARM_UP, RUNS = 5, 30


def cases(wanted):
    for m, k in SHAPES:
        for n in COLUMNS:
            for sparsity in SPARSITIES:
                name = f"{m}k/{k}k N={n} {sparsity:.0%}"
                if wanted in name:
                    yield name, m * K, k * K, n, sparsity


def peer(torch, op, m, k, n, sparsity):
    """Kernel seconds of cuSPARSE on a random matrix of the case, the best of RUNS."""
    generator = torch.Generator(device="cuda").manual_seed(0)

    def uniform(*shape):
        return torch.rand(*shape, device="cuda", generator=generator) - 0.5

    mask = torch.rand(m, k, device="cuda", generator=generator) >= sparsity
    dense = torch.where(mask, uniform(m, k), 0.0)
    a = dense.to_sparse_csr()
    b = uniform(k, n)
    c = uniform(m, n)
    if op == "spmm":
        run = lambda: a @ b  # noqa: E731
        want = dense.double() @ b.double()
        error = (run().double() - want).abs().max() / want.abs().max()
    else:
        transposed = b.t()
        zero = torch.sparse_csr_tensor(a.crow_indices(), a.col_indices(), torch.zeros_like(a.values()), a.shape)
        run = lambda: torch.sparse.sampled_addmm(zero, c, transposed, beta=0.0)  # noqa: E731
        want = torch.where(mask, c.double() @ b.double().t(), 0.0)
        error = (run().to_dense().double() - want).abs().max() / want.abs().max()
    if not error < 1e-3:
        raise RuntimeError(f"{op}: PyTorch's result is off by {error:.1e}")
    best = math.inf
    for i in range(WARM_UP + RUNS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        if i >= WARM_UP:
            best = min(best, start.elapsed_time(end) * 1e-3)
    return best, a.values().numel()


def ours(program, op, m, k, n, sparsity):
    """Kernel seconds of our kernel on a random matrix of the case, the best of RUNS, verified."""
    command = [program, op, "--random", f"{m}x{k}@{sparsity}", "-n", str(n), "--device", "gpu"]
    command += ["--repeat", str(RUNS), "--verify", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"{op}: wrong result")
    report = json.loads(done.stdout)
    if report["kernel_s"] is None:
        raise RuntimeError("the device has no timestamps")
    return report["kernel_s"], report["nnz"], report["device"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sparsimd", default="target/release/sparsimd")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("target"))
    parser.add_argument("--filter", default="")
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("skipped: PyTorch is not installed")
        return 0
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no NVIDIA GPU")
        return 0
    rows = []
    print(f"{'case':24}{'op':8}{'cuSPARSE':>12}{'sparsimd':>12}{'ratio':>8}   GFLOP/s")
    for name, m, k, n, sparsity in cases(args.filter):
        for op in ("spmm", "sddmm"):
            peer_s, peer_nnz = peer(torch, op, m, k, n, sparsity)
            our_s, our_nnz, device = ours(args.sparsimd, op, m, k, n, sparsity)
            # The two matrices are drawn apart, so rates are compared, not times.
            theirs, mine = 2e-9 * peer_nnz * n / peer_s, 2e-9 * our_nnz * n / our_s
            row = {"case": name, "op": op, "m": m, "k": k, "n": n, "sparsity": sparsity}
            row |= {"cusparse_gflops": theirs, "sparsimd_gflops": mine, "ratio": mine / theirs}
            rows.append(row | {"device": device, "torch_device": torch.cuda.get_device_name()})
            print(f"{name:24}{op:8}{theirs:12.0f}{mine:12.0f}{mine / theirs:8.2f}", flush=True)
    for op in ("spmm", "sddmm"):
        ratios = [r["ratio"] for r in rows if r["op"] == op]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"{op}: geometric mean {mean:.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")
    args.out.mkdir(parents=True, exist_ok=True)
    result = {"date": datetime.date.today().isoformat(), "torch": torch.__version__, "rows": rows}
    fresh = args.out / "torch_gpu.json.new"
    fresh.write_text(json.dumps(result, indent=1) + "\n")
    fresh.rename(args.out / "torch_gpu.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())

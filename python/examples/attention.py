"""A layer of attention over the edges of a graph, trained by sparsimd's operator and by plain PyTorch from the same start.

Plain PyTorch gathers the rows of every edge, three arrays of edges x columns at once; the operator stores no score.

    python python/examples/attention.py [--epochs 15] [--heads 2] [--picture attention.png]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import _graphs
import torch

import sparsimd.torch as st

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Attention(torch.nn.Module):
    """One layer of several heads, and a linear classifier of what it gives."""

    def __init__(self, features: int, width: int, heads: int, classes: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.qkv = torch.nn.Linear(features, 3 * heads * width)
        self.out = torch.nn.Linear(heads * width, classes)

    def forward(self, attend: Attend, X: torch.Tensor) -> torch.Tensor:
        # (nodes, 3, heads, width): the heads of each operand are read where they are, with these strides.
        q, k, v = self.qkv(X).view(-1, 3, self.heads, self.width).permute(1, 2, 0, 3)
        result: torch.Tensor = self.out(attend(q, k, v).transpose(0, 1).flatten(1))
        return result


def plain(rows: torch.Tensor, cols: torch.Tensor) -> Attend:
    """Attention by gather, softmax by rows, and scatter."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q[:, rows] * k[:, cols]).sum(2) * q.shape[2] ** -0.5
        index = rows.expand(q.shape[0], -1)
        with torch.no_grad():
            top = torch.full(q.shape[:2], -torch.inf).scatter_reduce(1, index, scores, "amax")
        weights = torch.exp(scores - top.gather(1, index))
        sums = torch.zeros(q.shape[:2]).scatter_add(1, index, weights)
        weights = weights / sums.gather(1, index)
        return torch.zeros_like(q).index_add(1, rows, weights[:, :, None] * v[:, cols])

    return attend


def train(
    attend: Attend, X: torch.Tensor, labels: torch.Tensor, training: torch.Tensor, epochs: int, heads: int
) -> tuple[list[float], float, float]:
    """Losses, accuracy on the other nodes, and seconds of an epoch."""
    torch.manual_seed(0)
    model = Attention(X.shape[1], 32, heads, int(labels.max()) + 1)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, start = [], time.perf_counter()
    for _ in range(epochs):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(attend, X)[training], labels[training])
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    seconds = (time.perf_counter() - start) / epochs
    with torch.no_grad():
        right = model(attend, X).argmax(1) == labels
    return losses, right[~training].float().mean().item(), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()

    A = _graphs.with_loops(_graphs.graph())
    X, labels, training = (torch.from_numpy(array) for array in _graphs.task(_graphs.normalised(A), 64, 4, seed=1))
    crow, col = torch.tensor(A.indptr), torch.tensor(A.indices)
    rows = torch.repeat_interleave(torch.arange(A.shape[0]), crow.diff())
    print(A, f"{arguments.heads} heads, labels of 4 classes,", int(training.sum()), "nodes to train on")

    ways: dict[str, Attend] = {
        "sparsimd": lambda q, k, v: st.attention(crow, col, q, k, v),
        "plain PyTorch": plain(rows, col.long()),
    }
    curves, reached = {}, {}
    for name, attend in ways.items():
        found = train(attend, X, labels, training, arguments.epochs, arguments.heads)
        curves[name], reached[name], seconds = found
        print(f"{name:14} loss {curves[name][-1]:.4f}, accuracy {reached[name]:.4f}, {1e3 * seconds:.0f} ms an epoch")
    assert abs(reached["sparsimd"] - reached["plain PyTorch"]) < 0.02, "both should learn the same"
    if arguments.picture:
        _graphs.show(arguments.picture, curves, "Attention over the edges")


if __name__ == "__main__":
    main()

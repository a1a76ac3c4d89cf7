"""A graph convolution network, trained by sparsimd's operators and by plain PyTorch from the same start.

python python/examples/gcn.py [--epochs 60] [--picture gcn.png]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import _graphs
import torch

import sparsimd.torch as st

Product = Callable[[torch.Tensor], torch.Tensor]


class GCN(torch.nn.Module):
    """Two layers of relu(A X W), the last one without the relu."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(features, hidden)
        self.second = torch.nn.Linear(hidden, classes)

    def forward(self, times_a: Product, X: torch.Tensor) -> torch.Tensor:
        return times_a(self.second(torch.relu(times_a(self.first(X)))))


def train(
    times_a: Product, X: torch.Tensor, labels: torch.Tensor, training: torch.Tensor, epochs: int
) -> tuple[list[float], float, float]:
    """Losses, accuracy on the other nodes, and seconds of an epoch."""
    torch.manual_seed(0)
    model = GCN(X.shape[1], 64, int(labels.max()) + 1)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, start = [], time.perf_counter()
    for _ in range(epochs):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(times_a, X)[training], labels[training])
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    seconds = (time.perf_counter() - start) / epochs
    with torch.no_grad():
        right = model(times_a, X).argmax(1) == labels
    return losses, right[~training].float().mean().item(), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()

    A = _graphs.normalised(_graphs.with_loops(_graphs.graph()))
    X, labels, training = (torch.from_numpy(array) for array in _graphs.task(A, 64, 4, seed=1))
    print(A, "labels of 4 classes,", int(training.sum()), "nodes to train on")

    crow, col, values = (torch.tensor(array) for array in (A.indptr, A.indices, A.data))
    S = torch.sparse_csr_tensor(crow, col.long(), values, A.shape)
    curves = {}
    reached = {}
    products: dict[str, Product] = {
        "sparsimd": lambda Y: st.spmm(crow, col, values, Y),
        "plain PyTorch": lambda Y: S @ Y,
    }
    for name, times_a in products.items():
        curves[name], reached[name], seconds = train(times_a, X, labels, training, arguments.epochs)
        print(f"{name:14} loss {curves[name][-1]:.4f}, accuracy {reached[name]:.4f}, {1e3 * seconds:.1f} ms an epoch")
    assert abs(reached["sparsimd"] - reached["plain PyTorch"]) < 0.02, "both should learn the same"
    if arguments.picture:
        _graphs.show(arguments.picture, curves, "Graph convolution network")


if __name__ == "__main__":
    main()

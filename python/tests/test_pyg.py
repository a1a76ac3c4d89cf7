"""PyTorch Geometric's product and message passing."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import random_csr

torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
geometric = pytest.importorskip("torch_geometric", reason="torch_geometric is not installed", exc_type=ImportError)

import sparsimd.pyg as pyg  # noqa: E402


@pytest.fixture
def adjacency(rng):
    data, indices, indptr = random_csr(rng, 12, 15, 0.3, np.float32)
    arrays = (torch.from_numpy(indptr), torch.from_numpy(indices.astype(np.int64)), torch.from_numpy(data))
    return torch.sparse_csr_tensor(*arrays, (12, 15))


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("reduce", ["sum", "add", "mean", "max", "min"])
def test_spmm(adjacency, layout, reduce):
    if layout != "csr" and reduce in ("max", "min"):
        pytest.skip("PyTorch Geometric has no maximum of this layout")
    src = getattr(adjacency, f"to_sparse_{layout}")()
    X = torch.rand(15, 6).requires_grad_()
    got, want = pyg.spmm(src, X, reduce), geometric.utils.spmm(src, X, reduce)
    torch.testing.assert_close(got, want)
    up = torch.rand(12, 6)
    got, want = (torch.autograd.grad(result, X, up)[0] for result in (got, want))
    torch.testing.assert_close(got, want)


def test_message_passing(rng, monkeypatch):
    data, indices, indptr = random_csr(rng, 15, 15, 0.3, np.float32)
    arrays = (torch.from_numpy(indptr), torch.from_numpy(indices.astype(np.int64)), torch.from_numpy(data))
    adj_t = torch.sparse_csr_tensor(*arrays, (15, 15))
    layers = [geometric.nn.GCNConv(6, 4, normalize=False), geometric.nn.SAGEConv(6, 4), geometric.nn.GraphConv(6, 4)]
    X = torch.rand(15, 6)
    calls = []
    ours = pyg.spmm
    monkeypatch.setattr(pyg, "spmm", lambda *arguments, **named: calls.append(1) or ours(*arguments, **named))
    for layer in layers:
        want = layer(X, adj_t)
        with pyg.message_passing():
            got = layer(X, adj_t)
        torch.testing.assert_close(got, want)
        gradients = []
        for result in (got, want):
            layer.zero_grad()
            result.sum().backward()
            gradients.append([parameter.grad.clone() for parameter in layer.parameters()])
        torch.testing.assert_close(*gradients)
    assert len(calls) == len(layers)
    assert geometric.utils.spmm is pyg._theirs

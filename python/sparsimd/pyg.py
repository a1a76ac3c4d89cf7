"""PyTorch Geometric: its product of a sparse and a dense matrix, and a context in which its message passing uses it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import torch as _sparse  # first: it says where torch is missing
from ._operators import call

try:
    import torch
    import torch_geometric.utils
except ImportError as error:
    raise ImportError("sparsimd.pyg needs the package torch_geometric: pip install torch_geometric") from error

__all__ = ["message_passing", "spmm"]

REDUCTIONS = {"sum": "sum", "add": "sum", "mean": "mean", "min": "min", "max": "max"}
"""What PyTorch Geometric and `sparsimd.spmm` call them."""

_theirs: Any = torch_geometric.utils.spmm


def spmm(src: Any, other: Any, reduce: str = "sum") -> Any:
    """Sparse times dense, as ``torch_geometric.utils.spmm``.

    Products of a CSR or CSC tensor without gradients of its own with a dense operand in the processor's memory are computed here,
    maxima and minima of CSR; everything else by PyTorch Geometric.

    Parameters
    ----------
    src : torch.Tensor, torch_geometric.EdgeIndex, torch_sparse.SparseTensor
        (m, k).
    other : torch.Tensor
        (k, n); it may require gradients.
    reduce : {"sum", "add", "mean", "min", "max"}, optional
        What becomes of the products of a row.

    Returns
    -------
    torch.Tensor
        (m, n).
    """
    if not _ours(src, other) or reduce not in REDUCTIONS:
        return _theirs(src, other, reduce)
    values = src.values().to(other.dtype)
    if src.layout == torch.sparse_csr:
        return _sparse.spmm(src.crow_indices(), src.col_indices(), values, other, REDUCTIONS[reduce])
    if reduce in ("min", "max"):
        return _theirs(src, other, reduce)
    ccol, row = src.ccol_indices(), src.row_indices()
    if reduce == "mean":
        values = values / torch.bincount(row, minlength=src.shape[0])[row].to(other.dtype)
    return call("spmm_t", ccol, row, values, other, src.shape[0])


def _ours(src: Any, other: Any) -> bool:
    """Whether the product is computed here."""
    if type(src) is not torch.Tensor or src.layout not in (torch.sparse_csr, torch.sparse_csc):
        return False
    plain = src.device.type == other.device.type == "cpu" and not src.requires_grad
    fits = src.dim() == other.dim() == 2 and src.shape[1] == other.shape[0]
    return plain and fits and other.dtype in (torch.float32, torch.float64)


@contextmanager
def message_passing() -> Iterator[None]:
    """Inside this context the layers of PyTorch Geometric multiply by `spmm`.

    Examples
    --------
    ::

        with sparsimd.pyg.message_passing():
            loss = model(x, adj_t).sum()   # adj_t: a CSR tensor of torch
            loss.backward()
    """
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("torch_geometric")]
    holders = [module for module in modules if getattr(module, "spmm", None) is _theirs]
    for holder in holders:
        setattr(holder, "spmm", spmm)  # noqa: B010
    try:
        yield
    finally:
        for holder in holders:
            setattr(holder, "spmm", _theirs)  # noqa: B010

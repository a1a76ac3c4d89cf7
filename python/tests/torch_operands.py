"""Operands of the tests of the PyTorch operators."""

from __future__ import annotations

import torch


def uniform(*shape, grad=False, dtype=torch.float64):
    return (torch.rand(shape, dtype=dtype) - 0.5).requires_grad_(grad)


def dense(crow, col, values, cols):
    rows = torch.repeat_interleave(torch.arange(len(crow) - 1), crow.diff())
    return torch.zeros((len(crow) - 1, cols), dtype=values.dtype).index_put((rows, col.long()), values)

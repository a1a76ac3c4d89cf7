"""Names of options."""

from typing import Literal

Op = Literal["spmm", "spmm_t", "sddmm", "fusedmm"]
Effort = Literal["estimate", "measure"]
Strategy = Literal["auto", "direct", "panel", "slices"]
Edge = Literal["identity", "scale", "sigmoid", "softmax", "leaky_relu", "softmax_leaky_relu"]
Format = Literal[
    "auto", "coo", "csf-all", "csf-one", "csf-two", "bcsf", "mmcsf", "hicoo", "alto", "tiled", "tree", "joint"
]
Reduce = Literal["sum", "mean", "max", "min"]
Semiring = Literal[
    "plus-times",
    "or-and",
    "min-plus",
    "max-plus",
    "max-times",
    "min-times",
    "plus-min",
    "max-min",
    "min-max",
    "plus-second",
    "max-second",
    "min-second",
]
Scores = Literal["dots", "sums"]

"""CP and Tucker decompositions."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._sparsimd import PreparedTensor, Tensor, _cp_als, _tucker

Callback = Callable[[int, float], object]


class CP(NamedTuple):
    """A CP model: the sum over r of ``weights[r]`` times the outer product of the columns ``factors[m][:, r]``."""

    weights: NDArray[np.float64]
    """(rank,)."""
    factors: list[NDArray[Any]]
    """For each mode (length, rank), in the tensor's dtype; columns of length 1."""
    fits: NDArray[np.float64]
    """``1 - |X - model| / |X|`` after each iteration."""


class Tucker(NamedTuple):
    """A Tucker model: the core times the matrix of each mode."""

    core: NDArray[np.float64]
    """As long in each mode as that mode's rank."""
    factors: list[NDArray[np.float64]]
    """For each mode (length, rank); columns are orthonormal."""
    fits: NDArray[np.float64]
    """``1 - |X - model| / |X|`` after each iteration."""


def _told(callback: Callback | None, progress: bool, maxiters: int) -> tuple[Callback | None, Callable[[], None]]:
    """What is called after every iteration, and at the end."""
    if not progress:
        return callback, lambda: None
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs the package tqdm: pip install tqdm") from error
    bar = tqdm(total=maxiters, unit="iteration")

    def tell(number: int, fit: float) -> object:
        bar.update(number - bar.n)
        bar.set_postfix(fit=f"{fit:.6f}")
        return callback(number, fit) if callback else None

    return tell, bar.close


def _warn(interrupted: bool, iterations: int) -> None:
    if interrupted:
        warnings.warn(f"interrupted after iteration {iterations}; this is what there is", RuntimeWarning, stacklevel=3)


def cp_als(
    T: Tensor | PreparedTensor,
    rank: int,
    *,
    maxiters: int = 50,
    stoptol: float = 1e-5,
    init: Literal["random"] | Sequence[ArrayLike] | os.PathLike[str] = "random",
    seed: int = 0,
    ridge: float = 0.0,
    nonnegative: bool = False,
    callback: Callback | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> CP:
    """Canonical polyadic decomposition by alternating least squares.

    Ctrl-C ends it after the iteration that is running, with what there is and a `RuntimeWarning`.

    Parameters
    ----------
    T : Tensor, PreparedTensor
        Prepared for this rank if it is not, and the tensor keeps that.
    rank : int
        Number of components, 1 to 128.
    maxiters : int, optional
        Most iterations, at least 1; those before a checkpoint included.
    stoptol : float, optional
        Ends when the fit improves by less; 0 for never.
    init : "random", sequence of array_like or path-like, optional
        Uniform random factors, factors of (length, rank) for each mode, or a `pathlib.Path` to a checkpoint to go on from: the
        result is then that of an unbroken run, to the bit.
    seed : int, optional
        Of random factors.
    ridge : float, optional
        Added to the diagonal of the normal equations.
    nonnegative : bool, optional
        Whether factors are kept non-negative.
    callback : callable, optional
        ``callback(number, fit)`` after every iteration; a true answer ends the run. Its exception ends the run and is passed on.
    checkpoint : path, optional
        Written after every iteration, whole or not at all.
    progress : bool, optional
        Whether to show a bar; needs tqdm.

    Returns
    -------
    CP
        The named tuple ``(weights, factors, fits)``.

    Examples
    --------
    >>> import numpy as np
    >>> import sparsimd as ss
    >>> T = ss.Tensor([[0, 1], [0, 1], [0, 1]], [3.0, 2.0], (2, 2, 2))
    >>> weights, factors, fits = ss.cp_als(T, 2, seed=3)
    >>> np.sort(weights).round(3)
    array([2., 3.])
    """
    told, close = _told(callback, bool(progress), maxiters)
    try:
        weights, factors, fits, interrupted = _cp_als(
            T, rank, maxiters, stoptol, init, seed, ridge, nonnegative, told, checkpoint
        )
    finally:
        close()
    _warn(interrupted, len(fits))
    return CP(weights, factors, fits)


def tucker(
    T: Tensor,
    ranks: Sequence[int] | int,
    *,
    maxiters: int = 50,
    stoptol: float = 1e-5,
    init: Literal["svd", "random"] | Sequence[ArrayLike] | os.PathLike[str] = "svd",
    seed: int = 0,
    callback: Callback | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Tucker:
    """Tucker's decomposition by higher-order orthogonal iteration.

    Ctrl-C ends it after the iteration that is running, with what there is and a `RuntimeWarning`.

    Parameters
    ----------
    T : Tensor
        Of order 2 or more.
    ranks : sequence of int or int
        Columns of each mode's factor; one number for all.
    maxiters, stoptol, seed, callback, checkpoint, progress
        As in `cp_als`.
    init : {"svd", "random"}, sequence of array_like or path-like, optional
        From the HOSVD, from random numbers, from factors in double precision, or on from a checkpoint.

    Returns
    -------
    Tucker
        The named tuple ``(core, factors, fits)``.
    """
    wanted = [ranks] * len(T.shape) if isinstance(ranks, int) else list(ranks)
    told, close = _told(callback, bool(progress), maxiters)
    try:
        core, factors, fits, interrupted = _tucker(T, wanted, maxiters, stoptol, init, seed, told, checkpoint)
    finally:
        close()
    _warn(interrupted, len(fits))
    return Tucker(core, factors, fits)

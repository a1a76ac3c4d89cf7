"""Numbers of threads, as a context and for threadpoolctl."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ._sparsimd import get_num_threads, set_num_threads


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Use `n` threads inside a ``with`` statement.

    Parameters
    ----------
    n : int
        At least 1. It holds for the whole process, other threads included, until the statement ends.

    Examples
    --------
    >>> import sparsimd as ss
    >>> with ss.threads(1):
    ...     ss.get_num_threads()
    1
    """
    before = get_num_threads()
    set_num_threads(n)
    try:
        yield
    finally:
        set_num_threads(before)


def _register() -> None:
    """Tell threadpoolctl about the pool, where that package is installed."""
    try:
        import threadpoolctl
    except ImportError:
        return

    class Controller(threadpoolctl.LibController):  # type: ignore[misc, unused-ignore]
        user_api = "sparsimd"
        internal_api = "sparsimd"
        filename_prefixes = ("_sparsimd",)

        def get_version(self) -> str:
            from ._sparsimd import __version__

            return __version__

        def get_num_threads(self) -> int:
            return get_num_threads()

        def set_num_threads(self, num_threads: int) -> None:
            set_num_threads(num_threads)

    threadpoolctl.register(Controller)


_register()

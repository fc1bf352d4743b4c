"""scipy's HiGHS with a common time limit for all linear programs in a block of code."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)

#: linprog's status for a time or iteration limit; no iteration limit is set here.
_OUT_OF_TIME = 1


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limit the total time of all linear programs inside the block.

    One that exceeds it raises TimeoutError. The limit is a context variable, so it applies to this thread only.

    Examples
    --------
    >>> with time_limit(0.0):
    ...     linprog([1.0], A_eq=[[1.0]], b_eq=[1.0])
    Traceback (most recent call last):
        ...
    TimeoutError: there was no time left for a linear program
    """
    token = _DEADLINE.set(min(_DEADLINE.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def linprog(*arguments: Any, options: dict[str, Any] | None = None, **keywords: Any) -> Any:
    """Solve a linear program with `scipy.optimize.linprog` inside the present time limit."""
    import scipy.optimize  # here, because it makes `import dpdl` slow

    left = _DEADLINE.get() - time.monotonic()
    if left <= 0:
        raise TimeoutError("there was no time left for a linear program")
    limit = {} if math.isinf(left) else {"time_limit": left}
    found = scipy.optimize.linprog(*arguments, options=(options or {}) | limit, **keywords)
    if limit and found.status == _OUT_OF_TIME:
        raise TimeoutError("a linear program ran out of time")
    return found

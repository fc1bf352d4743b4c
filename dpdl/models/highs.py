"""scipy's HiGHS under a time limit that holds for all linear programs which a piece of work comes to solve."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import scipy.optimize

_DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)

#: The status of a program that ran out of time, or of iterations, of which there is no limit here.
_OUT_OF_TIME = 1


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Let every linear program inside the block end within so many seconds from now, all together.

    The one that does not is a TimeoutError. The limit is that of the thread, as usual with context variables.

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
    left = _DEADLINE.get() - time.monotonic()
    if left <= 0:
        raise TimeoutError("there was no time left for a linear program")
    limit = {} if math.isinf(left) else {"time_limit": left}
    found = scipy.optimize.linprog(*arguments, options=(options or {}) | limit, **keywords)
    if limit and found.status == _OUT_OF_TIME:
        raise TimeoutError("a linear program ran out of time")
    return found

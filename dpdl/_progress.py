"""One line on a terminal that says how a long computation is getting on; nothing where there is no terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Self

#: Seconds before the line is first drawn, and between two drawings.
DELAY, INTERVAL = 2.0, 0.2


def on_terminal() -> bool:
    """Whether standard error is a terminal."""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # standard error was closed
        return False


class StatusLine:
    """Context manager; the line is removed at its end, also if that is an exception.

    Parameters
    ----------
    shown : bool, optional
        Whether the line is drawn; by default if standard error is a terminal.
    """

    def __init__(self, shown: bool | None = None) -> None:
        self._shown = on_terminal() if shown is None else shown
        self._width, self._due = 0, time.monotonic() + DELAY

    def __enter__(self) -> Self:
        return self

    def is_due(self) -> bool:
        """Whether it is time to draw the line."""
        return self._shown and time.monotonic() >= self._due

    def draw(self, text: str) -> None:
        """Replace the line by this text."""
        self._due, self._width = time.monotonic() + INTERVAL, max(self._width, len(text))
        with contextlib.suppress(OSError, ValueError):  # standard error was closed
            print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)

    def __exit__(self, *exception: object) -> None:
        if self._width:
            self.draw("")
            with contextlib.suppress(OSError, ValueError):
                print("\r", end="", file=sys.stderr, flush=True)

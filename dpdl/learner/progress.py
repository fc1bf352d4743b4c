"""A progress bar for runs longer than two seconds, on a terminal only: tqdm where installed, else a plain line.

Without a terminal, or after it was closed, progress goes to the logger "dpdl" every ten seconds, at level INFO.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from typing import Any

from dpdl.models.status_line import DELAY, INTERVAL, on_terminal

LOG_INTERVAL = 10.0

logger = logging.getLogger("dpdl")


class Progress:
    """Context manager; calls of `update(done)` between two redraws cost little.

    `total` steps, of which `first` were taken before; `show` is True, False, or None: if standard error is a terminal.
    """

    def __init__(self, total: int, show: bool | None, first: int = 0, label: str = "learning") -> None:
        self.total, self.first, self.label = max(total, 1), first, label
        self.show = on_terminal() if show is None else show and sys.stderr is not None
        self.started = self.drawn = time.monotonic()
        self.bar: Any = None
        self.width = 0

    def __enter__(self) -> Progress:
        return self

    def is_due(self) -> bool:
        """Whether an update would redraw or log."""
        now = time.monotonic()
        return now - self.started >= DELAY and now - self.drawn >= (INTERVAL if self.show else LOG_INTERVAL)

    def update(self, done: int) -> None:
        """Redraw or log, if that is due."""
        if not self.is_due():
            return
        self.drawn = now = time.monotonic()
        if self.show:
            try:
                self._draw(done, now)
            except (OSError, ValueError):  # standard error was closed
                self.show = False
        else:
            logger.info("%s", self._line(done, now))

    def _draw(self, done: int, now: float) -> None:
        if self.bar is None and self.width == 0:
            self.bar = _tqdm(self.total, done, self.label)
        if self.bar is not None:
            self.bar.update(done - self.bar.n)
        else:
            line = self._line(done, now)
            self.width = max(self.width, len(line))
            print("\r" + line.ljust(self.width), end="", file=sys.stderr, flush=True)

    def _line(self, done: int, now: float) -> str:
        rate = (done - self.first) / (now - self.started)
        left = (self.total - done) / rate if rate else 0.0
        return f"{self.label}: {100 * done / self.total:5.1f}%  {rate:.3g} steps/s  {left:.0f} s left"

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self.bar is not None:
                self.bar.close()
            elif self.width:
                print("\r" + " " * self.width + "\r", end="", file=sys.stderr, flush=True)


def _tqdm(total: int, first: int, label: str) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, initial=first, desc=label, unit="step", unit_scale=True, leave=False, file=sys.stderr)

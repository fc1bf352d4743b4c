"""Progress of runs longer than two seconds: a bar of tqdm on a terminal, where installed, else the logger "dpdl"."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from typing import Any

#: Seconds before the first update, and between two: of the bar, and of the logger.
DELAY, INTERVAL, LOG_INTERVAL = 2.0, 0.2, 10.0

logger = logging.getLogger("dpdl")


def on_terminal() -> bool:
    """Whether standard error is a terminal."""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # standard error was closed
        return False


class Progress:
    """Context manager; calls of `update(done)` between two redraws cost little.

    `total` steps, of which `first` were taken before; `show` is True, False, or None: if standard error is a terminal.
    Without a bar, progress is logged at level INFO.
    """

    def __init__(self, total: int, show: bool | None, first: int = 0, label: str = "learning") -> None:
        self.total, self.first, self.label = max(total, 1), first, label
        self.show = on_terminal() if show is None else show and sys.stderr is not None
        self.started = self.updated = time.monotonic()
        self.bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def update(self, done: int) -> None:
        """Redraw or log, if that is due."""
        now = time.monotonic()
        if now - self.started < DELAY or now - self.updated < (INTERVAL if self.show else LOG_INTERVAL):
            return
        self.updated = now
        if self.show and self.bar is None:
            self.bar = _tqdm(self.total, done, self.label)
            self.show = self.bar is not None
        if self.bar is not None:
            with contextlib.suppress(OSError, ValueError):  # standard error was closed
                self.bar.update(done - self.bar.n)
        else:
            rate = (done - self.first) / (now - self.started)
            left = (self.total - done) / rate if rate else 0.0
            share = 100 * done / self.total
            logger.info("%s: %5.1f%%  %.3g steps/s  %.0f s left", self.label, share, rate, left)

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            with contextlib.suppress(OSError, ValueError):
                self.bar.close()


def _tqdm(total: int, first: int, label: str) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, initial=first, desc=label, unit="step", unit_scale=True, leave=False, file=sys.stderr)

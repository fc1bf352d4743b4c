"""A progress bar for runs longer than two seconds, on a terminal only: tqdm where installed, else a plain line."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

DELAY = 2.0
INTERVAL = 0.2


class Progress:
    """Context manager; `update(done)` may be called as often as one likes.

    Parameters
    ----------
    total : int
        Number of steps.
    show : bool or None
        None shows the bar if standard error is a terminal.
    """

    def __init__(self, total: int, show: bool | None, label: str = "learning") -> None:
        self.total, self.label = total, label
        self.show = sys.stderr is not None and (sys.stderr.isatty() if show is None else show)
        self.started = self.drawn = time.monotonic()
        self.bar: Any = None
        self.width = 0

    def __enter__(self) -> Progress:
        return self

    def update(self, done: int) -> None:
        """Redraw if it is time to."""
        now = time.monotonic()
        if not self.show or now - self.started < DELAY or now - self.drawn < INTERVAL:
            return
        self.drawn = now
        if self.bar is None and self.width == 0:
            self.bar = _tqdm(self.total, self.label)
        if self.bar is not None:
            self.bar.update(done - self.bar.n)
        else:
            rate = done / (now - self.started)
            left = (self.total - done) / rate if rate else 0.0
            line = f"{self.label}: {100 * done / self.total:5.1f}%  {rate:.3g} steps/s  {left:.0f} s left"
            self.width = max(self.width, len(line))
            print("\r" + line.ljust(self.width), end="", file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.close()
        elif self.width:
            print("\r" + " " * self.width + "\r", end="", file=sys.stderr, flush=True)


def _tqdm(total: int, label: str) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, desc=label, unit="step", unit_scale=True, leave=False, file=sys.stderr)

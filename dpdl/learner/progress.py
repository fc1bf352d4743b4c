"""Progress of a run: a line on a terminal after two seconds, else the logger "dpdl" every ten."""

from __future__ import annotations

import logging
import sys
import time

from dpdl._progress import StatusLine, on_terminal

#: Seconds between two messages of the logger.
LOG_INTERVAL = 10.0

logger = logging.getLogger("dpdl")


class Progress(StatusLine):
    """Context manager; calls of `update(done)` between two redraws cost little.

    `total` steps, of which `first` were taken before; `show` is True, False, or None: if standard error is a terminal.
    """

    def __init__(self, total: int, show: bool | None, first: int = 0) -> None:
        self.show = on_terminal() if show is None else show and sys.stderr is not None
        super().__init__(self.show)
        self.total, self.first = max(total, 1), first
        self.started = self.logged = time.monotonic()

    def update(self, done: int) -> None:
        """Redraw or log, if that is due."""
        now = time.monotonic()
        due = self.is_due() if self.show else now - self.logged >= LOG_INTERVAL
        if not due:
            return
        rate = (done - self.first) / max(now - self.started, 1e-9)
        left = (self.total - done) / rate if rate else 0.0
        text = f"learning: {100 * done / self.total:5.1f}%  {rate:.3g} steps/s  {left:.0f} s left"
        if self.show:
            self.draw(text)
        else:
            self.logged = now
            logger.info(text)

"""Ctrl-C and SIGTERM: both end a run, which then returns the result of the steps taken.

Python handles signals in the main thread only, between two bytecodes. `Interrupts` counts SIGINT in the signal handler,
so that a run in any thread, inside the compiled core, sees it within milliseconds. SIGTERM raises KeyboardInterrupt in
the main thread, which sees it when the core returns, after 20 ms at most.
"""

from __future__ import annotations

import signal
import threading

from dpdl import _core


class Interrupts:
    """While open, SIGINT is counted, and SIGTERM ends a run of the main thread unless it has a handler of its own.

    With `guarded`, SIGINT reaches the runs of this process and no handler.
    """

    def __init__(self, guarded: bool = False) -> None:
        self._counter, self._terminates = _core.Interrupts(guarded), False

    def __enter__(self) -> Interrupts:
        self._counter.__enter__()
        main = threading.current_thread() is threading.main_thread()
        self._terminates = main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if self._terminates:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._terminates and signal.getsignal(signal.SIGTERM) is signal.default_int_handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._counter.__exit__(*exception)

    def came(self) -> bool:
        """Whether a SIGINT that this thread must handle arrived since the last call.

        In the main thread Python raises KeyboardInterrupt; a handler of the caller's, or SIG_IGN, decides for all
        threads.
        """
        main = threading.current_thread() is threading.main_thread()
        must_handle_here = not main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        return self._counter.came() and (self._counter.guarded or must_handle_here)

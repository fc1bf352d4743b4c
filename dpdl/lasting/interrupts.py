"""Ctrl-C: who has to react to it, and when.

Python delivers SIGINT to the main thread alone, between two bytecodes. `Interrupts` counts it on its way there, so that
a run in any thread, inside the compiled core, sees it within milliseconds.
"""

from __future__ import annotations

import signal
import threading

from dpdl._core import Interrupts

__all__ = ["Interrupts", "must_handle_sigint_here", "was_interrupted"]


def must_handle_sigint_here() -> bool:
    """Whether nobody else reacts to SIGINT in this thread: Python raises KeyboardInterrupt in the main thread only.

    Where SIGINT is ignored or has a handler of the caller's, that decides.
    """
    main = threading.current_thread() is threading.main_thread()
    return not main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def was_interrupted(interrupts: Interrupts) -> bool:
    """Whether a SIGINT came since the last look that this thread has to react to."""
    return interrupts.came() and (interrupts.guarded or must_handle_sigint_here())

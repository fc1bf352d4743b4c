"""Ctrl-C in any thread.

Python handles SIGINT in the main thread only, between two bytecodes. `Interrupts` counts the signals in the signal
handler, so that a run in any thread, inside the compiled core, sees them within milliseconds.
"""

from __future__ import annotations

import signal
import threading

from dpdl._core import Interrupts

__all__ = ["Interrupts", "must_handle_sigint_here", "was_interrupted"]


def must_handle_sigint_here() -> bool:
    """Whether this is not the main thread, the only one in which Python raises KeyboardInterrupt.

    False if SIGINT is ignored or has a handler of the caller's.
    """
    main = threading.current_thread() is threading.main_thread()
    return not main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def was_interrupted(interrupts: Interrupts) -> bool:
    """Whether a SIGINT that this thread must handle arrived since the last call."""
    return interrupts.came() and (interrupts.guarded or must_handle_sigint_here())

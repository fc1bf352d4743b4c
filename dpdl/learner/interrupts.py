"""Ctrl-C in any thread.

Python handles SIGINT in the main thread only, between two bytecodes. `Interrupts` counts the signals in the signal
handler, so that a run in any thread, inside the compiled core, sees them within milliseconds.
"""

from __future__ import annotations

import signal
import threading

from dpdl._core import Interrupts

__all__ = ["Interrupts", "was_interrupted"]


def was_interrupted(interrupts: Interrupts) -> bool:
    """Whether a SIGINT that this thread must handle arrived since the last call.

    In the main thread Python raises KeyboardInterrupt; a handler of the caller's, or SIG_IGN, decides for all threads.
    """
    main = threading.current_thread() is threading.main_thread()
    must_handle_here = not main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return interrupts.came() and (interrupts.guarded or must_handle_here)

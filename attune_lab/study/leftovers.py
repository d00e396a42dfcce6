"""What a tuner can leave behind in the process it ran in, where the next tuner would meet it."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

_TIMERS = ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")


def state_of_process() -> tuple[Any, ...]:
    """What the next tuner relies on: equal before and after a tuner that has cleaned up behind itself.

    Folder, environment, search path, signals, timers, threads, child processes, limits of Python and of numpy. What was
    patched in a module is not seen.
    """
    import numpy as np

    return (
        _folder(),
        dict(os.environ),
        [*sys.path],
        {number: signal.getsignal(number) for number in signal.valid_signals()},
        signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        [signal.getitimer(getattr(signal, name)) for name in _TIMERS],
        len(sys._current_frames()),  # threads that run Python; those of numerical libraries stay, and wait
        _has_children(),
        sys.getrecursionlimit(),
        _mask(),
        np.geterr(),
    )


def seed_global_numbers(seed: int) -> None:
    """Let the random numbers that a whole process shares begin anew, for tuners that draw from them."""
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)


def _folder() -> str | None:
    """The current folder, None where it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _has_children() -> bool:
    """Whether a process started from here runs, or was never waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _mask() -> int:
    """Permissions that new files lack; the system tells only whoever sets them."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask

"""Tuners that misbehave, registered for the tests of studies by their `conftest.py`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

from attune_lab.contracts import Proposal


class Once:
    """Proposes one sound recipe, then does `act`."""

    def __init__(self, task):
        self.task, self.asked = task, 0

    def ask(self):
        self.asked += 1
        if self.asked == 1:
            return Proposal(self.task.baseline.with_settings({"mbs": 2}), {"mbs": (1, 2)}, "twice as much at a time")
        return self.act()

    def tell(self, proposal, report):
        pass

    def act(self):
        return None


class Raises(Once):
    def act(self):
        raise RuntimeError("no idea")


class Leaves(Once):
    def act(self):
        sys.exit(0)


class Exits(Once):
    def act(self):
        os._exit(3)


class Crashes(Once):
    def act(self):
        os.kill(os.getpid(), signal.SIGSEGV)


class Eats(Once):
    def act(self):
        hoard = []
        while True:
            hoard.append(bytearray(2**28))


class Nonsense(Once):
    def act(self):
        return 42


class Invalid(Once):
    """Another recipe that cannot start, for ever."""

    def act(self):
        return Proposal(self.task.baseline.with_settings({"tp": 1000 + self.asked}))


class Sleeps(Once):
    def act(self):
        time.sleep(10_000)


class Holds(Once):
    """Hangs in foreign code that does not let Python run."""

    def act(self):
        ctypes.PyDLL(None).sleep(10_000)


class Forks(Once):
    """Hangs, and leaves a process of its own that holds what it holds."""

    def act(self):
        if os.fork() == 0:
            time.sleep(10_000)
        time.sleep(10_000)


class SleepsAtOnce:
    def __init__(self, task):
        time.sleep(10_000)


class Chatty(Once):
    """Prints, and reads what is not meant for it."""

    def act(self):
        print("hello")
        os.system("echo from outside")
        assert sys.stdin.read() == ""


class Refuses:
    """Says of its options that they do not do."""

    def __init__(self, task):
        from attune_lab.contracts import UserError

        raise UserError("option depth: none is known")


NAMES = {
    name.lower(): name
    for name, kind in list(globals().items())
    if isinstance(kind, type) and kind.__module__ == __name__
}

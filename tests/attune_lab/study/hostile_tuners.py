"""Tuners that misbehave, registered for the tests of studies by their `conftest.py`."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np

from attune_lab.contracts import Proposal
from attune_lab.recipe import Recipe


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


class Mutters(Once):
    """Raises what cannot be printed, stored or read."""

    def act(self):
        class Unreadable(Exception):
            def __str__(self):
                raise ValueError("no words")

        raise Unreadable


class Floods(Once):
    """Raises a flood, with characters that no file can hold."""

    def act(self):
        raise RuntimeError("\ud800 <b>" + "x" * 10_000_000)


class Prattles(Once):
    """Prints more than a disk should hold."""

    def act(self):
        while True:
            print("x" * 2**24)


class Overflows(Once):
    def act(self):
        return Proposal(self.task.baseline.with_settings({"mbs": 4}), predicted={"gain": 10**400})


class Anonymous(Recipe):
    """A recipe that looks new every time."""

    @property
    def digest(self):
        return os.urandom(32).hex()


class Forges(Once):
    """Proposes one recipe for ever under forged digests."""

    def act(self):
        known = self.task.baseline.with_settings({"mbs": 2})
        if self.asked % 2:
            return Proposal(Anonymous(known.stack, known.settings, known.environment, known.carried, known.versions))
        known.__dict__["digest"] = "0" * 64
        return Proposal(known)


class Plants(Once):
    """Leaves a thread that ends the process a moment later, under whoever runs then."""

    def act(self):
        threading.Timer(0.3, os._exit, [7]).start()


class Litters(Once):
    """Leaves everything that a process shares in disorder."""

    def act(self):
        for number in (signal.SIGALRM, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        sys.path.clear()
        os.environ.clear()
        os.chdir("/")
        os.umask(0o777)
        subprocess.Popen(["sleep", "1000"])


class Dices:
    """Draws from the random numbers that a process shares."""

    def __init__(self, task):
        self.task, self.left = task, 6

    def ask(self):
        self.left -= 1
        mbs = random.choice([1, 2, 4, 8]) * int(np.random.choice([1, 2]))
        return (
            Proposal(self.task.baseline.with_settings({"mbs": mbs}), reason=f"{random.random()}") if self.left else None
        )

    def tell(self, proposal, report):
        pass


class Abandons(Once):
    """Ends its process, and leaves one that holds what it held."""

    def act(self):
        if os.fork() == 0:
            time.sleep(10_000)
        os._exit(3)


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

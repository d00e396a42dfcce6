"""Where jobs are done: child processes that are leased, watched, and ended when they do not answer."""

from __future__ import annotations

import atexit
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from attune_lab.contracts import EnvironmentFault
from attune_lab.study.child import DONE, FAULT, SPENT
from attune_lab.study.jobs import Death, Job

_ONE_THREAD = {
    name: "1"
    for name in (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
    )
}
"""Workers share the cores; two of them with a thread a core each would be slower than one."""

_AS_SKLEARN = {"KMP_DUPLICATE_LIB_OK": "True", "KMP_INIT_AT_FORK": "FALSE"}
"""What scikit-learn sets when it is imported: set before, a child that imported it is as it was, and is used again."""


_LAST_WORDS_S = 10
_LOOK_S = 1.0
"""Seconds between two looks whether a silent child is alive."""


def run_job(job: Job) -> None:
    """Do a job in a child process of this one; when it returns, the job's record is there.

    This is what an engine sends to its workers. When the child hangs or dies, another one does what is left.
    """
    left: Job | None = job
    while left is not None:
        with _POOL.lease() as child:
            death = child.do(left)
        if child.stopped:
            return
        left = None if death is None else left.after(death)


def end_children() -> None:
    """End the children of this process; jobs under way stay as they are, for the next start of the study."""
    _POOL.close()


class _Child:
    """One child process (`attune_lab.study.child`) in a process group of its own.

    Attributes:
        stopped: it was killed with the study, not by its job.
    """

    def __init__(self) -> None:
        self.stopped = False
        path = os.pathsep.join(folder for folder in sys.path if folder)  # it finds the packages that this process finds
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-u", "-m", "attune_lab.study.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**_AS_SKLEARN, **os.environ, **_ONE_THREAD, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def do(self, job: Job) -> Death | None:
        """Do a job; how the process died when it did not get to its end.

        Raises:
            EnvironmentFault: the job could leave no record.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died; so says its answer
            self._process.stdin.write(pickle.dumps(job))
            self._process.stdin.flush()
        answer = self._answer(job.time_limit_s)
        if answer in (DONE, SPENT):
            if answer == SPENT:
                self.kill()
            return None
        if answer is None:
            self.kill()
            return Death("hung", f"the campaign was not over after {job.time_limit_s:g} s, and its tuner was ended")
        if answer.startswith(FAULT):
            raise EnvironmentFault(answer.removeprefix(FAULT).decode(errors="replace").strip())
        with suppress(subprocess.TimeoutExpired):  # it closed its end; how it ends is known a moment later
            self._process.wait(_LAST_WORDS_S)
        return Death("died", f"the tuner's process died ({_cause(self.kill())})")

    def _answer(self, limit_s: float) -> bytes | None:
        """What the child says, empty when it died, None when it says nothing in time."""
        assert self._process.stdout is not None
        source, heard = self._process.stdout.fileno(), b""
        deadline = time.monotonic() + limit_s
        while not heard.endswith(b"\n"):
            left_s = deadline - time.monotonic()
            dead = not self.alive  # asked before looking, so that no last word is missed
            if not select.select([source], [], [], 0 if dead else min(max(left_s, 0), _LOOK_S))[0]:
                if dead:  # and what it started holds its end of the pipe
                    return b""
                if left_s <= 0:
                    return None
                continue
            part = os.read(source, 64)
            if not part:
                return b""
            heard += part
        return heard

    def kill(self) -> int:
        """Kill the process with all that it started, and return how it ended."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def close(self) -> None:
        """Close the pipes to a process that has ended."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # what it was not told any more
                pipe.close()


class _Pool:
    """The children of this process: as many as it has jobs at a time, kept for the next ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()

    @contextmanager
    def lease(self) -> Iterator[_Child]:
        """A child for one job; one that died, or was left in the middle of a job, is not used again."""
        with self._lock:
            child = self._idle.pop() if self._idle else _Child()
            self._busy.add(child)
        try:
            yield child
        except BaseException:
            child.kill()
            raise
        finally:
            with self._lock:
                self._busy.discard(child)
                if child.alive:
                    self._idle.append(child)
                else:
                    child.close()

    def close(self) -> None:
        """Kill all children; whoever waits for one of them learns that it was stopped."""
        with self._lock:
            for child in (*self._idle, *self._busy):
                child.stopped = True
                child.kill()
            self._idle.clear()


def _cause(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


_POOL = _Pool()
atexit.register(end_children)

"""What PyTorch's workers do besides loading: they are told apart from dead ones, and their failures always arrive."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker

from poptorch import launchers
from poptorch._logging import logger

STOPPED_S = 60.0
"""How long a process that loads data may be halted while it is waited for."""

LOOK_S = 2.0
"""How often one looks while there is no data."""

_STATES = {"R": "running", "S": "waiting for something", "D": "waiting for a disk or the network", "T": "stopped"}
_STATES |= {"t": "stopped by a debugger", "Z": "dead", "X": "dead", "": "gone"}

_STOPPED = ("T",)  # a debugger is patient


def describe(pids: Iterable[int | None]) -> str:
    """What processes do at this moment.

    >>> import os
    >>> describe([os.getpid()]).endswith("is running")
    True
    """
    found = [(pid, launchers.state_of(pid)) for pid in pids if pid is not None]
    return ", ".join(f"process {pid} is {_STATES.get(state, state)}" for pid, state in found)


def kill_stopped(pids: Iterable[int | None]) -> None:
    """End those that are halted; children of this process."""
    for pid in pids:
        if pid is not None and launchers.state_of(pid) in _STOPPED:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class StoppedWatch:
    """Looks after processes while nothing comes from them: one that is halted sends nothing, and does not end."""

    def __init__(self, limit_s: float = 0.0) -> None:
        self._limit_s = min(limit_s or STOPPED_S, STOPPED_S)
        self._since: float | None = None

    def problem(self, pids: Iterable[int | None]) -> str:
        """What is wrong, when some have been halted for too long; before that, a warning says so."""
        stopped = [pid for pid in pids if pid is not None and launchers.state_of(pid) in _STOPPED]
        now = time.monotonic()
        if not stopped:
            self._since = None
        elif self._since is None:
            self._since = now
            logger.warning(
                "No data comes: %s. 'kill -CONT %d' lets it go on; after %g s the loader ends it.",
                describe(stopped), stopped[0], self._limit_s,
            )  # fmt: skip
        elif now - self._since > self._limit_s:
            return (
                f"No data has come from a process that loads it for more than {self._limit_s:g} s: "
                f"{describe(stopped)}. It was halted by a signal (SIGSTOP), and has been ended."
            )
        return ""


class WorkerWatch:
    """Ends workers that are halted while their data is waited for; another thread looks now and then.

    The consumer may be in the middle of reading what such a worker has begun to write. Their end wakes it up.
    """

    def __init__(self, limit_s: float) -> None:
        self._stopped = StoppedWatch(limit_s)
        self.pids: Sequence[int | None] = ()
        """The workers."""

        self.waits = False
        """Whether the consumer waits."""

        self.problem = ""
        """Why workers were ended."""

        _watch(self)

    def look(self) -> None:
        """Look after the workers."""
        if self.waits:
            self.problem = self.problem or self._stopped.problem(self.pids)
            if self.problem:
                kill_stopped(self.pids)


_watched: weakref.WeakSet[WorkerWatch] = weakref.WeakSet()
_guard = threading.Lock()
_thread: threading.Thread | None = None


def _watch(watch: WorkerWatch) -> None:
    global _thread
    with _guard:
        _watched.add(watch)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_look_now_and_then, name="poptorch-worker-watch", daemon=True)
            _thread.start()


def _look_now_and_then() -> None:
    global _thread
    while True:
        time.sleep(LOOK_S)
        with _guard:
            if not _watched:
                _thread = None
                return
        _look_at_all()


def _look_at_all() -> None:
    for watch in list(_watched):
        watch.look()


def _forget() -> None:
    global _guard, _thread
    _guard, _thread = threading.Lock(), None
    _watched.clear()


os.register_at_fork(after_in_child=_forget)


class Failure(ExceptionWrapper):
    """What a worker raised. Types that other processes cannot have, such as those of functions, become errors with the
    same text: torch's queue would drop them, and the consumer would wait for ever.
    """

    def __init__(self, exc_info: Any = None, where: str = "in background") -> None:
        super().__init__(exc_info, where)
        try:
            pickle.loads(ForkingPickler.dumps(self.exc_type))
        except Exception:  # noqa: BLE001  pickling runs code of the user
            self.exc_type = RuntimeError


class WorkerStart:
    """What workers call first: the user's own function, if there is one, after their failures are taken care of."""

    def __init__(self, function: Callable[[int], None] | None) -> None:
        self._function = function

    def __call__(self, number: int) -> None:
        # In the worker's process only.
        worker.ExceptionWrapper = Failure  # type: ignore[attr-defined]
        if self._function is not None:
            self._function(number)

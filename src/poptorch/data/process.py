"""The consumer's handle on the background process: start it, listen to it, end it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import select
import signal
import time
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import recv_handle
from multiprocessing.util import Finalize
from typing import Any

import torch

from poptorch import arg_parsers
from poptorch._logging import logger
from poptorch.data import background
from poptorch.data.line import Line
from poptorch.data.messages import Settings, Stop
from poptorch.data.parcel import Parcel
from poptorch.data.shared_segments import members_of_group, remove_segments
from poptorch.data.workers import StoppedWatch, describe
from poptorch.enums import SharingStrategy
from poptorch.errors import LoaderStartError, misuse

START_METHODS = {
    SharingStrategy.SharedMemory: "spawn",
    SharingStrategy.FileSystem: "spawn",
    SharingStrategy.Fork: "fork",
    SharingStrategy.ForkServer: "forkserver",
}
PATIENT_S = 10.0
"""How long an explicit ``terminate()`` waits for the item being loaded, and again after the interrupt."""
BRISK_S = 0.2
"""The same when nobody is left who could use the data: at exit, for a dropped object."""
AT_ONCE_S = 0.0
"""The same after Ctrl-C, and for a process that is stuck."""

_LIVENESS_CHECK_S = 0.5
_PRELOADED = ["__main__", "poptorch.data.preload"]
_INTERRUPTED_S = 0.5
"""How long an interrupted process has at least before it is killed: it ends its workers meanwhile."""
_KILLED_S = 0.5
_STARVATION_WARNING_S = 60.0


class ProcessDied(Exception):
    """The background process ended without saying why."""


class DataTimeout(Exception):
    """The background process sent nothing for too long."""


class BackgroundProcess:
    """A running background process; ``stop`` or dropping the object ends it and its workers."""

    def __init__(self, dataset: Any, settings: Settings, strategy: SharingStrategy) -> None:
        method = START_METHODS[strategy]
        context = multiprocessing.get_context(method)
        ours, theirs = multiprocessing.Pipe(duplex=True)
        their_lifeline, our_lifeline = multiprocessing.Pipe(duplex=False)
        parcel = Parcel(
            (dataset, [] if method == "fork" else _picklable_parsers()),
            on_disk=strategy == SharingStrategy.FileSystem,
        )
        inherited = (ours, our_lifeline) if method == "fork" else ()
        process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=background.serve,
            args=(parcel, settings, theirs, their_lifeline, inherited),
            name="poptorch data loader",
            daemon=False,  # daemons may not have PyTorch's workers as children
        )
        try:
            _start(process, method)
        except BaseException:
            ours.close()
            our_lifeline.close()
            raise
        finally:
            parcel.close()
            theirs.close()
            their_lifeline.close()
        self.pid = process.pid
        self._process = process
        self._line = Line(ours)
        self._line_number = ours.fileno()
        self._poller = select.poll()
        self._poller.register(ours.fileno(), select.POLLIN)
        self._poller.register(process.sentinel, select.POLLIN)
        # Runs when this object goes away and, before multiprocessing waits for its children, at exit.
        self._resources = (process, ours, our_lifeline)
        self._finalizer = Finalize(self, _end_process, args=self._resources, exitpriority=10)

    # --- talking -------------------------------------------------------------------------------------------

    def send(self, command: object) -> None:
        """Tell the process something; one that is gone is noticed by the next ``receive``."""
        with contextlib.suppress(OSError):
            self._line.send(command)

    def pending(self) -> bool:
        """Whether ``receive`` would return at once."""
        return self._line.pending()

    def receive(self, timeout_s: float | None = None) -> Any:
        """The next message, or :class:`ProcessDied`, or :class:`DataTimeout` after ``timeout_s``."""
        started = time.monotonic()
        warn_at = started + _STARVATION_WARNING_S
        stopped = StoppedWatch()
        while True:
            wait_s = _LIVENESS_CHECK_S
            if timeout_s is not None:
                wait_s = min(wait_s, started + timeout_s - time.monotonic())
            ready = self._poller.poll(max(0.0, wait_s) * 1000)
            if any(descriptor == self._line_number for descriptor, _ in ready):
                return self._take()
            # Workers of a killed process may hold its sentinel open: so do not trust the sentinel alone.
            if (ready or not self._process.is_alive()) and not self.pending():
                raise ProcessDied(self._how_it_ended())
            now = time.monotonic()
            if timeout_s is not None and now - started >= timeout_s:
                raise DataTimeout
            if problem := stopped.problem([self.pid]):
                raise ProcessDied(problem)
            if now >= warn_at:
                warn_at = now + _STARVATION_WARNING_S
                logger.warning(
                    "Still waiting for data from the background process after %.0f s: %s. If the data set "
                    "may hang, "
                    "give a deadline: timeout=<seconds>.",
                    now - started, describe([self.pid]),
                )  # fmt: skip

    def _take(self) -> Any:
        try:
            return self._line.receive()
        except (EOFError, ConnectionResetError):
            raise ProcessDied(self._how_it_ended()) from None

    def receive_descriptor(self) -> int:
        """The file descriptor that follows the message just received."""
        return recv_handle(self._line.connection)

    # --- ending --------------------------------------------------------------------------------------------

    def is_alive(self) -> bool:
        """Whether the process is still running."""
        return bool(self._process.is_alive())

    def kill(self) -> None:
        """End the process without asking, for one that may still be importing and listens to nobody; then ``stop``."""
        self._process.kill()

    def stop(self, patience_s: float = PATIENT_S) -> None:
        """Ask, interrupt after ``patience_s``, kill when that does not help; returns when the process is gone."""
        if self._finalizer.still_active():
            self._finalizer.cancel()
            _end_process(*self._resources, patience_s=patience_s)

    def _how_it_ended(self) -> str:
        self._process.join(1.0)
        code = self._process.exitcode
        if code is None:
            return f"the background process {self.pid} closed its connection"
        if code < 0:
            return f"the background process {self.pid} was killed by {_signal_name(-code)}"
        if code == 0:
            return f"the background process {self.pid} was interrupted"
        return f"the background process {self.pid} exited with code {code}"


def _start(process: BaseProcess, method: str) -> None:
    if method != "fork":
        resource_tracker.ensure_running()  # first: starting it lets interrupts through again
    try:
        if method == "forkserver":
            _start_by_server(process)
        else:
            with _interrupts_held_back():
                process.start()
    except (EOFError, ConnectionError) as error:
        raise misuse(
            LoaderStartError,
            "AsynchronousDataAccessor worker thread failed to start: the fork server ended early. Does the "
            "script "
            'create the loader outside of `if __name__ == "__main__":`?',
        ) from error
    except Exception as error:
        raise misuse(
            LoaderStartError,
            f"AsynchronousDataAccessor worker thread failed to start: {type(error).__name__}: {error}\n"
            "The data set must be picklable to reach the background process. Define its class and "
            "functions at the "
            "top level of a module (no lambdas, open files or generators), or pass "
            "sharing_strategy=poptorch.SharingStrategy.Fork, which needs no pickling.",
        ) from error


def _start_by_server(process: BaseProcess) -> None:
    server: Any = forkserver._forkserver
    before = getattr(server, "_forkserver_pid", None)
    if _preload_forkserver(server):
        with _interrupts_held_back():  # until the imports are done; see poptorch.data.preload
            forkserver.ensure_running()
    try:
        process.start()
    except KeyboardInterrupt:
        started = getattr(server, "_forkserver_pid", None)
        if started not in (None, before):  # it is importing torch, which takes seconds, and nobody needs it now
            with contextlib.suppress(ProcessLookupError):
                os.kill(started, signal.SIGKILL)
            server._stop()
        raise


def _preload_forkserver(server: Any) -> bool:
    """Import this package once in the fork server, not in every process it forks: saves seconds per start.

    Returns whether the server will do so: it does not when the user has chosen what to load, or started it already.
    """
    if getattr(server, "_preload_modules", None) == ["__main__"]:
        forkserver.set_forkserver_preload(_PRELOADED)
    return getattr(server, "_preload_modules", None) == _PRELOADED and server._forkserver_pid is None


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Start processes that ignore Ctrl-C until they can end without a word, rather than in the middle of an import."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _picklable_parsers() -> list[tuple[str, bytes]]:
    """The user's parsers, each with the library of its values: they may be registered in code that the new process
    does not run. Pickled one by one, so that nothing is imported for values that the data set does not have."""
    found = []
    for value_type, parser in arg_parsers._parsers.items():
        try:
            found.append((value_type.__module__.partition(".")[0], pickle.dumps((value_type, parser))))
        except Exception as error:  # noqa: BLE001 - pickling runs user code
            logger.debug("The parser for %s stays in this process: %s", value_type.__name__, error)
    return found


# --- ending a process --------------------------------------------------------------------------------------


def _end_process(
    process: BaseProcess, connection: Connection, lifeline: Connection, patience_s: float = BRISK_S
) -> None:
    try:
        with contextlib.suppress(OSError):
            Line(connection).send(Stop())
        process.join(patience_s)
        if process.is_alive():
            _interrupt(process, lifeline)
            process.join(max(patience_s, _INTERRUPTED_S))
        if process.is_alive():
            process.kill()
            process.join(PATIENT_S)
        _kill_group(process.pid)  # workers that outlived a process which was killed
    finally:
        connection.close()
        lifeline.close()
        with contextlib.suppress(ValueError):  # still running: not even SIGKILL ended it in time
            process.close()


def _interrupt(process: BaseProcess, lifeline: Connection) -> None:
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)
    with contextlib.suppress(OSError):
        lifeline.send_bytes(b"end")  # heard by a thread, even while the main thread is stuck


def _kill_group(leader: int | None) -> None:
    if leader is None or leader == os.getpgrp():
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, 0)  # the usual case ends here: the group is gone
        members = members_of_group(leader)
        os.killpg(leader, signal.SIGKILL)
        end = time.monotonic() + _KILLED_S
        while members_of_group(leader) and time.monotonic() < end:
            time.sleep(0.01)
        remove_segments([leader, *members])


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def random_state() -> tuple[bytes, int]:
    """The state of torch's generator, and a seed drawn from it so that the next loader differs."""
    state = torch.get_rng_state().numpy().tobytes()
    return state, int(torch.empty((), dtype=torch.int64).random_().item())

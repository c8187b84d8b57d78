"""Native code that is compiled in a process beside the program.

The process is a fork: it has the program as it is, and none of its time. It works at low priority, and sends what it
made through a pipe, as data, in the form in which native code is stored. The program takes it at the call that the
program itself fixes (:mod:`poptorch.executor.level_change`). Whatever goes wrong here, that call compiles.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any

import torch

from poptorch._logging import logger
from poptorch.compiler.device_program import DeviceProgram
from poptorch.executable.host_code import HostCode
from poptorch.host.native.building import native_code
from poptorch.host.store.code_store import CodeStore, StoredCode
from poptorch.options.progress import Progress

NICENESS = 5
"""A third of what a thread of the program gets, where both want the same core."""

LONGEST_WAIT = 120.0
"""Seconds without a word after which nothing is expected any more."""

_WATCH_SECONDS = 0.5


class Handed:
    """Native code that another process has made, as a place where it is found."""

    def __init__(self, entries: dict[str, StoredCode]) -> None:
        self._entries = entries

    def find(self, key: str) -> StoredCode | None:
        return self._entries.get(key)

    def keep(self, key: str, stored: StoredCode) -> None:
        """It is here already."""

    def finish(self) -> None:
        """Nothing to be done."""

    def __str__(self) -> str:
        return "the process that compiled beside the program"


class _Telling(Progress):
    """Sends how far a compilation is."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._bar = None
        self._begun = 0
        self._total = 0

    def _show(self, done: int, stage: str) -> None:
        self._connection.send(("at", f"{stage} ({done} of {self._total} done)"))


class Background:
    """One compilation in a process of its own."""

    def __init__(self, process: ForkProcess, connection: Connection) -> None:
        self._process = process
        self._connection = connection
        self.began = time.monotonic()
        self.at = "the beginning"
        """How far it is, as far as it was heard."""

        self._result: dict[str, StoredCode] | None = None
        self._over = False

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to wait for."""
        self._hear(0.0)
        return self._over

    def take(self) -> dict[str, StoredCode] | None:
        """What was made, waited for; ``None`` if nothing was."""
        last, heard = time.monotonic(), self.at
        while not self._over and time.monotonic() - last < LONGEST_WAIT:
            self._hear(1.0)
            if self.at != heard:
                last, heard = time.monotonic(), self.at
        self.close()
        return self._result

    def _hear(self, timeout: float) -> None:
        try:
            while not self._over and self._connection.poll(timeout):
                kind, content = self._connection.recv()
                timeout = 0.0
                if kind == "at":
                    self.at = content
                    continue
                self._over = True
                if kind == "made":
                    self._result = content
                else:
                    logger.debug("Compiling beside the program failed: %s", content)
        except (EOFError, OSError) as problem:
            self._over = True
            logger.debug("The process that compiled beside the program has ended: %s", problem)

    def close(self) -> None:
        """End the process, if it still runs."""
        self._over = True
        self._connection.close()
        if self._process.is_alive():
            self._process.kill()  # it has nothing to tidy up, and a lock that was held at the fork may hold it for ever
        self._process.join()


def begin(device: DeviceProgram, code: HostCode) -> Background | None:
    """Compile beside the program; ``None`` where there can be no such process."""
    if sys.platform != "linux":
        return None
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    threads = torch.get_num_threads()
    process = context.Process(
        target=_run, args=(device, code, threads, os.getpid(), theirs), name="poptorch-compiler", daemon=True
    )
    try:
        with warnings.catch_warnings():  # of threads, which this process does without
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
    except (OSError, AssertionError) as problem:  # no memory, or this process is itself one that may have none
        logger.debug("Nothing is compiled beside the program: %s", problem)
        ours.close()
        return None
    finally:
        theirs.close()
    logger.info("Compiling native code beside the program, in process %d", process.pid)
    return Background(process, ours)


# -- in the other process ------------------------------------------------------------------------------------------


def _run(device: DeviceProgram, code: HostCode, threads: int, parent: int, connection: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the program's own handlers are not for this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _without_files(connection.fileno())
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # the program's own words are the only ones
        os.dup2(silent, stream)
    logger.setLevel("CRITICAL")
    os.nice(NICENESS)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _without_threads(threads)
    try:
        store = CodeStore()
        native_code(device, code, store, _Telling(connection))
        connection.send(("made", store.known))
    except BaseException as problem:  # noqa: BLE001  told, and met again where it is compiled in the program
        with contextlib.suppress(OSError):
            connection.send(("failed", f"{type(problem).__name__}: {problem}"))
    finally:
        connection.close()


def _without_files(kept: int) -> None:
    """Close what the program has open: whoever waits for the end of a pipe must not wait for this process, too."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2 and number != kept:
            with contextlib.suppress(OSError):  # such as the folder that was listed
                os.close(number)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)


def _without_threads(threads: int) -> None:
    """Threads of the program are not here: neither those of operations, nor those that wait for compilers.

    What is compiled is still for as many as the program has.
    """
    torch.set_num_threads(1)
    torch.get_num_threads = lambda: threads
    known: Any = sys.modules.get("torch._inductor.async_compile")
    if known is not None:
        known.AsyncCompile.pool.cache_clear()

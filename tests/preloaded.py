"""Programs in Python that start with torch imported: a process that has done so forks them.

Importing torch takes most of the time of a small program. ``run(["-c", code])`` and ``start(["file.py", "argument"])``
take what would follow ``python`` on the command line. A program has its own ``__main__``, arguments, environment,
working directory and output, imports poptorch itself, and ends as the interpreter ends programs. Tests of what happens
*before* that start interpreters instead: variables that Python or torch read when they start have no effect here.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

LONGEST_REQUEST = 1 << 17
"""Bytes; the system's own limit for one message is a little higher."""


class Process:
    """A program that was forked. What it writes goes to files, so it never waits for a reader."""

    def __init__(self, answers: IO[str], output: IO[bytes], errors: IO[bytes]) -> None:
        self._answers, self._files = answers, (output, errors)
        self.pid = int(answers.readline())
        self.returncode: int | None = None
        self._written: list[str] = []

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or ``None`` while the program runs."""
        return self._wait(0)

    def _wait(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as ready:
                ready.register(self._answers, selectors.EVENT_READ)
                if ready.select(seconds):
                    self.returncode = int(self._answers.readline())
                    self._answers.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; returns what the program wrote."""
        if self._wait(timeout) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        while len(self._written) < len(self._files):
            with self._files[len(self._written)] as file:
                file.seek(0)
                self._written.append(file.read().decode(errors="replace"))
        return self._written[0], self._written[1]

    def kill(self) -> None:
        """End the program, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def start(
    arguments: Sequence[str | Path],
    *,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    together: bool = False,
) -> Process:
    """Start a program. ``together``: errors go where the output goes."""
    request = {
        "arguments": [str(argument) for argument in arguments],
        "cwd": str(cwd or os.getcwd()),
        "env": dict(os.environ if env is None else env),
    }
    message = json.dumps(request).encode()
    assert len(message) <= LONGEST_REQUEST, "a program of this size belongs into a file"
    output, errors = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - the process closes them
    read, write = os.pipe()
    try:
        written = (output.fileno(), output.fileno() if together else errors.fileno(), write)
        socket.send_fds(_server(), [message], written)
    finally:
        os.close(write)
    return Process(open(read), output, errors)


def run(
    arguments: Sequence[str | Path], *, timeout: float = 110, check: bool = False, **settings: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as ``subprocess.run`` does with ``capture_output`` and ``text``."""
    process = start(arguments, **settings)
    try:
        output, errors = process.communicate(timeout)
    finally:
        process.kill()
    assert process.returncode is not None
    done = subprocess.CompletedProcess([*map(str, arguments)], process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


@functools.cache
def _server() -> socket.socket:
    """The way to the process that forks, which ends when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


# -- the other side --------------------------------------------------------------------------------------------------


def _serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for every request. Returns in the forked processes alone: with their request and their descriptors."""
    running: dict[int, tuple[int, int]] = {}  # what tells of the end of a process: the process, where to say so
    ready = selectors.DefaultSelector()
    ready.register(channel, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fd in running:
                pid, answers = running.pop(key.fd)
                ready.unregister(key.fd)
                os.close(key.fd)
                _answer(answers, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(answers)
                continue
            message, descriptors, _, _ = socket.recv_fds(channel, LONGEST_REQUEST, 3)
            if not message:
                sys.exit()
            pid = os.fork()
            if not pid:
                ready.close()
                channel.close()
                for end, (_, answers) in running.items():
                    os.close(end)
                    os.close(answers)
                return json.loads(message), descriptors
            *written, answers = descriptors
            for descriptor in written:
                os.close(descriptor)
            _answer(answers, pid)
            end = os.pidfd_open(pid)
            running[end] = pid, answers
            ready.register(end, selectors.EVENT_READ)


def _answer(answers: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the test did not wait for it
        os.write(answers, b"%d\n" % number)


def _become(request: dict[str, Any], descriptors: list[int]) -> tuple[types.CodeType, dict[str, Any]]:
    """Make this process the one that was asked for; returns its code and its global names."""
    output, errors, answers = descriptors
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for descriptor in {output, errors, answers}:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    main = types.ModuleType("__main__")
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if request["arguments"][0] == "-c":
        _, source, *arguments = request["arguments"]
        name, beside = "-c", ""
        code = compile(source, "<string>", "exec", dont_inherit=True)
    else:
        name, *arguments = request["arguments"]
        beside = str(Path(name).resolve().parent)
        main.__file__ = name
        code = compile(Path(name).read_bytes(), name, "exec", dont_inherit=True)
    sys.argv = [name, *arguments]
    sys.orig_argv = [sys.executable, *request["arguments"]]
    sys.path[:] = [beside, *path, *(entry for entry in sys.path[1:] if entry not in path)]
    sys.modules["__main__"] = main
    return code, main.__dict__


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401 - with all that optimizers of torch import when one is made

    gc.collect()
    gc.freeze()  # what is shared with forked processes stays as it is
    # Not in a function: what the program leaves to the interpreter, exceptions and exit codes, goes there from here.
    _code, _names = _become(*_serve(socket.socket(fileno=int(sys.argv[1]))))
    exec(_code, _names)

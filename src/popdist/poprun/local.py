"""Starting the instances of one host, on torch's elastic launcher."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import (
    LogsDest,
    LogsSpecs,
    RunProcsResult,
    SignalException,
    SubprocessContext,
)

from popdist.poprun.job import wrapped
from popdist.poprun.log import Log
from popdist.poprun.output import Outputs

GRACE_SECONDS = 5
"""How long instances may take to end by themselves after one of them has failed: they say in which step, and why."""

KILL_SECONDS = 10
"""How long an instance that was told to end may take to do so."""

_POLL_SECONDS = 0.1
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class _Pipes(LogsSpecs):
    """Where instances write to: the pipes of :class:`Outputs`."""

    def __init__(self, outputs: Outputs) -> None:
        super().__init__()
        self._outputs = outputs

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """The file names of each instance's streams."""
        return LogsDest(
            stdouts={place: self._outputs.path(place, "stdout") for place in envs},
            stderrs={place: self._outputs.path(place, "stderr") for place in envs},
            error_files=dict.fromkeys(envs, os.devnull),
        )

    @property
    def root_log_dir(self) -> str:
        """No folder is used."""
        return os.devnull


class _Instances(SubprocessContext):
    """The running instances. When one fails, the others get some time to say so before they are ended."""

    def __init__(
        self, program: Sequence[str], variables: Mapping[int, Mapping[str, str]], outputs: Outputs, numa: bool
    ) -> None:
        commands = {
            place: wrapped(program, parent=os.getpid(), node=place if numa else None, reads=place == 0)[1:]
            for place in variables
        }
        super().__init__(
            "poprun",
            sys.executable,
            commands,
            {place: dict(values) for place, values in variables.items()},
            _Pipes(outputs),
        )

    def close(self, death_sig: signal.Signals | None = None, timeout: int = KILL_SECONDS) -> None:
        """End all instances, and what they have started."""
        if death_sig is None:
            self._await_all(GRACE_SECONDS)
        super().close(death_sig, min(timeout, KILL_SECONDS))
        ended = [handler.proc for handler in self.subprocess_handlers.values()]
        if any(process.returncode != 0 for process in ended):
            for process in ended:
                _kill_group(process.pid)

    def _await_all(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        running = [handler.proc for handler in self.subprocess_handlers.values()]
        while time.monotonic() < deadline and any(process.poll() is None for process in running):
            time.sleep(_POLL_SECONDS)


def run(
    program: Sequence[str], variables: Mapping[int, Mapping[str, str]], outputs: Outputs, log: Log, *, numa: bool
) -> int:
    """Run the program once for each set of variables; returns the exit code of the first instance that failed, or 0."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # our own messages say it
    instances = _Instances(program, variables, outputs, numa and len(variables) > 1)
    before = {number: signal.getsignal(number) for number in _HANDLED}  # torch replaces them
    try:
        instances.start()
        for place, pid in instances.pids().items():
            log.debug(f"Instance {place} is process {pid}")
        result = instances.wait(period=_POLL_SECONDS)
    except SignalException as stopped:
        return _interrupted(instances, stopped.sigval, log)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        outputs.close()
    return _exit_code(result, log)


def _interrupted(instances: _Instances, number: signal.Signals, log: Log) -> int:
    """Pass a signal on to all instances; a second one ends them at once."""
    log.info(f"Got {number.name}: passing it on to all instances")
    try:
        instances.close(number)
    except SignalException:
        instances.close(signal.SIGKILL)
    return 128 + number


def _exit_code(result: RunProcsResult | None, log: Log) -> int:
    if result is None or not result.is_failed():
        return 0
    first = min(result.failures.values(), key=lambda failure: failure.timestamp)
    if first.exitcode < 0:
        log.error(f"Instance {first.local_rank} (process {first.pid}) was ended by {_signal_name(-first.exitcode)}")
        return 128 - first.exitcode
    log.error(f"Instance {first.local_rank} (process {first.pid}) ended with exit code {first.exitcode}")
    return first.exitcode


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _kill_group(pid: int) -> None:
    """End what an instance has left: each instance leads a group of processes."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def output_folder(arguments: Sequence[str]) -> Path | None:
    """The folder of ``--output-filename`` among the arguments for ``mpirun``, which this launcher understands, too."""
    for place, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name.lstrip("-") == "output-filename":
            return Path(value if equals else arguments[place + 1])
    return None

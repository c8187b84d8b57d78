"""Starting a program as the processes of one job, as a launcher does, and waiting for their ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import preloaded

TESTS = Path(__file__).resolve().parent
PATIENCE = 280.0
"""Seconds; a machine that is busy needs ten times as long as a quiet one."""


@dataclass(frozen=True)
class Ended:
    """What one process left."""

    code: int | None
    """``None``: it did not end by itself."""

    output: str


class Job:
    """Processes that run the same program. In a ``with`` block, none outlives it."""

    def __init__(
        self,
        program: Path | str,
        processes: int,
        *arguments: str,
        variables: Mapping[str, str] | Sequence[Mapping[str, str]] = (),
        seconds: int = 60,
        prefixes: Sequence[Sequence[str]] = (),
    ) -> None:
        """``variables`` are for all processes or for each, ``prefixes`` are commands that start a command."""
        path = os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
        common = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "POPTORCH_CODEGEN": "interpret"}
        common["POPTORCH_DISTRIBUTED_TIMEOUT"] = str(seconds)
        own = [variables] * processes if isinstance(variables, Mapping) else variables or [{}] * processes
        command = [str(processes), *arguments]
        environments = [{**os.environ, **common, **own[rank]} for rank in range(processes)]
        self.processes = [
            _started(prefixes[rank], [program, str(rank), *command], env)
            if prefixes
            else preloaded.start([program, str(rank), *command], env=env, together=True)
            for rank, env in enumerate(environments)
        ]

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def wait(self, seconds: float = PATIENCE) -> list[Ended]:
        """Wait for all, and end those that take too long."""
        deadline = time.monotonic() + seconds
        ended = []
        for process in self.processes:
            try:
                output, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
                ended.append(Ended(process.returncode, output))
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
                ended.append(Ended(None, output))
        return ended


def _started(prefix: Sequence[str], command: Sequence[Path | str], env: Mapping[str, str]) -> subprocess.Popen[str]:
    arguments = [*prefix, sys.executable, *map(str, command)]
    return subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(program: Path | str, processes: int, *arguments: str, **settings: object) -> list[str]:
    """The outputs of a job in which all goes well."""
    with Job(program, processes, *arguments, **settings) as job:  # type: ignore[arg-type]
        ended = job.wait()
    for rank, end in enumerate(ended):
        assert end.code == 0, f"process {rank} ended with {end.code}:\n{end.output[-4000:]}"
    return [end.output for end in ended]

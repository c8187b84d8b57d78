"""A contender that is two processes of a script. They are started once, and run some steps when it is their turn."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

Step = Callable[[], object]


class TwoProcesses:
    """A script twice, as a launcher starts it, with one core each."""

    def __init__(self, script: str, *arguments: str, settings: Mapping[str, str] | None = None) -> None:
        self._name = " ".join(arguments)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        base = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        base |= {"OMP_NUM_THREADS": "1", **(settings or {})}
        self._processes = [
            subprocess.Popen(
                [sys.executable, script, *arguments],
                env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]

    def turn(self, steps: int) -> float:
        """Seconds of one of some steps; the slower process counts."""
        return max(self._ask(str(steps)))

    def peak_memory(self) -> float:
        """MiB of the steps, as :mod:`memory` counts them; the larger process counts. Before any other turn."""
        return max(self._ask("memory"))

    def _ask(self, line: str) -> list[float]:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        lines = [process.stdout.readline() for process in self._processes if process.stdout is not None]
        if not all(lines):
            raise RuntimeError(f"{self._name} failed")
        return [float(json.loads(text)) for text in lines]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def seconds_per_step(step: Step, steps: int) -> float:
    """The median of some steps, after one that nobody counts: others have used the caches."""
    step()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def answer(make: Callable[[], Step]) -> None:
    """One of the processes: does what each line of the input asks for."""
    from memory import peak_memory

    step: Step | None = None
    for line in sys.stdin:
        if line.strip() == "memory":
            print(peak_memory(make)["peak"], flush=True)
            continue
        step = step or make()
        print(seconds_per_step(step, int(line)), flush=True)


@contextmanager
def gloo() -> Iterator[None]:
    """In here, torch's own group of the two processes exists."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()

"""What a process of a job does, and what is done to it, before there is any model.

``python job_cases.py <process> <processes> <case> [<argument>]`` is one process of such a job.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import poptorch
from poptorch import launchers
from poptorch.distributed import process_group
from poptorch.distributed.process_group import ProcessGroup
from poptorch.distributed.shared_buffers import SharedMemory

LISTENS = "0A"


def met(process: int, processes: int) -> ProcessGroup:
    return process_group.ensure_initialized(process, processes)


def by_launcher(process: int, processes: int) -> None:
    """Believe what the launcher says."""
    group = met(*launchers.layout())
    print("members:", group.gather_values(group.process_id))


def listening_at() -> set[str]:
    """The addresses at which this process and its parent listen, in the kernel's words."""
    own = {os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in own:
                found.add(fields[1].partition(":")[0])
    return found


def ports(process: int, processes: int) -> None:
    group = met(process, processes)
    print("listens at:", *sorted(listening_at()))
    group.barrier()


def ends_at_once(process: int, processes: int) -> None:
    """Process 0 ends when it has met the others, one of which is slow to notice that it is connected."""
    if process == 1:
        connect = dist.ProcessGroupGloo

        class Slow(connect):  # type: ignore[misc, valid-type]
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                time.sleep(4)

        dist.ProcessGroupGloo = Slow  # type: ignore[misc]
    met(process, processes)
    print("met")


def ends_while_needed(process: int, processes: int) -> None:
    """The last process ends early; the others wait for it."""
    group = met(process, processes)
    if process < processes - 1:
        group.barrier()
    print("ended early")


def network_goes(process: int, processes: int, mark: str) -> None:
    """Wait until somebody takes the network away, and then for the others."""
    group = met(process, processes)
    group.barrier()
    Path(mark).write_text("here")
    while Path(mark).exists():
        time.sleep(0.05)
    group.barrier()


def impostor(process: int, processes: int) -> None:
    """Process 1 knows the meeting point, but not what the others have to hear from it."""
    if process == 1:
        from poptorch.distributed import proof

        right = proof.answer

        def answer(secret: bytes, role: str, *challenges: bytes) -> bytes:
            return right(b"guess" if " to " in role else secret, role, *challenges)

        proof.answer = answer
    met(process, processes)
    print("let in")


def untrue_file(process: int, processes: int, path: str) -> None:
    """Process 1 names a file of the others, where they look for memory."""
    group = met(process, processes)
    if process == 1:
        gather = group.gather_values

        def untrue(value: Any) -> list[Any]:
            if isinstance(value, list | tuple):
                value = (f"../../..{path}", os.stat(path).st_ino)
            elif isinstance(value, str):
                value = f"../../..{path}"
            return gather(value)

        group.gather_values = untrue  # type: ignore[method-assign]
    memory = SharedMemory.of(group)
    if memory is not None:
        for member in range(processes):
            memory.room(4096).of(member, 1, torch.uint8).zero_()
    print("shared" if memory else "not shared")


def interrupted_at_random(process: int, processes: int, seconds: str) -> None:
    """Exchange numbers until a signal comes, or until others have gone."""
    group = met(process, processes)
    print("ready", flush=True)
    deadline = time.monotonic() + float(seconds)
    memory = SharedMemory.of(group)
    number = 0
    while time.monotonic() < deadline:
        number += 1
        total = group.sum(torch.full((3,), float(number)))
        assert total.tolist() == [processes * number] * 3
        assert group.gather_values(number) == [number] * processes
        if memory is not None and number % 50 == 0:
            memory.room(1 << 16)
    group.barrier()


def odd_clock(process: int, processes: int) -> None:
    """The clock on the wall jumps by years, forth and back."""
    real, chance = time.time, random.Random(process)
    time.time = lambda: real() + chance.uniform(-1e8, 1e8)
    group = met(process, processes)
    for _ in range(20):
        group.barrier()
    print("met")


CASES: dict[str, Callable[..., None]] = {
    case.__name__: case
    for case in (
        by_launcher, odd_clock, ports, ends_at_once, ends_while_needed, network_goes, impostor, untrue_file,
        interrupted_at_random,
    )
}  # fmt: skip


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(6))
    process, processes, case, *rest = sys.argv[1:]
    try:
        CASES[case](int(process), int(processes), *rest)
    except poptorch.Error as error:
        print(f"{type(error).__name__} {getattr(error, 'recovery_action', '')}: {error.message}", flush=True)
        sys.exit(5)


if __name__ == "__main__":
    main()

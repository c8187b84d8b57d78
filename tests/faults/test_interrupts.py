"""Ctrl-C while a program trains: it ends soon, and leaves no process, no shared memory and no core dump."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import poptorch

PROGRAM = Path(__file__).with_name("interrupted_program.py")

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the system's list of processes")


@needs_proc
@pytest.mark.parametrize(
    ("tries", "sharing"),
    [
        (12, "Fork"),
        pytest.param(200, "Fork", marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)]),
        pytest.param(24, "ForkServer", marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)]),
    ],
)
def test_ctrl_c_ends_the_program(tries: int, sharing: str) -> None:
    command = [sys.executable, str(PROGRAM), str(tries), sharing]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    bare, *results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == tries
    took = sorted(result["took"] for result in results)
    print(
        f"{tries} programs interrupted, all loaders and strategies; half ended after {took[len(took) // 2]:.1f} s, "
        f"all after {took[-1]:.1f} s, one that does nothing after {bare['took']:.1f} s; load {os.getloadavg()[0]:.1f}"
    )
    for result in results:
        assert result["status"] in (-signal.SIGINT, 1, 130), (result, done.stderr[-4000:])
        assert not result["orphans"], result
        assert not result["shared"], result


class Items(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


def test_no_python_runs_when_a_batch_goes_away() -> None:
    """A Ctrl-C that arrives in the callback of a weak reference would be lost."""
    loader = poptorch.DataLoader(poptorch.Options(), Items(), 2, num_workers=1)
    called: list[str] = []

    def watch(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_qualname)

    batches, deleted = iter(loader), 0
    for batch in batches:
        sys.setprofile(watch)
        try:
            del batch
        finally:
            sys.setprofile(None)
        deleted += 1
    print(f"{deleted} batches deleted")
    assert not called

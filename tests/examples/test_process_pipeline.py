"""The example of a model in two processes gives the same losses with every launcher, and without one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "process_pipeline.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", EXAMPLE]
POPRUN = ["-m", "popdist.poprun", "--num-replicas=2", "--num-instances=2", sys.executable, EXAMPLE]


def losses(arguments: list[str], home: Path) -> list[str]:
    """What the example prints, of both processes if there are two."""
    settings = {"POPTORCH_CODEGEN": "interpret", "HOME": str(home), "POPTORCH_VIPU_DIR": str(home / "vipu")}
    environment = {**os.environ, **settings, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return re.findall(r"loss (\d\.\d{6})", done.stdout)


@pytest.mark.timeout(900)
def test_two_processes_print_the_losses_of_one(tmp_path: Path) -> None:
    alone = losses([EXAMPLE], tmp_path)
    assert len(alone) == 4
    for launcher in (TORCHRUN, POPRUN):
        assert sorted(losses(launcher, tmp_path)) == sorted(2 * alone)

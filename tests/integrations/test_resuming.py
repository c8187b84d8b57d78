"""Training that is started again, and goes on where it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import poptorch
import processes
from checkpoint_cases import Stages, data
from distributed_cases import adamw
from poptorch.integrations.resuming import Run, run_resumable

PROGRAM = processes.TESTS / "resumable.py"
WEIGHTS = {name for name, _ in Stages(False).named_parameters()}


def torchrun(count: int, folder: Path, steps: int, fatal: int) -> str:
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join((str(processes.TESTS), os.environ.get("PYTHONPATH", "")))
    settings = {"PYTHONPATH": path, "POPTORCH_CODEGEN": "interpret", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1"]
    command += ["--nproc-per-node", str(count), str(PROGRAM), str(folder), str(steps), str(fatal)]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_that_torchrun_starts_again_ends_with_the_same_bits(tmp_path: Path) -> None:
    said = torchrun(2, tmp_path / "failing", 4, 3)
    assert all(f"process {process} of 2 begins at step {step}" in said for process in (0, 1) for step in (0, 2))
    assert len(list((tmp_path / "failing" / "checkpoints").iterdir())) == 2
    torchrun(2, tmp_path / "undisturbed", 4, -1)
    for process in range(2):
        failing, undisturbed = (torch.load(tmp_path / which / f"{process}.pt") for which in ("failing", "undisturbed"))
        own = {name for name in failing if process and name.startswith("norm.") and name not in WEIGHTS}
        for name in failing.keys() - own:  # statistics go on from those of process 0
            assert torch.equal(failing[name], undisturbed[name]), name
    said = torchrun(1, tmp_path / "failing", 6, -1)  # the rest with one process
    assert "process 0 of 1 begins at step 4" in said


def test_one_process_goes_on_after_failures_of_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begins: list[int] = []

    def train(run: Run) -> dict[str, torch.Tensor]:
        model = Stages(False)
        options = poptorch.Options().randomSeed(11)
        options.Training.gradientAccumulation(3)
        executor = poptorch.trainingModel(model, options, adamw(model))
        executor.compile(*data(1, 0, 1, 0))
        begins.append(run.restore(executor).get("step", 0))
        for step in range(begins[-1], 4):
            executor(*data(1, 0, 1, step))
            run.save(executor, {"step": step + 1})
        return {name: value.clone() for name, value in model.state_dict().items()}

    monkeypatch.setenv("POPTORCH_FAULTS", "ipu_reset: call=2; partition_reset: call=5")
    found = run_resumable(train, tmp_path / "failing")
    assert begins == [0, 1, 3]
    monkeypatch.delenv("POPTORCH_FAULTS")
    expected = run_resumable(train, tmp_path / "undisturbed")
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
    assert len(list((tmp_path / "failing").iterdir())) == 2
    monkeypatch.setenv("POPTORCH_FAULTS", "ipu_reset: probability=1")
    with pytest.raises(poptorch.RecoverableError):
        run_resumable(train, tmp_path / "hopeless", restarts=1)
    assert begins[-2:] == [0, 0]


def test_checkpoints_that_are_not_whole_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def train(run: Run) -> int:
        model = Stages(False)
        options = poptorch.Options().randomSeed(11)
        executor = poptorch.trainingModel(model, options, adamw(model))
        executor.compile(*(values[:4] for values in data(1, 0, 1, 0)))
        begin = int(run.restore(executor).get("step", 0))
        run.save(executor, {"step": begin + 1})
        return begin

    assert [run_resumable(train, tmp_path) for _ in range(2)] == [0, 1]
    latest = tmp_path / "checkpoint-00000001"
    next(latest.glob("data-*/model/*")).unlink()
    assert run_resumable(train, tmp_path) == 1
    assert "checkpoint-00000001 is left out" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-00000000", "checkpoint-00000002"]
    with pytest.raises(poptorch.Error, match="at least one checkpoint"):
        run_resumable(train, tmp_path, keep=0)

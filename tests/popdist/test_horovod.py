"""The stand-in for Horovod with one instance, and that it steps back for a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from popdist import horovod as hvd
from popdist.poprun.job import horovod_variables

SHIMS = Path(hvd.__file__).resolve().parent / "shims"


@pytest.fixture(autouse=True)
def _initialized() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_one_instance() -> None:
    value = torch.tensor([1.5, 2.0])
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    for given in ({}, {"average": False}, {"op": hvd.Sum}, {"op": hvd.Min}, {"op": hvd.Product}):
        assert torch.equal(hvd.allreduce(value, **given), value)
    assert torch.equal(hvd.allreduce(value, prescale_factor=2.0, postscale_factor=2.0), 4 * value)
    assert hvd.allreduce_(value) is value
    assert hvd.allgather_object({"a": 1}) == [{"a": 1}]
    assert hvd.broadcast_object([1]) == [1]
    hvd.barrier()


def test_optimizers_and_parameters() -> None:
    model = torch.nn.Linear(2, 2)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    hvd.broadcast_parameters({"step": 3, **model.state_dict()}, root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert torch.equal(model.weight.detach(), before)


def test_wrong_calls() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="must be one of Average"):
        hvd.allreduce(torch.ones(1), op="Median")
    with pytest.raises(AttributeError, match=r"horovod\.torch\.DistributedOptimizer is not there: this is PopDist's"):
        _ = hvd.DistributedOptimizer
    hvd.shutdown()
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.rank()


def test_it_can_be_switched_off() -> None:
    assert horovod_variables({"PYTHONPATH": "/a"})["PYTHONPATH"] == f"/a{os.pathsep}{SHIMS}"
    assert horovod_variables({})["PYTHONPATH"] == str(SHIMS)
    assert horovod_variables({"POPDIST_HOROVOD_SHIM": "0"}) == {}


def test_a_real_horovod_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "horovod"
    (real / "torch").mkdir(parents=True)
    (real / "__init__.py").write_text("__version__ = 'real'\n")
    (real / "torch" / "__init__.py").write_text("kind = 'real'\n")
    path = os.pathsep.join([str(SHIMS), str(tmp_path)])
    code = "import horovod.torch, horovod; print(horovod.__version__, horovod.torch.kind)"
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "real real\n"
    monkeypatch.syspath_prepend(str(tmp_path))
    assert horovod_variables({}) == {}


PROGRAM = """
import horovod.torch as hvd
import sys, helper
if __name__ == "__main__":
    hvd.init()
    print(hvd.rank(), hvd.size(), helper.NAME, sys.argv[1:])
"""


def test_programs_without_poprun_ask_for_it(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("NAME = 'beside'")
    run = subprocess.run(
        [sys.executable, "-m", "popdist.horovod", str(tmp_path / "train.py"), "--epochs", "3"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert run.stdout == "0 1 beside ['--epochs', '3']\n", run.stderr
    run = subprocess.run(
        [sys.executable, "-m", "popdist.horovod"], capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode != 0
    assert "usage: python -m popdist.horovod program.py" in run.stderr

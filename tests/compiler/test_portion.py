"""Which process runs what of a replica that several share, and what cannot be divided."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from pipeline_cases import WIDTH, Net, Tied
from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.lowering import lower_for_device
from poptorch.compiler.request import request_for
from poptorch.executable.identity import identity
from poptorch.host.build import build_host


def lowered(
    model: nn.Module,
    process: int = 0,
    together: int = 2,
    change: Callable[[poptorch.Options], object] = lambda options: None,
    **settings: Any,
) -> DeviceProgram:
    """The program of a model whose parameters have no values."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    options.Distributed.configureProcessId(process, together).processesPerReplica(together)
    change(options)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.1, **settings)
    batch = torch.empty(8, WIDTH, device="meta")
    return lower_for_device(request_for(model, options, (batch, batch), optimizer=optimizer))


def on_meta(make: Callable[..., nn.Module], **settings: Any) -> nn.Module:
    with torch.device("meta"):
        return make(**settings)


def test_each_process_has_the_stages_of_its_block() -> None:
    first, second = (lowered(on_meta(Net, stages=4), process) for process in range(2))
    assert first.blocks is not None
    assert second.blocks is not None
    assert first.blocks.of_parts == second.blocks.of_parts == (0, 0, 1, 1)
    names = [f"layers.{layer}.{kind}" for layer in range(4) for kind in ("weight", "bias")]
    assert first.blocks.held == first.blocks.updated_here == set(names[:4])
    assert second.blocks.held == second.blocks.updated_here == set(names[4:])
    assert first.local_update is not None
    assert second.local_update is not None
    assert {*first.local_update.names, *second.local_update.names} == set(names)
    assert first.local_ipus == 2
    assert identity(first) == identity(second), "all processes compile the same program"


def test_code_is_made_for_own_stages_only() -> None:
    device = lowered(on_meta(Net, stages=4), 1)
    code = build_host(device)
    assert code.log[4] == "stage code: 4 of 8 stages"
    for stage in code.stages:
        assert ("another process" in stage.code.source) is not device.runs(stage.description)


def test_a_tied_weight_has_one_home() -> None:
    devices = [lowered(on_meta(Tied), process) for process in range(2)]
    homes = []
    for device in devices:
        assert device.blocks is not None
        assert device.blocks.shared == ["table"]
        assert device.uses("table")
        assert device.blocks.users["table"] == (0, 1)
        homes.append("table" in device.blocks.updated_here)
    assert sorted(homes) == [False, True]


def test_without_the_option_a_process_runs_everything() -> None:
    device = lowered(on_meta(Net), together=1)
    assert device.portion is None
    assert device.local_update is device.update
    assert device.local_ipus == device.ipus_per_replica == 2
    assert all(device.runs(stage) for stage in device.plan.stages)


class Counter(nn.Module):
    """Writes a buffer in one stage that another one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        with poptorch.Block("before", ipu_id=0):
            x = x + self.calls
        out, loss = self.net(x, y)
        with poptorch.Block("after", ipu_id=1):
            self.calls += 1
            return out * self.calls, loss


class Writer(nn.Module):
    """Changes an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        with poptorch.Block("write", ipu_id=0):
            x.mul_(2)
        return self.net(x, y)


def phased(options: poptorch.Options) -> None:
    options.setExecutionStrategy(poptorch.ParallelPhasedExecution("stage 0", "stage 1"))


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (lambda: Net(), {"together": 3}, "3 blocks of equal size, but the model uses 2"),
        (lambda: Net(stages=1), {}, "2 blocks of equal size, but the model uses 1"),
        (lambda: Net(), {"max_grad_norm": 1.0}, "max_grad_norm needs the gradients of all parameters"),
        (lambda: Net(), {"change": phased}, "not phased ones"),
        (Counter, {}, "writes calls, and stages of 2 processes use it"),
        (Writer, {}, "changes x in place"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    model: Callable[[], nn.Module], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(poptorch.Error, match=re.escape(message)):
        lowered(on_meta(model), **settings)


def test_the_number_of_processes_must_fit() -> None:
    options = poptorch.Options()
    options.Distributed.configureProcessId(0, 3).processesPerReplica(2)
    with pytest.raises(poptorch.Error, match="3 processes cannot be divided into groups of 2"):
        poptorch.inferenceModel(nn.Linear(2, 2), options)(torch.ones(1, 2))


def test_tensors_of_a_process_are_found_without_a_full_pipeline() -> None:
    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    options.Distributed.configureProcessId(1, 2).processesPerReplica(2)
    batch = torch.empty(8, WIDTH, device="meta")
    found = poptorch.tensorsOfProcess(on_meta(Net, norm=True), options, batch, y=batch)
    kinds = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert set(found) == {f"layers.1.{k}" for k in kinds[:2]} | {f"norms.1.{k}" for k in kinds}

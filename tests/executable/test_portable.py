"""Device programs written as data and read again: the same graphs, the same plan, the same numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.lowering import lower_for_device
from poptorch.compiler.request import request_for
from poptorch.encoding import NotEncodable
from poptorch.executable import portable
from poptorch.executable.identity import identity
from poptorch.host.build import build_host


class Net(nn.Module):
    """Norms with buffers, dropout, a constant, a loop, and two stages if asked for."""

    def __init__(self, stages: int = 1) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.second, self.drop = nn.Linear(8, 3), nn.Dropout(0.5)
        self.shift = torch.linspace(0, 1, 8)
        if stages == 2:
            poptorch.BeginBlock(self.second, ipu_id=1)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.norm(self.first(x)).relu() + self.shift
        (hidden,) = poptorch.for_loop(2, lambda h: h * 0.5 + 1, [hidden])
        out = self.second(self.drop(hidden))
        return out, nn.functional.cross_entropy(out, target)


def device_program(stages: int, training: bool, half: bool = False, **options: Any) -> DeviceProgram:
    torch.manual_seed(1)
    model = Net(stages)
    chosen = poptorch.Options()
    if training:
        chosen.Training.gradientAccumulation(4)
    else:
        chosen.deviceIterations(4)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.1) if training else None
    batch = torch.randn(8, 6), torch.randint(0, 3, (8,))
    if half:
        model.half()
        batch = batch[0].half(), batch[1]
    return lower_for_device(request_for(model.train(training), chosen, batch, optimizer=optimizer))


def again(device: DeviceProgram) -> DeviceProgram:
    """What a file holds of it, read back."""
    content, tensors = portable.written(device)
    parts = portable.read(json.loads(json.dumps(content)), tensors)
    interface = device.interface
    return parts.device_program(
        device.settings,
        device.loop,
        layout=interface.layout,
        output_structure=interface.output_structure,
        optimizer=interface.optimizer,
    )


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("stages", [1, 2])
def test_a_program_is_the_same_after_it_was_written(stages: int, training: bool, half: bool) -> None:
    device = device_program(stages, training, half)
    read = again(device)
    assert identity(read) == identity(device)
    assert str(read.program) == str(device.program)
    assert str(read.undivided) == str(device.undivided)
    assert str(read.plan) == str(device.plan)
    assert str(read.update) == str(device.update)
    assert read.memory == device.memory
    assert read.plan.edges == device.plan.edges
    assert str(build_host(read)) == str(build_host(device))


def test_a_model_in_one_part_has_one_graph() -> None:
    content, _ = portable.written(device_program(1, training=False))
    assert len(content["programs"]) == 1
    read = again(device_program(1, training=False))
    assert read.plan.stages[0].program is read.program


def test_what_is_python_has_no_written_form() -> None:
    double = poptorch.CPU(lambda x: 2 * x, "twice as much")

    class Calls(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return double(x)

    device = lower_for_device(request_for(Calls(), poptorch.Options(), (torch.ones(2),)))
    with pytest.raises(NotEncodable, match=r"poptorch\.CPU"):
        portable.written(device)


@pytest.mark.parametrize(("part", "other"), [("format", 0), ("torch", "1.0")])
def test_programs_of_other_releases_are_refused(part: str, other: object) -> None:
    content, tensors = portable.written(device_program(1, training=False))
    with pytest.raises(NotEncodable, match="a program of format"):
        portable.read({**content, part: other}, tensors)

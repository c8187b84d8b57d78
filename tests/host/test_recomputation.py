"""What a host computes again, and that IPUs do as they are asked, whatever the host does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from poptorch.compiler.memory import Category
from poptorch.host import recomputation
from poptorch.program.opinfo import info_of


class Layers(nn.Module):
    """Two stages of several element-wise functions and products."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            if index % 3 == 0:
                poptorch.Block.start(str(index), ipu_id=index // 3)
            x = torch.tanh(layer(x)).sigmoid()
        return poptorch.identity_loss(x.square().mean(), reduction="none")


def compiled(*, rounding: bool, mode: int | None = None) -> Any:
    torch.manual_seed(0)
    model = Layers().half()
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    options.Precision.enableStochasticRounding(rounding)
    if mode is not None:
        options._Popart.set("autoRecomputation", mode)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    executor.compile(torch.ones(8, 8).half())
    return executor


def stashes(executor: Any) -> int:
    return len(executor.executable.device.memory.of(Category.ACTIVATION))


def repeated(program: Any) -> int:
    return sum(info_of(node).recomputed for node in program.operations())


@pytest.mark.parametrize("mode", [None, 1, 2, 3, 4])
def test_stochastic_rounding_changes_no_stash_of_the_device(mode: int | None) -> None:
    plain, rounded = compiled(rounding=False, mode=mode), compiled(rounding=True, mode=mode)
    assert stashes(rounded) == stashes(plain)
    assert repeated(rounded.program) == repeated(plain.program)
    for one, other in zip(plain.plan.stages, rounded.plan.stages, strict=True):
        assert (one.receives, one.sends) == (other.receives, other.sends)
        assert repeated(one.program) == repeated(other.program)


@pytest.mark.parametrize("mode", [None, 1, 3, 4])
def test_the_host_computes_nothing_again_that_would_be_rounded_another_way(mode: int | None) -> None:
    executor = compiled(rounding=True, mode=mode)
    assert sum(repeated(stage.program) for stage in executor.executable.code.stages) == 0
    assert repeated(executor.program) > 0
    executor(torch.ones(8, 8).half())


def test_a_host_computes_again_what_is_cheap_unless_it_is_told() -> None:
    executor = compiled(rounding=False)
    host = sum(repeated(stage.program) for stage in executor.executable.code.stages)
    assert 0 < host < repeated(executor.program)
    told = compiled(rounding=False, mode=4)
    assert sum(repeated(stage.program) for stage in told.executable.code.stages) == repeated(told.program)


def test_the_pass_of_the_host_takes_the_place_of_the_compilers() -> None:
    passes = recomputation.dividing_passes(recomputation.NOTHING_AGAIN)
    assert [step.name for step in passes] == ["assign slots", "recompute", "isolate writes"]
    assert passes[1] is recomputation.NOTHING_AGAIN
    assert all(step.reason for step in passes)

"""Biases as additions of their own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch
from poptorch.compiler.codegen.biases import with_biases_apart
from poptorch.compiler.codegen.interpret import generate
from poptorch.compiler.program import Program

aten = torch.ops.aten


class Layers(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8, bias=bias), nn.Linear(8, 4, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.tanh(self.first(x)))
        return poptorch.identity_loss((y * y).mean(), reduction="none")


def program_of(model: nn.Module, x: torch.Tensor) -> tuple[Program, list[torch.Tensor]]:
    wrapped = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.1))
    wrapped.compile(x)
    return wrapped._engine.executable.program, [p.detach() for p in model.parameters()]


def targets(program: Program) -> list[object]:
    return [node.target for node in program.operations()]


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
def test_results_are_those_of_the_program_with_biases_inside(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    program, parameters = program_of(Layers(bias=True), x)
    apart = with_biases_apart(program)
    assert targets(program).count(aten.addmm.default) == 2
    assert aten.addmm.default not in targets(apart)
    wanted, found = (generate(p).run(parameters, [], [], [x], (), None) for p in (program, apart))
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(one, other)


def test_programs_without_biases_stay_as_they_are() -> None:
    program, _ = program_of(Layers(bias=False), torch.randn(3, 4))
    assert with_biases_apart(program) is program


def test_short_types_keep_the_single_rounding() -> None:
    program, _ = program_of(Layers(bias=True).half(), torch.randn(3, 4).half())
    assert with_biases_apart(program) is program


@pytest.mark.parametrize("stages", [1, 2])
def test_native_training_equals_eager(stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    torch.manual_seed(0)
    model, reference = Layers(bias=True), Layers(bias=True)
    reference.load_state_dict(model.state_dict())
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    if stages == 2:
        model.second = poptorch.BeginBlock(model.second, ipu_id=1)
    x = torch.randn(8, 4)
    poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))(x)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for block in x.chunk(4):
        (reference(block) / 4).backward()
    optimizer.step()
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.detach(), other.detach())

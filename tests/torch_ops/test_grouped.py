"""Every row of every table with two micro-batches as one program, against the two one after the other."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from op_samples import Alone, Sample, Trained
from test_matches_eager import TABLES
from torch import nn

import poptorch
from poptorch.host.grouping.stacking import CannotGroup, stacked
from poptorch.host.interpret.code import generate
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Port, Program, Role
from poptorch.runtime.values.random_source import GroupedRandom, RandomSource

SEEDS = (3, 5)


def program_of(sample: Sample) -> Program:
    """One row as the compiler sees it, with its backward pass if it has one."""
    if not sample.grad:
        model = poptorch.inferenceModel(Alone(sample.make()))
        model.compile(*sample.inputs)
        return model.program
    trained = Trained(sample)
    trained(*sample.inputs)  # makes the weights of the outputs
    model = poptorch.trainingModel(Loss(trained), optimizer=torch.optim.SGD(trained.parameters(), lr=0.1))
    model.compile(*sample.inputs)
    return model.program


class Loss(nn.Module):
    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.trained = trained

    def forward(self, *inputs: torch.Tensor) -> Any:
        outputs, loss = self.trained(*inputs)
        return outputs, poptorch.identity_loss(loss.float(), reduction="none")


def arguments(program: Program, inputs: list[torch.Tensor], random: RandomSource) -> list[Any]:
    generator = torch.Generator().manual_seed(1)

    def value(port: Port) -> torch.Tensor:
        numbers = torch.rand(port.shape, generator=generator).to(port.dtype)
        return torch.zeros_like(numbers) if "offsets" in port.name else numbers  # inputs stay where they are allowed

    state = [[value(p) for p in program.ports_of(role)] for role in (Role.PARAMETER, Role.BUFFER)]
    return [*state, list(program.constants.values()), inputs, [torch.ones(())] * program.training, random]


def run(program: Program, inputs: list[torch.Tensor], random: RandomSource) -> tuple[torch.Tensor, ...]:
    generated = generate(program)
    given = arguments(program, inputs, random)
    given[4] = given[4][: len(program.ports_of(Role.LOSS_SCALE))]
    return generated.run(*given)


def other(tensor: torch.Tensor) -> torch.Tensor:
    """Another micro-batch: the same numbers, so that they are allowed, in another order."""
    return tensor.flip(0) if tensor.ndim and tensor.is_floating_point() else tensor.clone()


def check(program: Program, sample: Sample) -> bool:
    """Whether it can be grouped; if so, the group gives what its members give."""
    try:
        group = stacked(program, 2)
    except CannotGroup:
        return False
    ports = program.ports_of(Role.INPUT)
    first = [t.to(p.dtype) for t, p in zip(sample.inputs, ports, strict=True)]
    members = [first, [other(t) for t in first]]
    alone = [
        run(program, [t.clone() for t in inputs], RandomSource(seed))
        for inputs, seed in zip(members, SEEDS, strict=True)
    ]
    together = run(group, [torch.stack(pair) for pair in zip(*members, strict=True)], GroupedRandom(SEEDS))
    gradients = program.positions_of(OutputKind.GRADIENT)
    for position, (result, pair) in enumerate(zip(together, zip(*alone, strict=True), strict=True)):
        expected = torch.add(*pair) if position in gradients else torch.stack(pair)
        sample.check(result, expected, together, steps=2 if program.training else 1)
    return True


SOME = 10
"""One of so many rows is a part of every test run."""


@pytest.mark.parametrize("table", TABLES)
def test_some_groups_give_what_their_members_give(table: str) -> None:
    compare(table, TABLES[table][::SOME])


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("table", TABLES)
def test_all_groups_give_what_their_members_give(table: str) -> None:
    compare(table, TABLES[table])


def compare(table: str, samples: list[Sample]) -> None:
    counts = Counter(check(program_of(sample), sample) for sample in samples)
    if table in ("pointwise", "activations", "blas", "reductions"):
        assert counts[True] > counts[False], counts

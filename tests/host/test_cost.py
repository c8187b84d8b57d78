"""The cost model of a host."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import poptorch
from poptorch.host.cost import estimated_seconds, estimated_work
from poptorch.program.program import Program


def program_of(model: nn.Module, *inputs: torch.Tensor) -> Program:
    wrapped = poptorch.inferenceModel(model)
    wrapped.compile(*inputs)
    return wrapped.program


def test_arithmetic_bytes_and_calls_count():
    program = program_of(nn.Linear(64, 32), torch.ones(16, 64))
    (operation,) = [n for n in program.operations() if n.target is torch.ops.aten.addmm.default]
    others = len(list(program.operations())) - 1
    flops, moved = 2 * 16 * 64 * 32, 4 * (32 + 16 * 64 + 64 * 32 + 16 * 32)
    views = 2 * 4 * 64 * 32  # the weight, turned
    assert others == 1
    assert operation.args[2].target is torch.ops.aten.t.default
    work = flops / 5e10 + (moved + views) / 5e9
    assert estimated_work(program) == pytest.approx(work)
    assert estimated_seconds(program) == pytest.approx(work + 2 * 5e-6)


class WithHint(nn.Module):
    def forward(self, x):
        return poptorch.nop(x.relu())


class WithSearch(nn.Module):
    def forward(self, x):
        return poptorch.fps(x, [0, 4], 0.5)


def test_hints_are_known_and_own_operators_are_not():
    assert estimated_work(program_of(WithHint(), torch.ones(4))) < math.inf
    searching = program_of(WithSearch(), torch.ones(4, 3))
    assert estimated_work(searching) == math.inf
    assert estimated_seconds(searching) < 1

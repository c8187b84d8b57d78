"""Arguments that ``forward`` changes in place: what the caller does not see is said once."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import poptorch


class Doubling(nn.Module):
    def forward(self, x, y):
        x *= 2
        return x + y


def quiet(executor, *inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return executor(*inputs)


@pytest.mark.parametrize("view", [lambda: torch.ones(2, 3).t(), lambda: torch.ones(3, 4)[:, ::2]])
def test_an_argument_that_is_not_contiguous_stays_as_it_is(view):
    executor = poptorch.inferenceModel(Doubling())
    x = view()
    with pytest.warns(UserWarning, match=r"forward\(\) changes x in place, but the argument is not contiguous"):
        result = executor(x, torch.ones(3, 2))
    assert result.unique().tolist() == [3.0]
    assert x.unique().tolist() == [1.0]
    quiet(executor, x, torch.ones(3, 2))


def test_arguments_that_share_a_part_of_their_memory():
    executor = poptorch.inferenceModel(Doubling())
    memory = torch.ones(4)
    with pytest.warns(UserWarning, match=r"forward\(\) changes x in place, and y lies in a part of the same memory"):
        result = executor(memory[:3], memory[1:])
    assert result.tolist() == [3.0, 3.0, 3.0]
    quiet(executor, memory[:3], memory[1:])


def test_neighbours_in_memory_are_not_mentioned():
    memory = torch.ones(6)
    quiet(poptorch.inferenceModel(Doubling()), memory[:3], memory[3:])
    assert memory.tolist() == [2.0, 2.0, 2.0, 1.0, 1.0, 1.0]

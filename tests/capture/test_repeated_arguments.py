"""Calls like the ones before, which are bound without looking at every parameter again."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from poptorch.capture.arguments import Signature


def test_defaults_are_bound_the_same_way_again():
    signature = Signature(lambda x, y=None, scale=2: x)
    first, again = signature.bind((1,), {}), signature.bind((10,), {})
    assert (again.names, again.positional) == (("x", "y", "scale"), (10, None, 2))
    assert (first.defaulted, first.by_name, first.left_out) == (again.defaulted, again.by_name, again.left_out)
    assert signature.bind((1, 5), {}).positional == (1, 5, 2)
    assert signature.bind((1,), {"scale": 7}).positional == (1, None, 7)


def test_what_was_given_is_not_kept():
    signature = Signature(lambda x, y=None: x)
    tensor = torch.ones(2)
    gone = weakref.ref(tensor)
    signature.bind((tensor,), {})
    del tensor
    gc.collect()
    assert gone() is None


class Optional(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None, z: torch.Tensor | None = None) -> Any:
        return x + 1 if y is None else x + y


def test_a_call_with_more_than_was_compiled_is_refused():
    executor = poptorch.inferenceModel(Optional())
    x = torch.ones(2)
    for _ in range(2):
        assert executor(x).tolist() == [2.0, 2.0]
    with pytest.raises(poptorch.Error, match="y"):
        executor(x, x)
    with pytest.raises(poptorch.Error, match="y"):
        executor(x, None, x)
    assert executor(x, None).tolist() == [2.0, 2.0]

"""Comparing a wrapped model with plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import poptorch
from closeness import assert_close_sums

NARROW = {torch.int64: torch.int32, torch.float64: torch.float32}
LEAST = 0.1
"""Size of weights and activations: gradients that cancel out leave some weights and outputs much smaller."""


def assert_equal_outputs(given: Any, expected: Any, terms: int, steps: int) -> None:
    """The same structure with the same values; wide types come back narrow."""
    leaves, structure = pytree.tree_flatten(given)
    wanted, wanted_structure = pytree.tree_flatten(expected)
    assert structure == wanted_structure
    for a, b in zip(leaves, wanted, strict=True):
        if isinstance(b, torch.Tensor):
            assert type(a) is torch.Tensor
            b = b.detach().to(NARROW.get(b.dtype, b.dtype))
            assert_close_sums(a, b, terms=terms, steps=steps, scale=LEAST)
        else:
            assert a == b


def check_inference(model: nn.Module, *inputs: Any, terms: int = 256, calls: int = 2, **named: Any) -> Any:
    """A wrapped model answers like the module itself, call after call; returns the last answer."""
    with torch.no_grad():
        expected = copy.deepcopy(model)(*copy.deepcopy(inputs), **copy.deepcopy(named))
    wrapped = poptorch.inferenceModel(model)
    for _ in range(calls):
        given = wrapped(*inputs, **named)
        assert_equal_outputs(given, expected, terms, steps=1)
    wrapped.destroy()
    return given


def check_training(
    model: nn.Module, batches: Sequence[tuple[Any, ...]], learning_rate: float = 0.05, terms: int = 1024
) -> list[float]:
    """Training step by step gives eager SGD's outputs, and its weights and buffers in the end; returns the losses.

    ``model`` returns a tensor or a tuple; its last tensor is the loss.
    """
    twin = copy.deepcopy(model)
    before = {name: value.clone() for name, value in twin.state_dict().items()}
    wrapped = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=learning_rate))
    eager = torch.optim.SGD([p for p in twin.parameters() if p.requires_grad], lr=learning_rate)
    losses: list[float] = []
    for batch in batches:
        expected = twin(*batch)
        loss = pytree.tree_leaves(expected)[-1]
        eager.zero_grad()
        loss.backward()
        eager.step()
        assert_equal_outputs(wrapped(*batch), expected, terms, steps=len(batches))
        losses.append(loss.item())
    assert_close_sums(dict(model.state_dict()), dict(twin.state_dict()), terms=terms, steps=len(batches), scale=LEAST)
    moved = [n for n, p in twin.named_parameters() if p.grad is not None and not torch.equal(p, before[n])]
    assert moved, "no weight moved: the comparison proves nothing"
    wrapped.destroy()
    return losses

"""Comparing a wrapped model with plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import poptorch

NARROW = {torch.int64: torch.int32, torch.float64: torch.float32}


def assert_equal_outputs(given: Any, expected: Any, tolerance: float) -> None:
    """The same structure with the same values; wide types come back narrow."""
    leaves, structure = pytree.tree_flatten(given)
    wanted, wanted_structure = pytree.tree_flatten(expected)
    assert structure == wanted_structure
    for a, b in zip(leaves, wanted, strict=True):
        if isinstance(b, torch.Tensor):
            assert type(a).__name__ == "DeviceTensor"
            b = b.detach().to(NARROW.get(b.dtype, b.dtype))
            torch.testing.assert_close(a.as_subclass(torch.Tensor), b, rtol=tolerance, atol=tolerance / 10)
        else:
            assert a == b


def check_inference(model: nn.Module, *inputs: Any, tolerance: float = 1e-5, calls: int = 2, **named: Any) -> Any:
    """A wrapped model answers like the module itself, call after call; returns the last answer."""
    with torch.no_grad():
        expected = copy.deepcopy(model)(*copy.deepcopy(inputs), **copy.deepcopy(named))
    wrapped = poptorch.inferenceModel(model)
    for _ in range(calls):
        given = wrapped(*inputs, **named)
        assert_equal_outputs(given, expected, tolerance)
    wrapped.destroy()
    return given


def check_training(
    model: nn.Module, batches: Sequence[tuple[Any, ...]], learning_rate: float = 0.05, tolerance: float = 1e-4
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
        assert_equal_outputs(wrapped(*batch), expected, tolerance)
        losses.append(loss.item())
    after = model.state_dict()
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(
            after[name], value, rtol=tolerance, atol=tolerance / 10, msg=lambda text, name=name: f"{name}: {text}"
        )
    moved = [n for n, p in twin.named_parameters() if p.grad is not None and not torch.equal(p, before[n])]
    assert moved, "no weight moved: the comparison proves nothing"
    wrapped.destroy()
    return losses

"""Native code against the interpreted program, over the zoo: the same outputs, losses, weights and buffers.

Each architecture of the zoo is compiled to native code twice, for inference and for training, which takes minutes for
all of them: a few that differ as much as possible run always, the others with ``make exhaustive``. Inductor keeps what
it compiled between runs, so that a second run takes a fraction of the first.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from zoo_all import ARCHITECTURES
from zoo_architecture import Architecture

import poptorch
from closeness import assert_close_sums

LEVELS = ("interpret", "native")
STEPS = 3
TERMS, LAYERS = 256, 4
"""Terms of the largest sums of the zoo, and sums that follow one another in a forward pass."""

LEAST = 0.1
"""Size of weights and activations: gradients that cancel out leave some of them much smaller."""

# Plain, convolutional with normalisation, gather and scatter: quick to compile and unlike each other.
ALWAYS = ("mlp", "resnet_block", "gnn_scatter")

pytestmark = pytest.mark.timeout(900)  # compilers, perhaps all at once on few cores


def over_the_zoo(*names: str) -> pytest.MarkDecorator:
    """The architectures of those names in every run, all others with ``make exhaustive``."""
    assert not set(names) - set(ARCHITECTURES), f"not in the zoo: {set(names) - set(ARCHITECTURES)}"
    parameters = [
        pytest.param(each, id=name, marks=[] if name in names else pytest.mark.exhaustive)
        for name, each in ARCHITECTURES.items()
    ]
    return pytest.mark.parametrize("member", parameters)


def only(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("member", [pytest.param(ARCHITECTURES[name], id=name) for name in names])


def assert_equal(native: Any, interpreted: Any, passes: int) -> None:
    """Equal but for the order of additions, after so many forward and backward passes."""
    assert_close_sums(native, interpreted, terms=TERMS, steps=passes * LAYERS, scale=LEAST)


def kept(outputs: Any) -> Any:
    """Outputs that a later call cannot change."""
    return pytree.tree_map_only(torch.Tensor, torch.clone, outputs)


def answers(monkeypatch: pytest.MonkeyPatch, level: str, network: nn.Module, *inputs: torch.Tensor) -> list[Any]:
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    wrapped = poptorch.inferenceModel(copy.deepcopy(network).eval(), poptorch.Options().randomSeed(5))
    outputs = [kept(wrapped(*inputs)) for _ in range(2)]
    wrapped.destroy()
    return outputs


def trained(
    monkeypatch: pytest.MonkeyPatch, level: str, member: Architecture, iterations: int = 1, accumulation: int = 1
) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """What a few steps of SGD return, and the state that they lead to."""
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    options = poptorch.Options().deviceIterations(iterations).randomSeed(5).outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(accumulation)
    model = member.trainable().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=member.learning_rate, momentum=0.5)
    wrapped = poptorch.trainingModel(model, options, optimizer)
    outputs = []
    for seed in range(STEPS):
        inputs, targets = member.batch(rows=2 * iterations * accumulation, seed=seed)
        outputs.append(kept(wrapped(*inputs, *targets)))
    wrapped.copyWeightsToHost()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    wrapped.destroy()
    return outputs, state


def check_training(monkeypatch: pytest.MonkeyPatch, member: Architecture, **loops: int) -> None:
    (expected, weights), (given, native_weights) = (trained(monkeypatch, level, member, **loops) for level in LEVELS)
    for step, (a, b) in enumerate(zip(given, expected, strict=True)):
        assert_equal(a, b, passes=2 * step + 1)
    assert_equal(native_weights, weights, passes=2 * STEPS)
    before = member.trainable().state_dict()
    assert any(not torch.equal(before[name], value) for name, value in weights.items()), "no weight moved"


@over_the_zoo(*ALWAYS, "transformer_encoder")
def test_inference(monkeypatch: pytest.MonkeyPatch, member: Architecture) -> None:
    inputs, _ = member.batch()
    expected, given = (answers(monkeypatch, level, member.network(), *inputs) for level in LEVELS)
    assert_equal(given, expected, passes=1)


@over_the_zoo(*ALWAYS)
def test_training(monkeypatch: pytest.MonkeyPatch, member: Architecture) -> None:
    check_training(monkeypatch, member)


@only(*ALWAYS)
def test_training_with_accumulation_and_iterations(monkeypatch: pytest.MonkeyPatch, member: Architecture) -> None:
    # The micro-batch is that of test_training: what was compiled there is found again.
    check_training(monkeypatch, member, iterations=2, accumulation=2)

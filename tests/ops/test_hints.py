"""Identities that carry a hint."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch

import poptorch
from poptorch import OverlapMode
from poptorch.ops import hints

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])


def test_outside_of_a_model_the_input_itself_comes_back() -> None:
    assert poptorch.nop(X) is X
    assert poptorch.set_available_memory(X, 0.1) is X
    assert poptorch.recomputationCheckpoint(X) is X
    assert poptorch.set_overlap_for_input(X, OverlapMode.NoOverlap) is X


@pytest.mark.parametrize(
    ("hint", "operator"),
    [
        (poptorch.nop, hints.NOP),
        (lambda x: poptorch.set_available_memory(x, 0.25), hints.AVAILABLE_MEMORY),
        (poptorch.recomputationCheckpoint, hints.CHECKPOINT),
        (lambda x: poptorch.set_overlap_for_input(x, OverlapMode.NoOverlap), hints.OVERLAP_INPUT),
        (lambda x: poptorch.set_overlap_for_output(x, OverlapMode.OverlapAccumulationLoop), hints.OVERLAP_OUTPUT),
    ],
)
def test_a_hint_is_one_differentiable_node_with_its_setting(capture, hint, operator) -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.requires_grad_()
        y = hint(x * 2)
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        return y, gradient

    graph = capture(step, X.clone())
    assert [node.target for node in graph.graph.nodes].count(operator) == 1
    value, gradient = graph(X)
    assert torch.equal(value, X * 2)
    assert torch.equal(gradient, X * 8)


def test_available_memory_keeps_its_proportion(capture) -> None:
    graph = capture(lambda x: poptorch.set_available_memory(x @ x, 0.25), X)
    (node,) = [node for node in graph.graph.nodes if node.target is hints.AVAILABLE_MEMORY]
    assert node.args[1] == 0.25


@pytest.mark.parametrize("proportion", [0.0, -0.1, 1.01, float("nan")])
def test_available_memory_must_be_a_proportion(proportion: float) -> None:
    with pytest.raises(poptorch.Error, match=r"availableMemoryProportion must be in \(0,1\]"):
        poptorch.set_available_memory(X, proportion)


def test_tensors_are_required() -> None:
    with pytest.raises(poptorch.Error, match=r"nop.*is not supported"):
        poptorch.nop(3)
    with pytest.raises(poptorch.Error, match=r"set_available_memory.*is not supported"):
        poptorch.set_available_memory([1], 0.5)


def test_checkpoints_keep_the_shape_of_the_call() -> None:
    a, b = X, X + 1
    assert poptorch.recomputationCheckpoint(a) is a
    assert poptorch.recomputationCheckpoint(a, b) == (a, b)
    assert poptorch.recomputationCheckpoint([a, b]) == [a, b]
    assert poptorch.recomputationCheckpoint((a,)) == (a,)
    for wrong in ((a, 1), ([a, None],), ("x",)):
        with pytest.raises(ValueError, match="All inputs must be tensors"):
            poptorch.recomputationCheckpoint(*wrong)


def test_overlap_reaches_every_tensor_of_a_structure(capture) -> None:
    Pair = namedtuple("Pair", ["left", "right"])

    def forward(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        given = {"a": [x, "text"], "b": Pair(y, 3)}
        marked = poptorch.set_overlap_for_input(given, OverlapMode.OverlapDeviceIterationLoop)
        assert marked["a"][1] == "text"
        assert isinstance(marked["b"], Pair)
        assert marked["b"].right == 3
        return [marked["a"][0], marked["b"].left]

    graph = capture(forward, X, X)
    marks = [node for node in graph.graph.nodes if node.target is hints.OVERLAP_INPUT]
    assert [node.args[1] for node in marks] == ["overlap_device_iteration_loop"] * 2
    with pytest.raises(poptorch.Error, match="mode"):
        poptorch.set_overlap_for_input(X, "no_overlap")


def test_overlap_reaches_tensors_of_registered_types(capture) -> None:
    class Box:
        def __init__(self, tensor: torch.Tensor, label: str) -> None:
            self.tensor, self.label = tensor, label

    class BoxParser(poptorch.ICustomArgParser):
        def yieldTensors(self, struct: Box):
            yield struct.tensor

        def reconstruct(self, original_structure: Box, tensor_iterator):
            return Box(next(tensor_iterator), original_structure.label)

    def forward(x: torch.Tensor) -> torch.Tensor:
        (box,) = poptorch.set_overlap_for_output([Box(x + 1, "kept")], OverlapMode.NoOverlap)
        assert box.label == "kept"
        return box.tensor

    poptorch.registerCustomArgParser(Box, BoxParser())
    try:
        graph = capture(forward, X)
    finally:
        poptorch.registerCustomArgParser(Box, None)
    assert [node.target for node in graph.graph.nodes].count(hints.OVERLAP_OUTPUT) == 1

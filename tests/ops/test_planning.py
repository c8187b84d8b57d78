"""Reading hints from graphs."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch
from poptorch import OutputMode, OverlapMode
from poptorch.compiler.passes import planning
from poptorch.compiler.request import capture_settings


def _proportions(capture: Any, function: Any, *inputs: torch.Tensor) -> dict[str, float]:
    graph = capture(function, *inputs).graph
    return {node.target._opname: value for node, value in planning.available_memory(graph).items()}


X = torch.randn(2, 4)


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("mm", lambda x: x @ torch.ones(4, 3)),
        ("addmm", lambda x: F.linear(x, torch.ones(3, 4), torch.ones(3))),
        ("mm", lambda x: F.linear(x.view(2, 1, 4), torch.ones(3, 4)) + torch.ones(3)),
        ("convolution", lambda x: F.conv1d(x.unsqueeze(0), torch.ones(5, 2, 3), torch.ones(5))),
        ("embedding", lambda x: F.embedding(torch.tensor([0, 1]), x)),
        ("gather", lambda x: x.gather(1, torch.tensor([[0], [1]]))),
        ("scatter_add", lambda x: torch.zeros(2, 4).scatter_add(1, torch.tensor([[0], [1]]), x)),
        ("index", lambda x: x[torch.tensor([1, 0])]),
        ("index_select", lambda x: x.index_select(0, torch.tensor([1]))),
    ],
)
def test_the_hint_reaches_the_planned_operation(capture, operator: str, function: Any) -> None:
    assert _proportions(capture, lambda x: poptorch.set_available_memory(function(x), 0.3), X) == {operator: 0.3}


def test_a_split_product_is_planned(capture) -> None:
    mode = poptorch.MatMulSerializationMode.InputChannels
    found = _proportions(
        capture, lambda x: poptorch.set_available_memory(poptorch.serializedMatMul(x, x.T, mode, 2), 0.3), X
    )
    assert found == {"serialized_matmul": 0.3}


def test_the_last_setting_counts_and_others_have_no_effect(capture) -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return poptorch.set_available_memory(poptorch.set_available_memory(x @ x.T, 0.3), 0.7)

    assert _proportions(capture, twice, X) == {"mm": 0.7}
    assert _proportions(capture, lambda x: poptorch.set_available_memory(x.exp(), 0.3), X) == {}


def test_from_a_forward_hook(capture) -> None:
    layer = nn.Linear(4, 4).requires_grad_(False)
    layer.register_forward_hook(lambda module, inputs, output: poptorch.set_available_memory(output, 0.4))
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()

    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, {"weight": w, "bias": b}, (x,))

    assert _proportions(capture, forward, X, weight, bias) == {"addmm": 0.4}


# ---- overlap -----------------------------------------------------------------------------------------------------

ON, OFF = OverlapMode.OverlapAccumulationLoop, OverlapMode.NoOverlap


def _options(tiles: int = 32, mode: OutputMode = OutputMode.All, sharded: bool = True) -> poptorch.Options:
    options = poptorch.Options().outputMode(mode)
    if sharded:
        options.setExecutionStrategy(poptorch.ShardedExecution())
    if tiles:
        options.TensorLocations.numIOTiles(tiles)
    return options


def _check(capture: Any, function: Any, options: Any) -> None:
    graph = capture(function, X, X.clone()).graph
    inputs = {node: node.name for node in graph.nodes if node.op == "placeholder"}
    results = next(iter(reversed(graph.nodes))).args[0]
    planning.check_overlap(
        graph, inputs, results if isinstance(results, (list, tuple)) else [results], capture_settings(options)
    )


def _mark_in(x: torch.Tensor, mode: OverlapMode = ON) -> torch.Tensor:
    return poptorch.set_overlap_for_input(x, mode)


def _mark_out(x: torch.Tensor, mode: OverlapMode = ON) -> torch.Tensor:
    return poptorch.set_overlap_for_output(x, mode)


@pytest.mark.parametrize("mode", [OutputMode.All, OutputMode.Sum])
def test_allowed_overlap(capture, mode: OutputMode) -> None:
    _check(capture, lambda x, y: _mark_out(_mark_in(x) + _mark_in(y)), _options(mode=mode))

    def used_around(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        z = x + y
        marked = _mark_out(z)
        return [z * 2, marked, marked + 1]

    _check(capture, used_around, _options())
    _check(capture, lambda x, y: _mark_out(_mark_in(x, OFF) + y, OFF), _options(0, OutputMode.Final, sharded=False))


def _returned_unmarked(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    z = x + y
    return [_mark_out(z), y, z]


def _marked_twice(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    z = x + y
    return [_mark_out(z), _mark_out(z)]


ONLY_OP = "poptorch.set_overlap_for_input must be the only op applied to an input. This is not the case for input "
SWITCH = (
    "Overlapped IO is not supported with poptorch.PipelinedExecution. If you are using only one IPU, please switch to "
    "poptorch.ShardedExecution."
)
TWICE = (
    "poptorch.set_overlap_for_output cannot be used with a tensor that is returned twice. Please check all returned "
    "tensors including those nested in tuples/lists."
)


def _returned_twice(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    z = _mark_out(x + y)
    return [z, y, z]


@pytest.mark.parametrize(
    ("function", "settings", "phrase"),
    [
        (lambda x, y: _mark_in(x) + x + y, {}, f"{ONLY_OP}0 to the model."),
        (lambda x, y: _mark_in(y) + x + y, {}, f"{ONLY_OP}1 to the model."),
        (lambda x, y: _mark_in(x + 1) + y, {}, "applied on a node which is not a tensor input to the model."),
        (lambda x, y: _mark_out(x + y) + 1, {}, "applied on a node which is not a tensor output to the model."),
        (_returned_twice, {}, TWICE),
        (_returned_unmarked, {"sharded": False}, TWICE),
        (_marked_twice, {"sharded": False}, TWICE),
        (lambda x, y: _mark_in(x) + y, {"sharded": False}, SWITCH),
        (lambda x, y: _mark_in(x) + y, {"tiles": 0}, "No IO tiles allocated. You must allocate at least 32 IO tiles"),
        (lambda x, y: _mark_in(x) + y, {"tiles": 0}, "TensorLocations.numIOTiles"),
        (lambda x, y: _mark_out(x + y), {"mode": OutputMode.Final}, "Unsupported output mode for overlapped IO"),
    ],
)
def test_refused_overlap(capture, function: Any, settings: dict, phrase: str) -> None:
    with pytest.raises(poptorch.Error, match=re.escape(phrase)):
        _check(capture, function, _options(**settings))


def test_tracing_names_the_input(capture) -> None:
    options = _options()
    options.Jit.traceModel(True)
    with pytest.raises(poptorch.Error, match=re.escape(ONLY_OP) + "[a-z]"):
        _check(capture, lambda x, y: _mark_in(x) + x + y, options)

"""Reading the hints in a captured graph: what the planner may use, and which copies may overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx

from poptorch.ambient import CaptureSettings
from poptorch.enums import OutputMode, OverlapMode
from poptorch.errors import createPoptorchError
from poptorch.ops.custom import registry
from poptorch.ops.custom.call import CUSTOM_OP, CUSTOM_OP_GRADIENT
from poptorch.ops.hints import AVAILABLE_MEMORY, HINTS, OVERLAP_INPUT, OVERLAP_OUTPUT
from poptorch.ops.matmul import SERIALIZED_MATMUL
from poptorch.placement import PipelinedExecution, ShardedExecution

aten = torch.ops.aten

_PLANNED = {
    *("convolution", "mm", "addmm", "bmm", "baddbmm", "linear", "mv", "addmv", "dot", "lstm", "mkldnn_rnn_layer"),
    *("embedding", "_embedding_bag", "index", "index_select", "gather", "index_put", "index_add"),
    *("_index_put_impl", "scatter", "scatter_add", "scatter_reduce"),
}
"""ATen operations that have a plan with a memory budget."""

_THROUGH = {
    *("view", "_unsafe_view", "reshape", "transpose", "t", "permute", "expand", "squeeze", "unsqueeze"),
    *("slice", "select", "clone", "detach", "alias", "_to_copy", "add", "cat", "stack"),
}
"""What may lie between a planned operation and the value that a user sees of it: layouts, and a bias."""


def available_memory(graph: fx.Graph) -> dict[fx.Node, float]:
    """The proportion set for each operation that has a plan; of several settings the last one counts.

    A hint on a compound result (a bias addition, the views around a product) reaches the operation
    underneath; a hint on anything else has no effect.
    """
    proportions: dict[fx.Node, float] = {}
    for node in graph.nodes:
        if node.target is AVAILABLE_MEMORY:
            planned = _planned_producer(node.args[0])
            if planned is not None:
                proportions[planned] = float(node.args[1])
    return proportions


def custom_cycles(graph: fx.Graph) -> dict[fx.Node, float]:
    """The cycles that the authors of custom operators, and of their gradients, estimate for each call in the graph."""
    estimates = {node: _estimate(node) for node in graph.nodes if node.target in (CUSTOM_OP, CUSTOM_OP_GRADIENT)}
    return {node: cycles for node, cycles in estimates.items() if cycles is not None}


def _estimate(node: fx.Node) -> float | None:
    inputs, *identity = cast(tuple[Any, ...], fx.map_arg(node.args, lambda operand: operand.meta["val"]))
    operator = registry.instance(*identity[:4])
    if node.target is CUSTOM_OP_GRADIENT:
        operator = operator.gradient(*identity[4:])
    return operator.cycles(inputs)


def _planned_producer(value: object) -> fx.Node | None:
    queue, seen = [value], set()
    while queue:
        node = queue.pop(0)
        if not isinstance(node, fx.Node) or node in seen:
            continue
        seen.add(node)
        name = _operator_name(node)
        if name in _PLANNED or node.target is SERIALIZED_MATMUL:
            return node
        if name in _THROUGH or node.target in HINTS or name == "getitem":
            queue.extend(node.all_input_nodes)
    return None


def _operator_name(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._opname if target.namespace == "aten" else ""
    return getattr(target, "__name__", "")


def check_overlap(
    graph: fx.Graph, inputs: Mapping[fx.Node, str], results: Sequence[object], settings: CaptureSettings
) -> None:
    """Refuse overlap marks that make no sense, and settings that do not allow them.

    ``inputs`` names the placeholders that are model inputs; ``results`` are the values returned to the user,
    each as often as it is returned. Call it on the graph as captured, before passes move anything.
    """
    marks = [node for node in graph.nodes if node.target in (OVERLAP_INPUT, OVERLAP_OUTPUT)]
    for node in marks:
        if node.target is OVERLAP_INPUT:
            _check_input_mark(node, inputs, settings.traced)
        else:
            _check_output_mark(node, results)
    for node in marks:
        if node.args[1] != OverlapMode.NoOverlap.value:
            _check_settings(node, settings)


def _check_input_mark(node: fx.Node, inputs: Mapping[fx.Node, str], traced: bool) -> None:
    source = node.args[0]
    if not isinstance(source, fx.Node) or source not in inputs:
        raise createPoptorchError(
            "poptorch.set_overlap_for_input applied on a node which is not a tensor input to the model. Call "
            "it first in forward(), on the argument itself."
        )
    if any(user is not node for user in source.users):
        label, name = list(inputs).index(source), inputs[source]
        raise createPoptorchError(
            "poptorch.set_overlap_for_input must be the only op applied to an input. This is not the case for input "
            f"{name if traced else label} to the model. Use the result of set_overlap_for_input instead of {name} "
            "everywhere."
        )


def _check_output_mark(node: fx.Node, results: Sequence[object]) -> None:
    if all(before_detaching(result) is not node for result in results):
        raise createPoptorchError(
            "poptorch.set_overlap_for_output applied on a node which is not a tensor output to the model. "
            "Return its result from forward()."
        )
    if sum(_unmarked(result) is _unmarked(node) for result in results) > 1:
        raise createPoptorchError(
            "poptorch.set_overlap_for_output cannot be used with a tensor that is returned twice. Please check all "
            "returned tensors including those nested in tuples/lists. The tensor without the mark counts, too."
        )


def _unmarked(value: object) -> object:
    """The value that a mark, or a chain of them, was put on."""
    value = before_detaching(value)
    while isinstance(value, fx.Node) and value.target is OVERLAP_OUTPUT:
        value = before_detaching(value.args[0])
    return value


def before_detaching(result: object) -> object:
    """What the user returned: in training, results leave the graph of gradients behind him."""
    while isinstance(result, fx.Node) and result.target is torch.ops.aten.detach.default:
        result = result.args[0]
    return result


def _check_settings(node: fx.Node, settings: CaptureSettings) -> None:
    strategy = settings.strategy
    if isinstance(strategy, PipelinedExecution) and not isinstance(strategy, ShardedExecution):
        raise createPoptorchError(
            "Overlapped IO is not supported with poptorch.PipelinedExecution. If you are using only one IPU, "
            "please switch to poptorch.ShardedExecution. For example: "
            "options.setExecutionStrategy(poptorch.ShardedExecution())."
        )
    if not settings.io_tiles:
        raise createPoptorchError(
            "No IO tiles allocated. You must allocate at least 32 IO tiles using "
            "poptorch.Options().TensorLocations.numIOTiles."
        )
    mode = settings.output_mode
    if node.target is OVERLAP_OUTPUT and mode not in (OutputMode.All, OutputMode.Sum):
        raise createPoptorchError(
            f"Unsupported output mode for overlapped IO: {mode}. Use poptorch.OutputMode.All or "
            "poptorch.OutputMode.Sum."
        )

"""Equal layers are compiled once: a graph whose operations repeat becomes calls of a few kernels.

Fusion stops where one kernel ends and the next begins, so only deep models are taken apart: there compiling every
layer anew would cost more than the fusion between layers gains.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from poptorch.host.native.inductor import Compiled, Kernel, Target, compile_graph, plain
from poptorch.ops.traits import Kind, traits_of

LEAST_REPEATS = 6
_LEAST_OPERATIONS = 8


def compile_outlined(
    graph_module: fx.GraphModule,
    fakes: Sequence[torch.Tensor],
    target: Target,
    *,
    is_backward: bool = False,
    fixed: int | None = None,
    owned: Collection[int] = (),
) -> Compiled:
    """Like :func:`compile_graph`, with one kernel for all layers that are equal."""
    repeat = find_repeat(graph_module.graph)
    if repeat is None:
        return compile_graph(graph_module, fakes, target, is_backward=is_backward, fixed=fixed, owned=owned)
    return _Outline(graph_module, repeat, target, is_backward).compile()


# -- finding what repeats ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repeat:
    """Operations ``start`` to ``start + period * count``: equal blocks, one after the other."""

    start: int
    period: int
    count: int


def find_repeat(graph: fx.Graph) -> Repeat | None:
    """The longest stretch of at least :data:`LEAST_REPEATS` equal blocks of operations; ``None`` if there is none."""
    operations = _operations(graph)
    if any(traits_of(node).is_aten and traits_of(node).kind is Kind.CONVOLUTION for node in operations):
        return None  # their neighbours should share their layout, which is fixed between kernels
    known: dict[Any, int] = {}
    marks = np.array([known.setdefault(_mark(node), len(known)) for node in operations])
    best: Repeat | None = None
    for period in range(_LEAST_OPERATIONS, len(marks) // LEAST_REPEATS + 1):
        start, length = _longest_run(marks[:-period] == marks[period:])
        count = (length + period) // period
        if count >= LEAST_REPEATS and (best is None or count * period > best.count * best.period):
            best = Repeat(start, period, count)
    return None if best is None else _verified(operations, best)


def _operations(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in graph.nodes if n.op == "call_function"]


def _mark(node: fx.Node) -> Any:
    """What two operations have in common that may stand for each other."""
    arguments = fx.map_arg((node.args, node.kwargs), lambda n: _kind(n))
    return node.target, _kind(node), repr(arguments), traits_of(node).is_in_place


def _kind(node: fx.Node) -> Any:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}{value.stride()}"
    return "several"


def _longest_run(equal: np.ndarray) -> tuple[int, int]:
    """Where the longest stretch of true values starts, and how long it is."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], equal.astype(np.int8), [0]))))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(lengths.argmax())
    return int(edges[2 * longest]), int(lengths[longest])


def _verified(operations: Sequence[fx.Node], repeat: Repeat) -> Repeat | None:
    """The blocks whose data flow is the same; where they begin within the period is tried until it fits."""
    for shift in range(repeat.period):
        start = repeat.start + shift
        count = repeat.count if start + repeat.period * repeat.count <= len(operations) else repeat.count - 1
        blocks = [operations[start + i * repeat.period :][: repeat.period] for i in range(count)]
        blocks = [b for b in blocks if len(b) == repeat.period]
        flows = [_flow(b) for b in blocks]
        # The first and the last layer may be wired differently.
        for first in (0, 1):
            same = 0
            while first + same < len(flows) and flows[first + same] == flows[first]:
                same += 1
            chosen = blocks[first : first + same]
            writes = any(traits_of(node).is_in_place for node in chosen[0])
            if same >= LEAST_REPEATS and not writes and all(map(_hands_out_tensors, chosen)):
                return Repeat(start + first * repeat.period, repeat.period, same)
    return None


def _hands_out_tensors(block: Sequence[fx.Node]) -> bool:
    """Whether no operation with several results is cut off from those who pick one."""
    inside = set(block)
    several = [n for n in block if not isinstance(n.meta.get("val"), torch.Tensor)]
    cut = [n for n in block if n.target is operator.getitem and n.args[0] not in inside]
    return not cut and all(user in inside for n in several for user in n.users)


def _flow(block: Sequence[fx.Node]) -> tuple[Any, ...]:
    """Where each operand comes from: an operation of the block, or the n-th value from outside."""
    inside = {node: index for index, node in enumerate(block)}
    outside: dict[fx.Node, int] = {}
    flow: list[Any] = []
    for node in block:
        for operand in node.all_input_nodes:
            if operand in inside:
                flow.append(inside[operand])
            else:
                flow.append((outside.setdefault(operand, len(outside)), _kind(operand)))
    return tuple(flow)


# -- compiling -----------------------------------------------------------------------------------------------------


@dataclass
class _Call:
    kernel: Kernel
    inputs: list[int]
    outputs: list[int]
    last_uses: list[int]
    """Inputs that are not needed any more."""

    unused: list[int]
    """Outputs that are not needed: another block's are."""


class _Outline:
    """A graph as calls of kernels on numbered values."""

    def __init__(self, graph_module: fx.GraphModule, repeat: Repeat, target: Target, is_backward: bool) -> None:
        self._module = graph_module
        self._target = target
        self._is_backward = is_backward
        operations = _operations(graph_module.graph)
        end = repeat.start + repeat.period * repeat.count
        blocks = [operations[i : i + repeat.period] for i in range(repeat.start, end, repeat.period)]
        around = [p for p in (operations[: repeat.start], operations[end:]) if p]
        self._segments = [*around[: bool(repeat.start)], *blocks, *around[bool(repeat.start) :]]
        self._is_block = [repeat.start <= p < end for p in self._starts()]
        self._result = graph_module.graph.output_node()
        self._needed = self._used_outside()

    def _starts(self) -> Iterator[int]:
        """The position of each segment's first operation."""
        position = 0
        for segment in self._segments:
            yield position
            position += len(segment)

    def compile(self) -> Compiled:
        nodes = list(self._module.graph.nodes)
        number = {node: index for index, node in enumerate(nodes)}
        outputs = list(self._result.args[0])  # type: ignore[arg-type]
        calls = list(self._calls(number))
        _note_deaths(calls, {number[o] for o in outputs if isinstance(o, fx.Node)})
        placeholders = [number[n] for n in nodes if n.op == "placeholder"]
        constants = {number[n]: getattr(self._module, str(n.target)) for n in nodes if n.op == "get_attr"}
        results = [number[o] if isinstance(o, fx.Node) else None for o in outputs]
        run = _driver(calls, placeholders, constants, results, len(nodes))
        strides = [tuple(o.meta["val"].stride()) if isinstance(o, fx.Node) else None for o in outputs]
        return Compiled(run, strides)

    def _used_outside(self) -> list[list[int]]:
        """For each segment the positions of the operations that others need; equal blocks hand out the same ones."""
        result = []
        for segment in self._segments:
            inside = set(segment)
            result.append([i for i, n in enumerate(segment) if any(user not in inside for user in n.users)])
        union = sorted({i for kept, block in zip(result, self._is_block, strict=True) if block for i in kept})
        return [union if block else kept for kept, block in zip(result, self._is_block, strict=True)]

    def _calls(self, number: dict[fx.Node, int]) -> Iterator[_Call]:
        shared: Kernel | None = None
        for segment, kept, is_block in zip(self._segments, self._needed, self._is_block, strict=True):
            inside = set(segment)
            inputs = list(dict.fromkeys(o for n in segment for o in n.all_input_nodes if o not in inside))
            outputs = [segment[i] for i in kept]
            kernel = shared if is_block and shared is not None else self._kernel(segment, inputs, outputs)
            if is_block:
                shared = kernel
            yield _Call(kernel, [number[i] for i in inputs], [number[o] for o in outputs], [], [])

    def _kernel(self, segment: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> Kernel:
        graph = fx.Graph()
        values: dict[fx.Node, fx.Node] = {}
        for index, node in enumerate(inputs):
            values[node] = graph.placeholder(f"input_{index}")
            values[node].meta = dict(node.meta)
        for node in segment:
            values[node] = graph.node_copy(node, values.__getitem__)
        graph.output(tuple(values[o] for o in outputs))
        module = plain(fx.GraphModule(self._module, graph))
        fakes = [node.meta["val"] for node in inputs]
        return compile_graph(module, fakes, self._target, is_backward=self._is_backward).run


def _note_deaths(calls: Sequence[_Call], results: set[int]) -> None:
    alive = set(results)
    for call in reversed(calls):
        call.unused = [i for i in call.outputs if i not in alive]
        call.last_uses = [i for i in call.inputs if i not in alive]
        alive.update(call.inputs)


def _driver(
    calls: Sequence[_Call],
    placeholders: Sequence[int],
    constants: dict[int, Any],
    results: Sequence[int | None],
    size: int,
) -> Callable[[list[torch.Tensor]], Sequence[Any]]:
    def run(flat: list[torch.Tensor]) -> Sequence[Any]:
        values: list[Any] = [None] * size
        for index, constant in constants.items():
            values[index] = constant
        for index, tensor in zip(placeholders, flat, strict=True):
            values[index] = tensor
        flat.clear()
        for call in calls:
            operands = [values[i] for i in call.inputs]
            for index in call.last_uses:
                values[index] = None  # the kernel is the only owner, and lets go of it as early as it can
            made = call.kernel(operands)
            for index, value in zip(call.outputs, made, strict=True):
                values[index] = value
            del made
            for index in call.unused:
                values[index] = None
        return [None if i is None else values[i] for i in results]

    return run

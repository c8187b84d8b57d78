"""Equal layers are compiled once: a graph whose operations repeat becomes calls of a few kernels.

Fusion stops where one kernel ends and the next begins, so only deep models are taken apart: there compiling every
layer anew would cost more than the fusion between layers gains.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from poptorch.host.native.inductor import Compiled, Target, compile_graph, decompose, plain, replay
from poptorch.ops.traits import OpKind, traits_of
from poptorch.program.finality import last_reads
from poptorch.program.graphs import memory_root

LEAST_REPEATS = 6
_LEAST_OPERATIONS = 8


Buckets = Sequence[Sequence[int]]
"""Positions of outputs that are handed out together, before the graph is done."""


@dataclass(frozen=True)
class RepeatedPart:
    """One call of a kernel of a graph; values are numbers of the graph's nodes."""

    kernel: Compiled
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    reuses: tuple[int, ...] = ()
    """Inputs whose memory is read here for the last time, and belongs to the graph."""

    buckets: tuple[int, ...] = ()
    """The buckets that are final after it."""


@dataclass(frozen=True)
class Outline:
    """A graph as calls of kernels."""

    parts: list[RepeatedPart]
    inputs: list[int]
    outputs: list[int | None]
    constants: Mapping[int, Any]
    strides: list[tuple[int, ...] | None]
    """How the outputs lie in memory."""


def outlined(
    graph_module: fx.GraphModule,
    fakes: Sequence[torch.Tensor],
    target: Target,
    *,
    is_backward: bool = False,
    fixed: int | None = None,
    owned: Collection[int] = (),
    buckets: Buckets = (),
) -> Outline:
    """A graph as one kernel, or with one for all layers that are equal.

    With ``buckets``, it is cut wherever the outputs of a bucket are final.
    """
    repeat = find_repeat(graph_module.graph)
    if repeat is None and not buckets:
        compiled = compile_graph(graph_module, fakes, target, is_backward=is_backward, fixed=fixed, owned=owned)
        return in_one_piece(graph_module, compiled, owned)
    segments = _Segments.of(graph_module.graph, repeat, buckets)
    return _Outline(graph_module, segments, target, is_backward, owned).compile(buckets)


def in_one_piece(graph_module: fx.GraphModule, compiled: Compiled, owned: Collection[int]) -> Outline:
    """A graph that one kernel computes."""
    outputs: Sequence[Any] = graph_module.graph.output_node().args[0]  # type: ignore[assignment]
    count = len(graph_module.graph.find_nodes(op="placeholder"))
    made = tuple(range(count, count + len(outputs)))
    part = RepeatedPart(compiled, tuple(range(count)), made, tuple(owned))
    return Outline([part], list(range(count)), list(made), {}, compiled.strides)


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
    if any(traits_of(node).is_aten and traits_of(node).kind is OpKind.CONVOLUTION for node in operations):
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
class _Segments:
    """A graph's operations, divided: each segment is a kernel of its own."""

    operations: list[list[fx.Node]]
    is_block: list[bool]
    """Whether a segment is one of the equal blocks."""

    hands: list[list[int]]
    """Which buckets are handed out after each segment."""

    @staticmethod
    def of(graph: fx.Graph, repeat: Repeat | None, buckets: Buckets) -> _Segments:
        operations = _operations(graph)
        block_starts = [] if repeat is None else [repeat.start + i * repeat.period for i in range(repeat.count)]
        ends = {start + repeat.period for start in block_starts} if repeat is not None else set()
        final = [max(1, _beside_results(operations, end)) for end in _final(graph, operations, buckets)]
        inside = {i for s in block_starts for i in range(s + 1, s + (0 if repeat is None else repeat.period))}
        cuts = sorted({0, len(operations), *block_starts, *ends, *(end for end in final if end not in inside)})
        hands: list[list[int]] = [[] for _ in cuts[1:]]
        for number, end in enumerate(final):
            hands[next(i for i, cut in enumerate(cuts[1:]) if cut >= end)].append(number)
        return _Segments(
            [operations[a:b] for a, b in itertools.pairwise(cuts)], [a in block_starts for a in cuts[:-1]], hands
        )


def _final(graph: fx.Graph, operations: Sequence[fx.Node], buckets: Buckets) -> Iterator[int]:
    """After how many operations each bucket, and all before it, are final."""
    last, nodes = last_reads(graph), list(graph.nodes)
    position = {node: i for i, node in enumerate(nodes)}
    outputs: Sequence[fx.Node] = graph.output_node().args[0]  # type: ignore[assignment]
    counted = list(itertools.accumulate(node.op == "call_function" for node in nodes))
    assert counted[-1] == len(operations)
    latest = 0
    for bucket in buckets:
        latest = max(latest, *(max(position[outputs[i]], last[memory_root(outputs[i])]) for i in bucket))
        yield counted[latest]


def _beside_results(operations: Sequence[fx.Node], end: int) -> int:
    """The next place after ``end`` where no operation with several results is cut off from those who pick one."""
    place = {node: i for i, node in enumerate(operations)}
    for node in operations[:end]:
        if not isinstance(node.meta.get("val"), torch.Tensor):
            end = max(end, *(place[user] + 1 for user in node.users if user in place), end)
    return end


class _Outline:
    """A graph as calls of kernels on numbered values."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        segments: _Segments,
        target: Target,
        is_backward: bool,
        owned: Collection[int],
    ) -> None:
        self._module = graph_module
        self._target = target
        self._is_backward = is_backward
        self._segments, self._is_block, self._hands = segments.operations, segments.is_block, segments.hands
        self._owned = owned
        self._result = graph_module.graph.output_node()
        self._needed = self._used_outside()
        self._made: dict[fx.Node, torch.Tensor] = {}
        """How values between kernels lie in memory, where a kernel chose it."""

    def compile(self, buckets: Buckets) -> Outline:
        nodes = list(self._module.graph.nodes)
        number = {node: index for index, node in enumerate(nodes)}
        outputs = list(self._result.args[0])  # type: ignore[arg-type]
        return Outline(
            list(self._parts(number)),
            [number[n] for n in nodes if n.op == "placeholder"],
            [number[o] if isinstance(o, fx.Node) else None for o in outputs],
            {number[n]: getattr(self._module, str(n.target)) for n in nodes if n.op == "get_attr"},
            [tuple(o.meta["val"].stride()) if isinstance(o, fx.Node) else None for o in outputs],
        )

    def _used_outside(self) -> list[list[int]]:
        """For each segment the positions of the operations that others need; equal blocks hand out the same ones."""
        result = []
        for segment in self._segments:
            inside = set(segment)
            result.append([i for i, n in enumerate(segment) if any(user not in inside for user in n.users)])
        union = sorted({i for kept, block in zip(result, self._is_block, strict=True) if block for i in kept})
        return [union if block else kept for kept, block in zip(result, self._is_block, strict=True)]

    def _parts(self, number: dict[fx.Node, int]) -> Iterator[RepeatedPart]:
        shared: Compiled | None = None
        segments = zip(self._segments, self._needed, self._is_block, self._hands, strict=True)
        for segment, kept, is_block, hands in segments:
            inside = set(segment)
            inputs = list(dict.fromkeys(o for n in segment for o in n.all_input_nodes if o not in inside))
            outputs = [segment[i] for i in kept]
            dying: list[int] = []
            if any(self._is_block):
                kernel = shared if is_block and shared is not None else self._kernel(segment, inputs, outputs)
            else:
                dying = self._dying(segment, inputs)
                kernel, outputs = self._piece(segment, inputs, outputs, dying)
            if is_block:
                shared = kernel
            reuses = tuple(number[inputs[at]] for at in dying)
            read, made = (tuple(number[n] for n in nodes) for nodes in (inputs, outputs))
            yield RepeatedPart(kernel, read, made, reuses, tuple(hands))

    def _kernel(self, segment: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> Compiled:
        fakes = [node.meta["val"] for node in inputs]
        module = self._graph_of(segment, inputs, outputs)
        return compile_graph(module, fakes, self._target, is_backward=self._is_backward)

    def _piece(
        self,
        segment: Sequence[fx.Node],
        inputs: Sequence[fx.Node],
        outputs: Sequence[fx.Node],
        dying: Sequence[int],
    ) -> tuple[Compiled, list[fx.Node]]:
        """A kernel that runs once: how values that go to the next one lie in memory is left to the compiler."""
        returned = set(self._result.all_input_nodes)
        outputs = sorted(outputs, key=lambda o: o not in returned)
        fakes = [self._made.get(node, node.meta["val"]) for node in inputs]
        function = replay(self._graph_of(segment, inputs, outputs))
        module = decompose(lambda *flat: tuple(function(*flat)), fakes)
        compiled = compile_graph(
            module,
            fakes,
            self._target,
            is_backward=self._is_backward,
            fixed=sum(o in returned for o in outputs),
            owned=dying,
        )
        for node, strides in zip(outputs, compiled.strides, strict=True):
            if node not in returned and strides is not None:
                value = node.meta["val"]
                self._made[node] = torch.empty_strided(value.shape, strides, dtype=value.dtype)
        return compiled, outputs

    def _dying(self, segment: Sequence[fx.Node], inputs: Sequence[fx.Node]) -> list[int]:
        """The inputs whose memory is read here for the last time, and belongs to this graph."""
        nodes = list(self._module.graph.nodes)
        last = last_reads(self._module.graph)
        returned = {memory_root(o) for o in self._result.all_input_nodes}
        placeholders = [n for n in nodes if n.op == "placeholder"]
        foreign = {n for i, n in enumerate(placeholders) if i not in self._owned}
        roots = [memory_root(node) for node in inputs]
        inside = set(segment)
        return [
            i
            for i, root in enumerate(roots)
            if nodes[last[root]] in inside
            and root not in returned | foreign
            and root.op != "get_attr"
            and roots.count(root) == 1
        ]

    def _graph_of(
        self, segment: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
    ) -> fx.GraphModule:
        graph = fx.Graph()
        values: dict[fx.Node, fx.Node] = {}
        for index, node in enumerate(inputs):
            values[node] = graph.placeholder(f"input_{index}")
            values[node].meta = dict(node.meta)
        for node in segment:
            values[node] = graph.node_copy(node, values.__getitem__)
        graph.output(tuple(values[o] for o in outputs))
        return plain(fx.GraphModule(self._module, graph))

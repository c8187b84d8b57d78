"""Cutting a Program into the forward and backward programs of its parts: pipeline stages, shards or phases.

A *slot* is one of these programs. With ``P`` parts, slot ``p`` is the forward of part ``p`` and slot ``2P - 1 - p`` its
backward, so that slots are numbered in an order in which they can run. What one slot computes and another one needs
becomes an explicit edge: an output of the first program, an input of the second.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from poptorch.ambient import Placement
from poptorch.program.graphs import insert_call, is_view
from poptorch.program.opinfo import OpInfo, Sweep, has_info, info_of, set_info
from poptorch.program.outputs import Output, OutputKind
from poptorch.program.program import Port, Program, Role, is_write, value_of

aten = torch.ops.aten


class Division(enum.Enum):
    """What the parts of a model are."""

    STAGES = "pipeline stages"
    """Numbered by the strategy; neighbours on one IPU are one part."""

    SHARDS = "shards"
    """One per visit to an IPU."""

    PHASES = "phases"
    """One per visit to an IPU within a phase."""


@dataclass(frozen=True)
class Part:
    """A piece of the model that runs on one IPU without interruption."""

    ipu: int
    stage: int
    phase: int

    def __str__(self) -> str:
        return f"stage {self.stage}, phase {self.phase}, IPU {self.ipu}"


@dataclass
class Partition:
    """The parts of a program, in the order of their forward passes, and the slot of every operation."""

    parts: list[Part]
    slots: dict[fx.Node, int] = field(default_factory=dict)

    @property
    def forwards(self) -> int:
        """The number of forward slots; higher ones are backward."""
        return len(self.parts)

    def part_of(self, slot: int) -> int:
        """The part that a slot belongs to."""
        return slot if slot < len(self.parts) else 2 * len(self.parts) - 1 - slot

    def is_backward(self, slot: int) -> bool:
        """Whether the slot is the backward pass of its part."""
        return slot >= len(self.parts)

    def of_copy(self, copied: Mapping[fx.Node, fx.Node]) -> Partition:
        """The same parts for a copy of the program, given the new node of each old one."""
        return Partition(list(self.parts), {copied[node]: slot for node, slot in self.slots.items()})


# -- assigning operations to slots ---------------------------------------------------------------------------------


def partition(program: Program, division: Division) -> Partition:
    """Give each operation the slot of its annotation, or a later one where its operands come later."""
    operations = [n for n in program.operations() if not is_write(n)]
    forward = [n for n in operations if info_of(n).sweep is Sweep.FORWARD]
    if division is Division.STAGES:
        segments = _stages(program)
        find: Callable[[Placement, _Segment | None], _Segment] = _Fixed(segments)
    else:
        segments = []
        find = _Greedy(segments, by_phase=division is Division.PHASES)
    placed: dict[fx.Node, _Segment] = {}
    for node in forward:
        producers = [placed[o] for o in node.all_input_nodes if o in placed]
        latest = max(producers, key=lambda s: s.position, default=None)
        if latest is not None and (node.target is operator.getitem or not has_info(node)):
            placed[node] = latest
        else:
            placed[node] = find(info_of(node).placement, latest)
    result = Partition([s.part for s in segments] or [Part(0, 0, 0)])
    for node in operations:
        if node.target is operator.getitem:  # only tensors cross from slot to slot, never the tuple that holds them
            result.slots[node] = result.slots[node.all_input_nodes[0]]
            continue
        own = placed[node].position if node in placed else _backward_slot(node, result, segments)
        # A forward operation cannot run before a value that only the backward pass produces.
        result.slots[node] = max([own, *(result.slots.get(o, 0) for o in node.all_input_nodes)])
    _place_writes(program, result)
    return result


@dataclass
class _Segment:
    part: Part
    keys: set[tuple[int, int, int]]
    position: int = 0


def _key(placement: Placement) -> tuple[int, int, int]:
    return placement.stage, placement.phase, placement.ipu


def _stages(program: Program) -> list[_Segment]:
    """Parts of a pipeline: the stages in order, neighbours on the same IPU merged."""
    placements: dict[tuple[int, int, int], Placement] = {}
    for node in program.operations():
        if has_info(node) and not is_write(node):
            placement = info_of(node).placement
            placements.setdefault(_key(placement), placement)
    segments: list[_Segment] = []
    for key, placement in sorted(placements.items(), key=lambda item: item[0][0]):
        if segments and segments[-1].part.ipu == placement.ipu:
            segments[-1].keys.add(key)
        else:
            part = Part(placement.ipu, placement.stage, placement.phase)
            segments.append(_Segment(part, {key}, len(segments)))
    return segments or [_Segment(Part(0, 0, 0), set())]


class _Fixed:
    """Finds the segment of a placement among given ones."""

    def __init__(self, segments: list[_Segment]) -> None:
        self._segments = segments
        self._by_key = {key: segment for segment in segments for key in segment.keys}

    def __call__(self, placement: Placement, latest: _Segment | None) -> _Segment:
        # Copies of what passes through the model, input to output, are in no stage of the user's.
        own = self._by_key.get(_key(placement), self._segments[0])
        return latest if latest is not None and latest.position > own.position else own


class _Greedy:
    """Finds the first segment on the right IPU that is not too early, or opens a new one there."""

    def __init__(self, segments: list[_Segment], by_phase: bool) -> None:
        self._segments = segments
        self._by_phase = by_phase

    def __call__(self, placement: Placement, latest: _Segment | None) -> _Segment:
        first = latest.position if latest is not None else 0
        phase = placement.phase if self._by_phase else 0
        for segment in self._segments[first:]:
            if segment.part.ipu == placement.ipu and segment.part.phase == phase:
                segment.keys.add(_key(placement))
                return segment
        phase = max(phase, latest.part.phase if latest is not None else 0)
        where = next((s.position for s in self._segments if s.part.phase > phase), len(self._segments))
        segment = _Segment(Part(placement.ipu, placement.stage, phase), {_key(placement)})
        self._segments.insert(where, segment)
        for position, existing in enumerate(self._segments):
            existing.position = position
        return segment


def _backward_slot(node: fx.Node, partition: Partition, segments: list[_Segment]) -> int:
    """The first backward slot of the node's placement that its operands allow."""
    earliest = max((partition.slots.get(o, 0) for o in node.all_input_nodes), default=0)
    last = 2 * len(partition.parts) - 1
    placement = info_of(node).placement
    own = [
        last - s.position
        for s in segments
        if s.part.ipu == placement.ipu and _key(placement) in s.keys and last - s.position >= earliest
    ]
    return min(own, default=max(earliest, len(partition.parts)))


def _place_writes(program: Program, partition: Partition) -> None:
    """A write into a buffer or an input runs where the new value is made."""
    for node in program.operations():
        if is_write(node):
            source = node.args[1]
            assert isinstance(source, fx.Node)
            partition.slots[node] = partition.slots.get(source, 0)


# -- state that is written -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Carried:
    """A buffer that one slot reads and a later one writes: the next micro-batch's read waits for the write."""

    name: str
    reader: int
    writer: int


def isolate_writes(program: Program, partition: Partition) -> list[Carried]:
    """Where several slots use a value that is written, all of them use a copy that the first one makes.

    Without it, a slot would see what the same micro-batch, or the next one, already wrote.
    """
    carried = []
    writes = {n.args[0]: n for n in program.operations() if is_write(n)}
    for node, port in program.placeholders():
        write = writes.get(node)
        if write is None:
            continue
        readers = [u for u in node.users if u is not write and u.op != "output"]
        slots = {partition.slots[u] for u in readers} | {partition.slots[write]}
        if len(slots) == 1 and not _escapes(node, partition):
            continue
        first = min(slots)
        begin = next(program.operations())
        copy = insert_call(program, begin, aten.clone.default, (node,), begin)
        part = partition.parts[partition.part_of(first)]
        set_info(copy, OpInfo(Placement(part.stage, part.phase, part.ipu)))
        partition.slots[copy] = first
        for reader in readers:
            reader.replace_input_with(node, copy)
        if partition.slots[write] != first and port.role is not Role.INPUT:
            carried.append(Carried(port.name, first, partition.slots[write]))
    return carried


def _escapes(node: fx.Node, partition: Partition) -> bool:
    """Whether a view of the port's own memory leaves the slot that reads it."""
    for user in node.users:
        if is_view(user) and user.args[0] is node:
            slot = partition.slots[user]
            if any(partition.slots.get(u, slot) != slot for u in user.users) or _escapes(user, partition):
                return True
    return False


# -- cutting -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edge:
    """A value that one slot produces and others consume; it is kept until the last of them has it."""

    name: str
    producer: int
    consumers: tuple[int, ...]
    num_bytes: int


@dataclass
class StageProgram:
    """The program of one slot, and what its ports and outputs are in terms of the whole program.

    The program's inputs are ``inputs``, then ``receives``. Its outputs say their kind; ``sends``, ``results`` and
    ``anchors`` say of those kinds which ones they are.
    """

    slot: int
    part: int
    backward: bool
    program: Program
    inputs: list[int]
    """Positions of the model inputs that it reads."""

    receives: list[int]
    """Edges that it consumes."""

    sends: list[int]
    results: list[int]
    """Positions, among the model's results, of those computed here."""

    anchors: list[int]
    after: list[int]
    """Slots of the same micro-batch that must be done before."""

    @property
    def gradients(self) -> list[str]:
        """Parameters whose gradients are computed here."""
        return self.program.gradients

    @property
    def label(self) -> str:
        """For people: ``forward of part 0``."""
        return f"{'backward' if self.backward else 'forward'} of part {self.part}"


@dataclass
class Cut:
    """A program in pieces."""

    partition: Partition
    stages: list[StageProgram]
    edges: list[Edge]
    carried: list[Carried]

    def __str__(self) -> str:
        lines = []
        for stage in self.stages:
            count = sum(1 for _ in stage.program.operations())
            received = sum(self.edges[e].num_bytes for e in stage.receives)
            lines.append(
                f"{stage.label} ({self.partition.parts[stage.part]}): {count} operations, "
                f"receives {len(stage.receives)} values ({received} bytes), sends {len(stage.sends)}"
            )
        return "\n".join(lines)


def split(program: Program, partition: Partition) -> Cut:
    """One program per slot that has anything to do."""
    carried = isolate_writes(program, partition)
    slots = partition.slots
    members: dict[int, list[fx.Node]] = {}
    for node in program.operations():
        members.setdefault(slots[node], []).append(node)
    members = dict(sorted(members.items()))
    crossing = _crossing(program, slots)
    numbers = {node: index for index, (node, _) in enumerate(crossing)}
    edges = [
        Edge(node.name, slots[node], consumers, value_of(node).numel() * value_of(node).element_size())
        for node, consumers in crossing
    ]
    stages = [_Cutter(program, partition, slot, nodes, numbers).cut() for slot, nodes in members.items()]
    _add_order(stages, edges, program, partition)
    return Cut(partition, stages, edges, carried)


def _crossing(program: Program, slots: dict[fx.Node, int]) -> list[tuple[fx.Node, tuple[int, ...]]]:
    """The values used in other slots than their own, with these slots."""
    result = []
    for node in program.operations():
        consumers = {slots[u] for u in node.users if u in slots} - {slots[node]}
        if consumers:
            result.append((node, tuple(sorted(consumers))))
    return result


def _add_order(
    stages: Iterable[StageProgram], edges: list[Edge], program: Program, partition: Partition
) -> None:
    """What must run before what within a micro-batch: data, and operations that act on the world in program order."""
    acting = _acting_slots(program, partition)
    for stage in stages:
        before = {edges[e].producer for e in stage.receives}
        if stage.slot in acting:
            before |= {s for s in acting if s < stage.slot}
        stage.after = sorted(before)


def _acting_slots(program: Program, partition: Partition) -> set[int]:
    return {
        partition.slots[n] for n in program.operations() if not is_write(n) and n.is_impure(impure_random=False)
    }


_PORT_ORDER = (Role.PARAMETER, Role.BUFFER, Role.INPUT, Role.LOSS_SCALE, Role.CONSTANT)
"""The ports of a program are grouped by role; received values are inputs behind those of the model."""


class _Cutter:
    """Builds the program of one slot."""

    def __init__(
        self, program: Program, partition: Partition, slot: int, nodes: list[fx.Node], numbers: dict[fx.Node, int]
    ) -> None:
        self._program = program
        self._partition = partition
        self._slot = slot
        self._nodes = nodes
        self._numbers = numbers
        self._graph = fx.Graph()
        self._copied: dict[fx.Node, fx.Node] = {}
        self._ports: list[Port] = []

    def cut(self) -> StageProgram:
        inside = set(self._nodes)
        outside = {o: None for n in self._nodes for o in n.all_input_nodes if o not in inside}
        used_ports = [(n, p) for n, p in self._program.placeholders() if n in outside]
        received = [n for n in outside if n.op == "call_function"]
        added = [(n, p.role, p.name) for n, p in used_ports] + [(n, Role.INPUT, f"edge {n.name}") for n in received]
        for node, role, name in sorted(added, key=lambda port: _PORT_ORDER.index(port[1])):
            self._add_port(node, role, name)
        for node in (n for n in outside if n.op == "get_attr"):
            self._copied[node] = self._graph.node_copy(node)
        for node in self._nodes:
            self._copied[node] = self._graph.node_copy(node, lambda n: self._copied[n])
        sends = [n for n in self._nodes if n in self._numbers]
        outputs = [(Output(OutputKind.SEND, f"edge {n.name}"), n) for n in sends]
        outputs += [(output, value) for output, value in self._program.returned() if value in inside]
        self._graph.output(())
        program = replace(
            self._program,
            graph_module=fx.GraphModule(self._program.graph_module, self._graph),
            ports=self._ports,
            outputs=[],
            constants={p.name: self._program.constants[p.name] for p in self._ports if p.role is Role.CONSTANT},
            loss_result=None,
            log=[],
        )
        program.set_outputs((output, self._copied[value]) for output, value in outputs)
        self._graph.lint()
        return StageProgram(
            slot=self._slot,
            part=self._partition.part_of(self._slot),
            backward=self._partition.is_backward(self._slot),
            program=program,
            inputs=[p.index for _, p in used_ports if p.role is Role.INPUT],
            receives=[self._numbers[n] for n in received],
            sends=[self._numbers[n] for n in sends],
            results=self._mine(OutputKind.RESULT, inside),
            anchors=self._mine(OutputKind.ANCHOR, inside),
            after=[],
        )

    def _add_port(self, node: fx.Node, role: Role, name: str) -> None:
        copy = self._graph.placeholder(node.name)
        copy.meta = dict(node.meta)
        copy.meta.pop("poptorch", None)
        value = value_of(node)
        index = sum(p.role is role for p in self._ports)
        self._ports.append(Port(role, name, index, tuple(value.shape), value.dtype))
        self._copied[node] = copy

    def _mine(self, kind: OutputKind, inside: set[fx.Node]) -> list[int]:
        """Which of the whole program's outputs of one kind are computed here."""
        return [i for i, value in enumerate(self._program.values_of(kind)) if value in inside]


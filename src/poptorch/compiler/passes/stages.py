"""Cutting a Program into the forward and backward programs of its parts, one for each slot.

What one slot computes and another one needs becomes an explicit edge: an output of the first program, an input of the
second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import fx

from poptorch.compiler.passes.slots import SlotPartition
from poptorch.compiler.passes.writes import Carried
from poptorch.program.graphs import module_of
from poptorch.program.outputs import Output, OutputKind
from poptorch.program.program import PORT_ORDER, Port, Program, Role, is_write, value_of


@dataclass(frozen=True)
class Edge:
    """A value that one slot produces and others consume; it is kept until the last of them has it."""

    name: str
    producer: int
    consumers: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] = ()
    """How it lies in memory: in another process it lies in the same way."""

    @property
    def num_bytes(self) -> int:
        """Its size for one micro-batch, or for the group that the program computes at once."""
        return math.prod(self.shape) * self.dtype.itemsize


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
    """A program, cut into stages."""

    partition: SlotPartition
    stages: list[StageProgram]
    edges: list[Edge]
    carried: list[Carried]


def split(program: Program, partition: SlotPartition, carried: list[Carried]) -> Cut:
    """One program per slot that has anything to do. Writes are isolated already; ``carried`` says which cross slots."""
    slots = partition.slots
    members: dict[int, list[fx.Node]] = {}
    for node in program.operations():
        members.setdefault(slots[node], []).append(node)
    members = dict(sorted(members.items()))
    crossing = _crossing(program, slots)
    numbers = {node: index for index, (node, _) in enumerate(crossing)}
    edges = [
        Edge(
            node.name,
            slots[node],
            consumers,
            tuple(value_of(node).shape),
            value_of(node).dtype,
            tuple(value_of(node).stride()),
        )
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


def _add_order(stages: Iterable[StageProgram], edges: list[Edge], program: Program, partition: SlotPartition) -> None:
    """What must run before what within a micro-batch: data, and operations that act on the world in program order."""
    acting = _acting_slots(program, partition)
    for stage in stages:
        before = {edges[e].producer for e in stage.receives}
        if stage.slot in acting:
            before |= {s for s in acting if s < stage.slot}
        stage.after = sorted(before)


def _acting_slots(program: Program, partition: SlotPartition) -> set[int]:
    return {partition.slots[n] for n in program.operations() if not is_write(n) and n.is_impure(impure_random=False)}


class _Cutter:
    """Builds the program of one slot."""

    def __init__(
        self, program: Program, partition: SlotPartition, slot: int, nodes: list[fx.Node], numbers: dict[fx.Node, int]
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
        added = used_ports + [(n, self._edge_port(n)) for n in received]
        for node, port in sorted(added, key=lambda item: PORT_ORDER.index(item[1].role)):
            self._add_port(node, port)
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
            graph_module=module_of(self._program.graph_module, self._graph),
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

    def _edge_port(self, node: fx.Node) -> Port:
        value = value_of(node)
        return Port(Role.INPUT, f"edge {node.name}", 0, tuple(value.shape), value.dtype)

    def _add_port(self, node: fx.Node, port: Port) -> None:
        copy = self._graph.placeholder(node.name)
        copy.meta = dict(node.meta)
        copy.meta.pop("poptorch", None)
        value = value_of(node)
        index = sum(p.role is port.role for p in self._ports)
        self._ports.append(replace(port, index=index, shape=tuple(value.shape), dtype=value.dtype))
        self._copied[node] = copy

    def _mine(self, kind: OutputKind, inside: set[fx.Node]) -> list[int]:
        """Which of the whole program's outputs of one kind are computed here."""
        return [i for i, value in enumerate(self._program.values_of(kind)) if value in inside]

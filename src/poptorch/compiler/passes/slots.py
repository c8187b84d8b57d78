"""The parts of a Program: pipeline stages, shards or phases, and the slot of every operation.

A *slot* is the forward or the backward pass of a part. With ``P`` parts, slot ``p`` is the forward of part ``p`` and
slot ``2P - 1 - p`` its backward, so that slots are numbered in an order in which they can run.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import fx

from poptorch.ambient import Placement
from poptorch.compiler.passes.summary import UNCHANGED
from poptorch.program.opinfo import Sweep, has_info, info_of
from poptorch.program.program import Program, is_write

if TYPE_CHECKING:
    from poptorch.compiler.passes.context import Context


class Division(enum.Enum):
    """What the parts of a model are."""

    STAGES = "pipeline stages"
    """Numbered by the strategy; neighbours on one IPU are one part."""

    SHARDS = "shards"
    """One per visit to an IPU."""

    PHASES = "phases"
    """One per visit to an IPU within a phase."""

    WHOLE = "one part"
    """Everything, whatever its annotations say."""


@dataclass(frozen=True)
class Part:
    """The operations of the model that runs on one IPU without interruption."""

    ipu: int
    stage: int
    phase: int

    def __str__(self) -> str:
        return f"stage {self.stage}, phase {self.phase}, IPU {self.ipu}"


@dataclass
class SlotPartition:
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


def assign_slots(program: Program, context: Context) -> str:
    """Find the parts of the model; the program itself stays as it is."""
    context.partition = partition(program, context.settings.division)
    return f"{UNCHANGED}, {len(context.partition.parts)} parts"


def partition(program: Program, division: Division) -> SlotPartition:
    """Give each operation the slot of its annotation, or a later one where its operands come later."""
    operations = [n for n in program.operations() if not is_write(n)]
    forward = [n for n in operations if info_of(n).sweep is Sweep.FORWARD]
    if division is Division.STAGES:
        segments = _stages(program)
        find: Callable[[Placement, _Segment | None], _Segment] = _Fixed(segments)
    elif division is Division.WHOLE:
        segments = [_Segment(Part(0, 0, 0), set(map(_key, program.placements())))]
        find = _Fixed(segments)
    else:
        segments = []
        find = _Greedy(segments, by_phase=division is Division.PHASES)
    placed: dict[fx.Node, _Segment] = {}
    for node in forward:
        producers = [placed[o] for o in node.all_input_nodes if o in placed]
        latest = max(producers, key=lambda s: s.position, default=None)
        if latest is not None and (node.target is operator.getitem or not has_info(node)):
            placed[node] = latest
        elif segments and not has_info(node):
            placed[node] = segments[0]  # a copy of an input for the user is in no part of the user's
        else:
            placed[node] = find(info_of(node).placement, latest)
    result = SlotPartition([s.part for s in segments] or [Part(0, 0, 0)])
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


def _backward_slot(node: fx.Node, partition: SlotPartition, segments: list[_Segment]) -> int:
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


def _place_writes(program: Program, partition: SlotPartition) -> None:
    """A write into a buffer or an input runs where the new value is made."""
    for node in program.operations():
        if is_write(node):
            source = node.args[1]
            assert isinstance(source, fx.Node)
            partition.slots[node] = partition.slots.get(source, 0)


__all__ = ["Division", "Part", "SlotPartition", "assign_slots", "partition"]

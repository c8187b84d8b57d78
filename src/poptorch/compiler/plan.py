"""How IPUs share a model: its parts, the programs of their forward and backward passes, and the order of these."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from poptorch.compiler.passes.slots import Division, Part
from poptorch.compiler.passes.stages import Cut, Edge, StageProgram
from poptorch.compiler.passes.writes import Carried
from poptorch.program.program import Program, Role
from poptorch.schedule import Tick, one_f_one_b, parallel_phased, pipelined_inference, serial_phased, sharded


class Ordering(enum.Enum):
    """Which parts run at the same time."""

    PIPELINED = "pipelined"
    SHARDED = "sharded"
    SERIAL_PHASED = "serial phased"
    PARALLEL_PHASED = "parallel phased"

    @property
    def division(self) -> Division:
        """What a part of the model is."""
        if self is Ordering.PIPELINED:
            return Division.STAGES
        return Division.SHARDS if self is Ordering.SHARDED else Division.PHASES

    @property
    def is_phased(self) -> bool:
        """Whether parts come from streaming memory when they are needed."""
        return self in (Ordering.SERIAL_PHASED, Ordering.PARALLEL_PHASED)


@dataclass(frozen=True)
class Plan:
    """The parts of a model as IPUs run them, and what they hand to each other.

    A model in one part has a plan with one stage: its whole program, forward and backward together.
    """

    ordering: Ordering
    parts: tuple[Part, ...]
    stages: tuple[StageProgram, ...]
    """In an order in which they can run."""

    edges: tuple[Edge, ...] = ()
    carried: tuple[Carried, ...] = ()
    overlap_loads: bool = True
    """Phased: whether a phase is loaded while the one before is put away."""

    @property
    def whole(self) -> bool:
        """Whether one stage is everything, forward and backward."""
        return len(self.parts) == 1

    @property
    def kept(self) -> list[Edge]:
        """What IPUs keep between the forward and the backward passes of a micro-batch."""
        first = len(self.parts)
        return [e for e in self.edges if e.producer < first and any(c >= first for c in e.consumers)]

    @property
    def phases(self) -> list[int]:
        """The phase numbers in use, in order."""
        return sorted({p.phase for p in self.parts})

    def schedule(self, micro: int, *, training: bool) -> list[Tick]:
        """The ticks that the strategy asks for, with the parts of the plan (for phased strategies: its phases)."""
        ipus = [part.ipu for part in self.parts]
        parts = len(self.parts)
        if self.ordering is Ordering.PIPELINED:
            ticks = one_f_one_b(parts, micro, ipus) if training else pipelined_inference(parts, micro, ipus)
        elif self.ordering is Ordering.SHARDED:
            ticks = sharded(parts, micro, ipus, training=training)
        elif self.ordering is Ordering.SERIAL_PHASED:
            ticks = serial_phased(len(self.phases), micro, max(ipus) + 1, training=training, overlap=self.overlap_loads)
        else:
            pairs = max(ipus) // 2 + 1
            ticks = parallel_phased(self.phases[-1] + 1, micro, 2 * pairs, training=training)
        return list(ticks)

    def __str__(self) -> str:
        lines = [f"{self.ordering.value}, {len(self.parts)} part{'s' if len(self.parts) > 1 else ''}"]
        for stage in self.stages:
            count = sum(1 for _ in stage.program.operations())
            received = sum(self.edges[e].num_bytes for e in stage.receives)
            label = "whole model" if self.whole else stage.label
            lines.append(
                f"{label} ({self.parts[stage.part]}): {count} operations, "
                f"receives {len(stage.receives)} values ({received} bytes), sends {len(stage.sends)}"
            )
        return "\n".join(lines)


def divided(ordering: Ordering, cut: Cut, *, overlap_loads: bool = True) -> Plan:
    """The plan of a model in several parts."""
    stages, parts = tuple(cut.stages), tuple(cut.partition.parts)
    return Plan(ordering, parts, stages, tuple(cut.edges), tuple(cut.carried), overlap_loads)


def undivided(program: Program) -> Plan:
    """The plan of a model that is one part."""
    ipus = {p.ipu for p in program.placements()} or {0}
    return Plan(Ordering.SHARDED, (Part(min(ipus), 0, 0),), (whole_stage(program),))


def whole_stage(program: Program) -> StageProgram:
    """A program as the only stage of a plan."""
    return StageProgram(
        slot=0,
        part=0,
        backward=False,
        program=program,
        inputs=list(range(len(program.ports_of(Role.INPUT)))),
        receives=[],
        sends=[],
        results=list(range(len(program.results))),
        anchors=list(range(len(program.anchors))),
        after=[],
    )


__all__ = ["Cut", "Ordering", "Plan", "divided", "undivided", "whole_stage"]

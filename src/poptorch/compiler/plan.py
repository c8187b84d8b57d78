"""How a model that occupies several IPUs, or has several replicas, is executed: its pieces and their order."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from poptorch.compiler.passes.context import Context
from poptorch.compiler.passes.slots import Division, Part
from poptorch.compiler.passes.stages import Cut, Edge, StageProgram, split
from poptorch.compiler.passes.writes import Carried
from poptorch.host.interpret.code import Generated
from poptorch.program.graphs import acts_in_order
from poptorch.program.program import Program, Role


class Ordering(enum.Enum):
    """Which pieces run at the same time."""

    PIPELINED = "pipelined"
    SHARDED = "sharded"
    SERIAL_PHASED = "serial phased"
    PARALLEL_PHASED = "parallel phased"

    @property
    def division(self) -> Division:
        """What a piece of the model is."""
        if self is Ordering.PIPELINED:
            return Division.STAGES
        return Division.SHARDS if self is Ordering.SHARDED else Division.PHASES

    @property
    def is_phased(self) -> bool:
        """Whether pieces come from streaming memory when they are needed."""
        return self in (Ordering.SERIAL_PHASED, Ordering.PARALLEL_PHASED)


@dataclass
class Stage:
    """One piece that runs as a whole, with the code for it."""

    description: StageProgram
    generated: Generated = field(repr=False)
    parameters: list[str]
    buffers: list[str]

    @property
    def is_sequential(self) -> bool:
        """Whether it leaves something behind that the next micro-batch finds, or that somebody sees in order."""
        return acts_in_order(self.description.program)

    @staticmethod
    def of(description: StageProgram, generate: Callable[[Program], Generated]) -> Stage:
        """Generate the code of one piece."""
        program = description.program
        return Stage(
            description,
            generate(program),
            [p.name for p in program.ports_of(Role.PARAMETER)],
            [p.name for p in program.ports_of(Role.BUFFER)],
        )


@dataclass
class Plan:
    """The pieces of a model and what they hand to each other."""

    ordering: Ordering
    parts: list[Part]
    stages: list[Stage]
    """In an order in which they can run."""

    edges: list[Edge]
    carried: list[Carried]
    whole: bool
    """Whether one piece is everything, forward and backward."""

    device: Cut | None = None
    """The pieces as an IPU runs them; ``None``: just as they run here. The host computes less of them again."""

    overlap_loads: bool = True
    """Phased: whether a phase is loaded while the one before is put away."""

    log: list[str] = field(default_factory=list)

    @property
    def kept(self) -> list[Edge]:
        """What IPUs keep between the forward and the backward passes of a micro-batch."""
        first = len(self.parts)
        return [e for e in self.device_edges if e.producer < first and any(c >= first for c in e.consumers)]

    @property
    def stashed(self) -> list[tuple[int, str]]:
        """Of each part, the values that wait for its backward pass while it works on other micro-batches.

        The model's own inputs are among them. The last part has nothing to wait for.
        """
        first, edges = len(self.parts), self.device_edges
        found = []
        for stage in self.device_stages.values():
            if not stage.backward or stage.part == first - 1:
                continue
            inputs = stage.program.ports_of(Role.INPUT)[: len(stage.inputs)]
            found += [(stage.part, port.name) for port in inputs]
            found += [(stage.part, edges[e].name) for e in stage.receives if edges[e].producer < first]
        return found

    @property
    def device_edges(self) -> list[Edge]:
        """What the pieces hand to each other on IPUs."""
        return self.edges if self.device is None else self.device.edges

    @property
    def device_stages(self) -> dict[int, StageProgram]:
        """The pieces as an IPU runs them, by slot."""
        stages = [s.description for s in self.stages] if self.device is None else self.device.stages
        return {stage.slot: stage for stage in stages}

    @property
    def phases(self) -> list[int]:
        """The phase numbers in use, in order."""
        return sorted({p.phase for p in self.parts})

    def __str__(self) -> str:
        return "\n".join(self.log)


def make_plan(
    program: Program,
    context: Context,
    host_program: Program,
    host_context: Context,
    ordering: Ordering,
    generate: Callable[[Program], Generated],
    *,
    overlap_loads: bool = True,
) -> Plan | None:
    """Cut the lowered program into pieces and generate the code of each; ``None`` if it stays in one piece.

    ``program`` is what an IPU runs. The code is that of ``host_program``, which is the same program, or one with other
    recomputation or for several micro-batches.
    """
    division = context.divided
    if len(division.parts) == 1:
        return None
    own = host_program is not program
    assert host_context.divided.parts == division.parts
    device = split(program, division, context.carried)
    cut = split(host_program, host_context.divided, host_context.carried) if own else device
    log = [f"recompute on the host {host_context.summaries['recompute']}"] if own and program.training else []
    return Plan(
        ordering=ordering,
        parts=division.parts,
        stages=[Stage.of(s, generate) for s in cut.stages],
        edges=cut.edges,
        carried=cut.carried,
        whole=False,
        device=device if own else None,
        overlap_loads=overlap_loads,
        log=[*log, *str(device).splitlines()],
    )


def whole_plan(program: Program, generated: Generated) -> Plan:
    """The plan of a model that is one piece: only replicas run side by side. ``program`` is the host's."""
    positions = range(len(program.ports_of(Role.INPUT)))
    description = StageProgram(
        slot=0,
        part=0,
        backward=False,
        program=program,
        inputs=list(positions),
        receives=[],
        sends=[],
        results=list(range(len(program.results))),
        anchors=list(range(len(program.anchors))),
        after=[],
    )
    stage = Stage(
        description,
        generated,
        [p.name for p in program.ports_of(Role.PARAMETER)],
        [p.name for p in program.ports_of(Role.BUFFER)],
    )
    ipus = {p.ipu for p in program.placements()} or {0}
    return Plan(Ordering.SHARDED, [Part(min(ipus), 0, 0)], [stage], [], [], whole=True)


__all__ = ["Cut", "Ordering", "Plan", "Stage", "make_plan", "whole_plan"]

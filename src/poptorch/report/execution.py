"""How a model ran, as objects: cycles of the IPU Model, and times that were measured on this host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from poptorch.errors import createPoptorchError
from poptorch.report.files import rows
from poptorch.report.objects import Compilation
from poptorch.report.programs import Program, ProgramType


@dataclass(frozen=True)
class Cycles:
    """A moment that tiles reach at different cycles."""

    min: float
    max: float


@dataclass(frozen=True)
class ActiveCycles:
    """From when to when the tiles of an IPU are busy with a step."""

    cyclesFrom: Cycles
    cyclesTo: Cycles


@dataclass(frozen=True)
class StepIpu:
    """One IPU in a step."""

    activeCycles: ActiveCycles


@dataclass(frozen=True)
class Step:
    """A program that runs; ``start`` and ``end`` are cycles of the IPU Model since the first recorded run began."""

    program: Program
    start: float
    end: float
    _ipus: int

    @property
    def ipus(self) -> list[StepIpu]:
        """Each IPU; those that do not take part are active for no cycle."""
        idle = StepIpu(ActiveCycles(Cycles(self.start, self.start), Cycles(self.start, self.start)))
        found = [idle] * self._ipus
        if self.program.ipu is not None:
            first = self.end
            if self.program.type is ProgramType.OnTileExecute:
                first = min(self.end, self.start + self.program.share_of_others())
            busy = ActiveCycles(Cycles(self.start, self.start), Cycles(first, self.end))
            found[self.program.ipu] = StepIpu(busy)
        return found


@dataclass(frozen=True)
class Block:
    """A measured span of a run: seconds since the run began."""

    name: str
    part: int
    microBatch: int
    replica: int
    worker: int
    start: float
    end: float


MOST_STEPS = 10_000_000
"""Of a run, as objects: one takes about 200 bytes."""


class Run:
    """One call of the model."""

    def __init__(self, execution: Execution, index: int) -> None:
        figures = execution.figures["runs"][index]
        self._execution = execution
        self._index = index
        self.name = str(figures["name"])
        self.seconds = float(figures["seconds"])
        """Measured on this host."""

    def __repr__(self) -> str:
        return f"<{self.name}: {self.seconds} s>"

    @cached_property
    def steps(self) -> list[Step]:
        """The steps of one micro-batch and one weight update, one after the other, as the IPU Model sees them."""
        compilation = self._execution.compilation
        now = self._index * float(compilation.profile.document["estimate"]["cycles"])
        found: list[Step] = []
        for program in compilation.programs:
            if not compilation.children_of(program.index) and program.type not in _HOLDERS:
                times = _inner_repeats(program)
                if len(found) + times > MOST_STEPS:
                    raise createPoptorchError(f"A run of this report has more than {MOST_STEPS} steps.")
                for _ in range(times):
                    found.append(Step(program, now, now + program.cycles, compilation.target.ipusPerReplica))
                    now += program.cycles
        return found

    @cached_property
    def blocks(self) -> list[Block]:
        """What was measured: jobs, inputs, outputs, updates."""
        table = self._execution.compilation.profile.tables["spans"]
        return [
            Block(
                str(table["kind"][row]), int(table["part"][row]), int(table["micro"][row]), int(table["replica"][row]),
                int(table["worker"][row]), float(table["start"][row]), float(table["end"][row]),
            )
            for row in range(rows(table))
            if table["run"][row] == self._index
        ]  # fmt: skip


_HOLDERS = (ProgramType.Sequence, ProgramType.Repeat)


def _inner_repeats(program: Program) -> int:
    """How often a step runs within its operation."""
    times, parent = 1, program.parent
    while parent is not None and parent.operation is not None:
        times *= parent.repeatCount
        parent = parent.parent
    return times


class Execution:
    """The recorded runs."""

    def __init__(self, compilation: Compilation) -> None:
        self.compilation = compilation
        self.figures: dict[str, Any] = compilation.profile.document["execution"]

    @cached_property
    def runs(self) -> list[Run]:
        """The latest calls, as many as ``autoReport.executionProfileProgramRunCount`` says."""
        return [Run(self, index) for index in range(len(self.figures["runs"]))]

    @property
    def steps(self) -> list[Step]:
        """The steps of all runs."""
        return [step for run in self.runs for step in run.steps]

    @property
    def blocks(self) -> list[Block]:
        """The measured spans of all runs."""
        return [block for run in self.runs for block in run.blocks]


__all__ = ["ActiveCycles", "Block", "Cycles", "Execution", "Run", "Step"]

"""The values a schedule is made of: jobs, and ticks of the clock in which each worker runs one job."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_JOB_TEXT = re.compile(r"(?P<micro>\d+)(?P<kind>[FBLS])(?:@(?P<part>\d+))?")
_IDLE = "."


class Kind(StrEnum):
    """What a job does; the value is its letter in the text form."""

    FORWARD = "F"
    BACKWARD = "B"
    LOAD = "L"
    """Exchange with streaming memory: bring in the phase to come, put away the phase that was there."""
    STORE = "S"
    """Put away a phase and leave nothing in its place."""


@dataclass(frozen=True)
class Job:
    """One micro-batch through one part of the model; a part is a pipeline stage, a shard or a phase.

    The text form goes both ways:

    >>> str(Job(micro=3, kind=Kind.BACKWARD, part=1))
    '3B@1'
    >>> Job.parse("3B@1")
    Job(micro=3, kind=<Kind.BACKWARD: 'B'>, part=1)
    """

    micro: int
    kind: Kind
    part: int

    def __str__(self) -> str:
        return f"{self.micro}{self.kind.value}@{self.part}"

    @classmethod
    def parse(cls, text: str, part: int | None = None) -> Job:
        """Read the text form; ``part`` is the one to assume when the text leaves it out."""
        found = _JOB_TEXT.fullmatch(text)
        if found is None or (found["part"] is None and part is None):
            raise ValueError(f"{text!r} is not a job: expected a micro-batch, one of F B L S, and @part, as in 3B@1.")
        return cls(int(found["micro"]), Kind(found["kind"]), int(found["part"] or part or 0))


@dataclass(frozen=True)
class Tick:
    """What every worker does during one step of the clock; ``None`` is an idle worker, a bubble.

    In the text form a job leaves out its part where that equals the number of the worker.

    >>> tick = Tick.parse("2F . 0B@0")
    >>> tick.jobs[0]
    Job(micro=2, kind=<Kind.FORWARD: 'F'>, part=0)
    >>> str(tick)
    '2F . 0B@0'
    """

    jobs: tuple[Job | None, ...]

    def cells(self, *, short: bool = True) -> list[str]:
        """The text of each worker's job, without the part (if ``short``) where it equals the worker."""
        return [_cell(job, worker if short else None) for worker, job in enumerate(self.jobs)]

    def __str__(self) -> str:
        return " ".join(self.cells())

    @classmethod
    def parse(cls, text: str) -> Tick:
        """Read the text form."""
        cells = enumerate(text.split())
        return cls(tuple(None if cell == _IDLE else Job.parse(cell, worker) for worker, cell in cells))


def _cell(job: Job | None, understood_part: int | None) -> str:
    if job is None:
        return _IDLE
    return f"{job.micro}{job.kind.value}" if job.part == understood_part else str(job)

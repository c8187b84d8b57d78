"""Which job an error came from: noted where the job was run, read where the error is explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poptorch.program.loop import MicroBatch

_KEY = "poptorch_job"


@dataclass(frozen=True)
class FailedJob:
    """What was run when something failed."""

    members: Sequence[MicroBatch]
    """The micro-batches that were computed at once."""

    label: str = ""
    """Which pass of which part; empty for a model in one part."""


def note_job(error: Exception, job: FailedJob) -> None:
    """Note the job from which an error came, unless another one is noted already.

    >>> error = ValueError("no")
    >>> note_job(error, FailedJob([MicroBatch(0, 1, 0)]))
    >>> job_of(error).members[0].step
    1
    """
    if job_of(error) is None:
        error.__dict__[_KEY] = job


def job_of(error: BaseException) -> FailedJob | None:
    """The job that an error came from, if that was noted."""
    found = error.__dict__.get(_KEY)
    return found if isinstance(found, FailedJob) else None

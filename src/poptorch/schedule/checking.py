"""What every schedule must satisfy, and what it costs in kept micro-batches and idle time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from poptorch.schedule.clock import ScheduleError, data_dependencies
from poptorch.schedule.job import Job, Kind, Tick
from poptorch.schedule.sharded import one_at_a_time
from poptorch.schedule.text import draw


def check(ticks: Iterable[Tick], parts: int, micro: int, *, training: bool = True) -> None:
    """Make sure that a schedule runs everything once, in an order that the data allows.

    Also: each part takes its micro-batches in order (buffers and accumulated gradients depend on it), and a
    worker that loads phases only computes the one it holds. The error shows the schedule up to the fault.

    >>> check([Tick.parse("0F ."), Tick.parse(". 0F")], parts=2, micro=1, training=False)
    >>> check([Tick.parse("0F 0F")], parts=2, micro=1, training=False)
    Traceback (most recent call last):
    ...
    poptorch.schedule.clock.ScheduleError: Tick 0: 0F@1 runs before 0F@0 is done.
    IPU0 | 0F
    IPU1 | 0F
    """
    schedule = list(ticks)
    expected = set(one_at_a_time(parts, micro, training=training))
    streams = any(job is not None and job.kind is Kind.LOAD for tick in schedule for job in tick.jobs)
    done: set[Job] = set()
    holds: dict[int, int | None] = {}
    following: dict[tuple[Kind, int], int] = {}

    for now, tick in enumerate(schedule):
        # A phase may occupy all workers of a group: the same job in several rows of one tick is one job.
        computing = {job for job in tick.jobs if job is not None and job.kind in (Kind.FORWARD, Kind.BACKWARD)}
        for worker, job in enumerate(tick.jobs):
            if streams and job is not None:
                fault = _streaming_fault(job, worker, holds)
                _refuse(fault, schedule, now)
        for job in sorted(computing, key=str):
            needed = [need for need in data_dependencies(job, parts) if need not in done]
            position = following.get((job.kind, job.part), 0)
            if job not in expected:
                _refuse(f"{job} does not belong to {parts} parts and {micro} micro-batches", schedule, now)
            if job in done:
                _refuse(f"{job} runs a second time", schedule, now)
            if needed:
                _refuse(f"{job} runs before {needed[0]} is done", schedule, now)
            if job.micro != position:
                _refuse(f"{job} runs out of order: micro-batch {position} comes next", schedule, now)
            following[job.kind, job.part] = position + 1
        done |= computing
    missing = sorted(map(str, expected - done))
    if missing:
        _refuse(f"the schedule ends without {', '.join(missing)}", schedule, len(schedule))


def _streaming_fault(job: Job, worker: int, holds: dict[int, int | None]) -> str | None:
    """Follow what the worker holds; say what is wrong if ``job`` needs something else."""
    if job.kind is Kind.LOAD:
        holds[worker] = job.part
        return None
    if holds.get(worker) != job.part:
        return f"{job} runs on IPU{worker}, which holds phase {holds.get(worker)}"
    if job.kind is Kind.STORE:
        holds[worker] = None
    return None


def _refuse(fault: str | None, schedule: Sequence[Tick], now: int) -> None:
    if fault is not None:
        raise ScheduleError(f"Tick {now}: {fault}.\n{draw(schedule[: now + 1])}")


def peak_stash(ticks: Iterable[Tick], parts: int) -> tuple[int, ...]:
    """Per part, the most micro-batches that are kept at once between their forward and their backward.

    Inference keeps none.

    >>> ticks = ["0F .", "1F 0F", ". 0B", "0B .", ". 1F", ". 1B", "1B ."]
    >>> peak_stash(map(Tick.parse, ticks), parts=2)
    (2, 1)
    """
    schedule = list(ticks)
    returning = {(job.micro, job.part) for tick in schedule for job in tick.jobs if job and job.kind is Kind.BACKWARD}
    kept: list[set[int]] = [set() for _ in range(parts)]
    peak = [0] * parts
    for tick in schedule:
        jobs = [job for job in tick.jobs if job is not None]
        for job in jobs:
            if job.kind is Kind.FORWARD and (job.micro, job.part) in returning:
                kept[job.part].add(job.micro)
        peak = [max(most, len(now)) for most, now in zip(peak, kept, strict=True)]
        for job in jobs:  # what a backward consumes is still there while it runs
            if job.kind is Kind.BACKWARD:
                kept[job.part].discard(job.micro)
    return tuple(peak)


def idle_share(ticks: Iterable[Tick]) -> float:
    """The share of the chart that is bubbles.

    >>> idle_share([Tick.parse("0F ."), Tick.parse(". 0F")])
    0.5
    """
    cells = [job for tick in ticks for job in tick.jobs]
    return cells.count(None) / len(cells) if cells else 0.0

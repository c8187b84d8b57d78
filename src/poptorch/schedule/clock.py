"""The clock: queues of jobs and what each job waits for, turned into ticks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from poptorch.schedule.job import Job, Kind, Tick


class ScheduleError(ValueError):
    """A schedule breaks a dependency, forgets a job, or cannot go on."""


def data_dependencies(job: Job, parts: int) -> tuple[Job, ...]:
    """The jobs whose results ``job`` consumes, in a model of ``parts`` parts.

    >>> [str(needed) for needed in data_dependencies(Job.parse("0B@1"), parts=3)]
    ['0F@1', '0B@2']
    """
    if job.kind is Kind.FORWARD:
        return (Job(job.micro, Kind.FORWARD, job.part - 1),) if job.part > 0 else ()
    if job.kind is Kind.BACKWARD:
        own_forward = Job(job.micro, Kind.FORWARD, job.part)
        return (own_forward, Job(job.micro, Kind.BACKWARD, job.part + 1))[: 2 if job.part + 1 < parts else 1]
    return ()


def clock(
    queues: Sequence[Sequence[Job]],
    workers: Sequence[Sequence[int]],
    waits_for: Callable[[Job], Iterable[Job]],
) -> Iterator[Tick]:
    """Run each queue in order, every job as soon as all it waits for is done and its workers are free.

    ``workers[q]`` are the workers that run the jobs of queue ``q`` together. Where queues share a worker the
    later queue goes first, since finishing a micro-batch frees what was kept for it.

    >>> queues = [[Job.parse("0F@0")], [Job.parse("0F@1")]]
    >>> [str(tick) for tick in clock(queues, [[0], [1]], lambda job: data_dependencies(job, 2))]
    ['0F .', '. 0F']
    """
    width = 1 + max(worker for group in workers for worker in group)
    remaining = [list(reversed(queue)) for queue in queues]
    done: set[Job] = set()
    while any(remaining):
        row: list[Job | None] = [None] * width
        started: list[Job] = []
        for queue, group in reversed(list(zip(remaining, workers, strict=True))):
            free = all(row[worker] is None for worker in group)
            if queue and free and done.issuperset(waits_for(queue[-1])):
                started.append(queue.pop())
                for worker in group:
                    row[worker] = started[-1]
        if not started:
            heads = ", ".join(str(queue[-1]) for queue in remaining if queue)
            raise ScheduleError(f"The schedule cannot go on: {heads} wait for jobs that come after them.")
        done.update(started)
        yield Tick(tuple(row))


def positive(**counts: int) -> None:
    """Refuse counts below one; a model has at least one of everything."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, not {count}.")


def worker_of_each(stages: int, ipus: Sequence[int] | None) -> list[list[int]]:
    """The IPU of each stage as the clock wants it; without ``ipus``, stage *n* is on IPU *n*."""
    chosen = range(stages) if ipus is None else ipus
    if len(chosen) != stages:
        raise ValueError(f"{stages} stages need {stages} IPU indices, not {len(chosen)}.")
    return [[ipu] for ipu in chosen]

"""Schedules as text: a row per IPU, a column per tick."""

from __future__ import annotations

from collections.abc import Iterable

from poptorch.schedule.job import Tick


def draw(ticks: Iterable[Tick]) -> str:
    """The Gantt chart of a schedule. Jobs name their part unless part *n* always runs on IPU *n*.

    >>> print(draw([Tick.parse("0F ."), Tick.parse("1F 0F"), Tick.parse(". 1F")]))
    IPU0 | 0F 1F .
    IPU1 | .  0F 1F
    """
    schedule = list(ticks)
    columns = [tick.cells(short=all(map(_one_part_per_worker, schedule))) for tick in schedule]
    width = max((len(cell) for column in columns for cell in column), default=0)
    rows = zip(*columns, strict=True)
    labels = [f"IPU{worker}" for worker in range(len(columns[0]) if columns else 0)]
    edge = max(map(len, labels), default=0)
    return "\n".join(
        f"{label:<{edge}} | {' '.join(cell.ljust(width) for cell in row)}".rstrip()
        for label, row in zip(labels, rows, strict=True)
    )


def _one_part_per_worker(tick: Tick) -> bool:
    return all(job is None or job.part == worker for worker, job in enumerate(tick.jobs))


def read(drawing: str) -> list[Tick]:
    """The schedule that a Gantt chart shows: the inverse of :func:`draw`.

    >>> [str(tick) for tick in read("IPU0 | 0F 1F .  \\nIPU1 | .  0F 1F")]
    ['0F .', '1F 0F', '. 1F']
    """
    rows = [line.partition("|")[2].split() for line in drawing.strip().splitlines()]
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"The rows of a schedule have the same length, but here: {[len(row) for row in rows]}.")
    return [Tick.parse(" ".join(column)) for column in zip(*rows, strict=True)]

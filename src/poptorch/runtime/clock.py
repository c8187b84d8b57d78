"""The one clock of calls: a record of each job. Counters, schedule pictures, reports and traces are made of these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from poptorch.enums import OutputMode
from poptorch.profiling.trace import SpanKind, TraceSpan
from poptorch.program.loop import Loop, MicroBatch
from poptorch.runtime.tasks import Task
from poptorch.schedule import Job, Kind

Moved = tuple[float, float]
"""When inputs were asked for and there, or outputs sent and delivered."""

_SPAN_KINDS = {
    Kind.FORWARD: SpanKind.FORWARD,
    Kind.BACKWARD: SpanKind.BACKWARD,
    Kind.LOAD: SpanKind.LOAD,
    Kind.STORE: SpanKind.STORE,
}
_WHOLE = Task(0, Job(0, Kind.FORWARD, 0), 0, 0, 0, 0)
"""Of records of a model in one part on one replica: they come one after the other, and need no task of their own."""


class JobRecord(NamedTuple):
    """When and by which worker a job was run; times in seconds from an arbitrary origin (``time.perf_counter``)."""

    task: Task
    worker: int
    start: float
    end: float
    released: float
    """When its results were there for others; gradients are added after that."""

    thread: int = 0
    """The thread of the worker, as ``threading.get_ident`` has it; 0 if unknown."""

    members: Sequence[MicroBatch] = ()
    """The micro-batches that it computed."""

    inputs: Moved | None = None
    """When it took inputs from the host, if it did."""

    outputs: Moved | None = None
    """When it gave results to the host, if it did."""

    def but(self, **changes: Any) -> JobRecord:
        """A copy with some fields changed."""
        return self._replace(**changes)


def whole_record(
    members: Sequence[MicroBatch], asked: float, begun: float, ended: float, delivered: float
) -> JobRecord:
    """The record of a group of micro-batches that went through a whole model on the calling thread."""
    return JobRecord(_WHOLE, 0, begun, ended, ended, 0, members, (asked, begun), (ended, delivered))


def is_returned(loop: Loop, micro_batch: MicroBatch) -> bool:
    """Whether the micro-batch's outputs go to the host; under ``Sum`` only the last ones do."""
    if loop.output_mode is OutputMode.Sum:
        return loop.is_last(micro_batch)
    return loop.output_block(micro_batch) is not None


class CallClock:
    """The records of the latest call, and what is made of them."""

    def __init__(self, loop: Loop, num_inputs: int, num_outputs: int, *, whole: bool) -> None:
        """``whole`` says whether a job is forward and backward in one."""
        self._loop = loop
        self._num_inputs = num_inputs
        self._num_outputs = num_outputs
        self._whole = whole
        self._records: list[JobRecord] = []
        self._once: Moved | None = None
        self._silent = False
        self._completed: float | None = None

    def begin(self, *, silent: bool = False) -> None:
        """A call begins; ``silent``: nothing moves between host and device."""
        self._records = []
        self._once, self._completed, self._silent = None, None, silent

    def add(self, records: Iterable[JobRecord]) -> None:
        """Some jobs of the call are done."""
        self._records += records

    def once(self, started: float, ended: float) -> None:
        """The call was one micro-batch on the calling thread: nothing else need be known of it."""
        self._once = started, ended

    def complete(self, now: float) -> None:
        """Other processes ran parts of the call: what was not seen here has happened by now."""
        self._completed = now

    @property
    def records(self) -> list[JobRecord]:
        """All jobs of the latest call, in the order in which they ended."""
        if self._once is not None:
            started, ended = self._once
            return [whole_record((MicroBatch(0, 0, 0),), started, started, ended, ended)]
        return self._records

    # -- what is made of the records -----------------------------------------------------------------------------

    def counters(self) -> dict[str, list[list[float]]]:
        """One list for each input or output tensor of the graph, as users read them."""
        inputs, outputs = (list(self._loop.micro_batches()), self._num_inputs), self._returned()
        return {
            "input": self._stamps(*inputs, "inputs", 0),
            "input_complete": self._stamps(*inputs, "inputs", 1),
            "output": self._stamps(*outputs, "outputs", 0),
            "output_complete": self._stamps(*outputs, "outputs", 1, last=True),
        }

    def _returned(self) -> tuple[list[MicroBatch], int]:
        return [m for m in self._loop.micro_batches() if is_returned(self._loop, m)], self._num_outputs

    def _stamps(
        self, wanted: Sequence[MicroBatch], count: int, moves: str, at: int, *, last: bool = False
    ) -> list[list[float]]:
        """The first or last time of each micro-batch, as often as there are tensors."""
        found: dict[MicroBatch, float] = {}
        for record in [] if self._silent else self.records:
            moved: Moved | None = getattr(record, moves)
            if moved is not None:
                for member in record.members:
                    known = found.get(member, moved[at])
                    found[member] = max(known, moved[at]) if last else min(known, moved[at])
        if self._completed is not None and not self._silent:
            found = {**dict.fromkeys(wanted, self._completed), **found}
        times = [found[member] for member in wanted if member in found]
        return [list(times) for _ in range(count)]

    def spans(self, records: Iterable[JobRecord] | None = None) -> Iterator[TraceSpan]:
        """The spans of a trace for these records, or for all: inputs, jobs with what they left over, outputs."""
        chosen = self.records if records is None else list(records)
        for kind, moves in ((SpanKind.INPUT, "inputs"), (SpanKind.OUTPUT, "outputs")):
            if kind is SpanKind.OUTPUT:
                yield from self._jobs(chosen)
            groups: dict[MicroBatch, list[Moved]] = {}
            for record in chosen:
                if getattr(record, moves) is not None:
                    groups.setdefault(record.members[0], []).append(getattr(record, moves))
            for first, times in groups.items():
                end = (min if kind is SpanKind.INPUT else max)(there for _, there in times)
                yield TraceSpan(kind, min(asked for asked, _ in times), end, 0, *self._place(first))

    def _jobs(self, records: Iterable[JobRecord]) -> Iterator[TraceSpan]:
        for record in records:
            task = record.task
            kind = SpanKind.STEP if self._whole else _SPAN_KINDS[task.job.kind]
            about = task.job.part, *self._place(record.members[0]), record.worker, "", record.thread
            yield TraceSpan(kind, record.start, record.released, *about)
            if record.end > record.released:
                yield TraceSpan(SpanKind.LEFTOVER, record.released, record.end, *about)

    def _place(self, first: MicroBatch) -> tuple[int, int]:
        return self._loop.position(first), self._loop.global_replica(first.replica)

    def latest_round(self, *, training: bool, ipu: int) -> list[JobRecord]:
        """What ran in the last round of accumulation (for inference: in all of the latest call), for pictures."""
        records = self.records
        if not records:
            return []
        last = records[-1].members[0].iteration
        chosen = [r for r in records if not training or r.members[0].iteration == last]
        if any(record.task is not _WHOLE for record in chosen):
            return chosen
        return [
            record.but(task=Task(i, Job(i, Kind.FORWARD, 0), 0, ipu, 0, i, len(record.members), whole=training))
            for i, record in enumerate(chosen)
        ]


__all__ = ["CallClock", "JobRecord", "is_returned", "whole_record"]

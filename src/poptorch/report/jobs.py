"""When which IPU works on which micro-batch: one round up to a weight update, as the IPU Model sees it."""

from __future__ import annotations

from collections.abc import Iterator

from poptorch.ipu_model import Estimate
from poptorch.report.files import Rows, Table
from poptorch.report.tree import NONE, UPDATE

MAX_JOBS = 20_000
"""Long rounds repeat themselves: their beginning is enough, and the update comes after the whole of them."""


def jobs_of(estimate: Estimate) -> Table:
    """A row for each pass of each micro-batch: its stage, its IPU, and when in the round it runs."""
    timeline, flow = estimate.timeline, estimate.flow
    found = Rows(stage=str, ipu=int, micro=int, tick=int, start=float, cycles=float)
    place = {ipu.ipu: place for place, ipu in enumerate(estimate.ipus)}
    micro_batches = round_length(estimate)
    for tick, (start, length) in enumerate(_ticks(estimate)):
        if len(found) >= MAX_JOBS:
            break
        busy: dict[int, float] = {}
        now = start
        for stage in estimate.stages:
            micro = tick - flow.number(stage.time.slot) if flow.pipelined else tick
            if not 0 <= micro < micro_batches:
                continue
            begin = start + busy.get(stage.ipu, 0.0) if flow.pipelined else now
            cycles = min(stage.cycles, max(0.0, start + length - begin))
            found.add(stage=stage.label, ipu=place[stage.ipu], micro=micro, tick=tick, start=begin, cycles=cycles)
            busy[stage.ipu] = busy.get(stage.ipu, 0.0) + cycles
            now = begin + cycles
    if timeline.updates:
        end = sum(count * cycles for count, cycles in timeline.ticks)
        for ipu in place.values():
            found.add(stage=UPDATE, ipu=ipu, micro=NONE, tick=NONE, start=end, cycles=timeline.update)
    return found.table()


def round_length(estimate: Estimate) -> int:
    """The micro-batches of a round: those up to a weight update, or all of an inference call."""
    loop = estimate.device.loop
    return loop.gradient_accumulation if estimate.device.settings.training else loop.device_iterations


def _ticks(estimate: Estimate) -> Iterator[tuple[float, float]]:
    """The start and the length of each pipeline cycle."""
    now = 0.0
    for count, cycles in estimate.timeline.ticks:
        for _ in range(count):
            yield now, cycles
            now += cycles


__all__ = ["MAX_JOBS", "jobs_of", "round_length"]

"""How the knobs are fitted, and what the IPU Model would say had it not known a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from poptorch.ipu_model.calibration import EXCHANGE_CODE, PLANNED_COMPUTE, VERTEX_CODE, VERTEX_STATE, Knob
from poptorch.ipu_model.result import Estimate
from poptorch.ipu_model.validation.tables import Result

_PLANNED = {"conv1x1", "convnx1", "hmac", "vmac", "slic", "outer_product", "reduce_partials"}
"""Codelets whose cycles ``planned compute`` scales."""

_BY_UNIT = {"vertex code": VERTEX_CODE, "vertex state": VERTEX_STATE, "exchange code": EXCHANGE_CODE}
"""Knobs that scale a category of memory, by the end of the names of its cases."""


@dataclass(frozen=True)
class Scaled:
    """A result that depends on a knob."""

    result: Result
    knob: Knob
    share: float
    """Of its value, or of its time, that is proportional to the knob."""

    def error(self, value: float) -> float:
        """The logarithm of predicted over published, with another value of the knob."""
        scale = 1 + self.share * (value / self.knob.value - 1)
        factor = 1 / scale if self.result.unit.endswith("/s") else scale
        return math.log(self.result.predicted * factor / self.result.published)

    def with_value(self, value: float) -> Result:
        """The result, with what it would be with another value of the knob beside it."""
        return replace(self.result, left_out=self.result.published * math.exp(self.error(value)))


def planned_share(found: Estimate) -> float:
    """The share of the time of a call that vertices of products and convolutions take on the busiest IPU."""
    busy: dict[int, float] = {}
    planned: dict[int, float] = {}
    for slot in found.timeline.slots:
        busy[slot.ipu] = busy.get(slot.ipu, 0.0) + slot.cycles
        for record in slot.records:
            steps = [s for s in record.cost.steps if any(v.codelet in _PLANNED for v in s.vertices)]
            planned[slot.ipu] = planned.get(slot.ipu, 0.0) + sum(s.repeat * s.cycles for s in steps)
    ipu = max(busy, key=lambda it: busy[it])
    on_chip = sum(found.timeline.spent.on(key) for key in ("compute", "exchange", "sync", "host", "link"))
    return planned[ipu] / busy[ipu] * on_chip / found.timeline.cycles


def knob_of(result: Result) -> Knob | None:
    """The knob that was fitted to a measurement, if there is one."""
    return next((knob for kind, knob in _BY_UNIT.items() if result.name.endswith(f": {kind}")), None)


def fitted(results: Sequence[Scaled]) -> float:
    """The value of their knob with the smallest sum of squared logarithmic errors."""
    values = results[0].knob.value * np.linspace(0.5, 2.0, 1501)
    return float(min(values, key=lambda value: sum(it.error(value) ** 2 for it in results)))


def left_out(results: Sequence[Scaled]) -> list[Result]:
    """Each result with what it would be if the knob had been fitted to the others only."""
    found = []
    for it in results:
        others = [other for other in results if other is not it]
        found.append(it.with_value(fitted(others)) if others else it.result)
    return found


__all__ = ["PLANNED_COMPUTE", "Scaled", "fitted", "knob_of", "left_out", "planned_share"]

"""The passes that decide about the time of a call, the user's lines in them, and how near to the peak they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import fx

from poptorch.ipu_model.architecture import Architecture
from poptorch.ipu_model.book import OpRecord
from poptorch.ipu_model.changes import block_of
from poptorch.ipu_model.rules.products import product_type
from poptorch.ipu_model.settings import CostSettings, partials_type
from poptorch.ops.traits import OpKind, traits_of

if TYPE_CHECKING:
    from poptorch.ipu_model.result import Estimate, StageEstimate

_MULTIPLIES = {OpKind.PRODUCT, OpKind.CONVOLUTION, OpKind.ATTENTION, OpKind.RECURRENT}


@dataclass(frozen=True)
class CostedProduct:
    """What an operation that multiplies matrices could do at best."""

    dtype: torch.dtype
    partials: torch.dtype
    ideal: float
    """Cycles at the peak of the matrix units for these types."""


@dataclass(frozen=True)
class Line:
    """All operations of one line of the user's code on the critical path."""

    source: str
    records: tuple[OpRecord, ...] = field(repr=False)
    blocks: tuple[str, ...]
    """The modules that they belong to."""

    cycles: float
    products: float
    """Cycles of those that multiply matrices."""

    ideal: float
    """What these would take at the peak."""

    @property
    def operators(self) -> list[tuple[str, float, int]]:
        """Bare names, cycles and number of calls, the longest first."""
        found: dict[str, tuple[float, int]] = {}
        for record in self.records:
            name = record.operator.removeprefix("aten.").partition(".")[0]
            cycles, count = found.get(name, (0.0, 0))
            found[name] = cycles + record.cycles.total, count + 1
        return sorted(((n, c, k) for n, (c, k) in found.items() if c), key=lambda item: -item[1])


@dataclass(frozen=True)
class CriticalPath:
    """The passes that decide how long a micro-batch takes: those of the slowest IPU of a pipeline, or all of them."""

    stages: tuple[StageEstimate, ...]
    ipus: tuple[int, ...]
    cycles: float
    """Of one micro-batch."""

    share: float
    """Of the time of a call in which these passes are what it waits for; the rest is the update and the last copies."""

    products: Mapping[int, CostedProduct] = field(repr=False)
    """Those of the records, by their identity."""

    @property
    def records(self) -> list[OpRecord]:
        return [record for stage in self.stages for record in stage.operations]

    def lines(self) -> list[Line]:
        """The user's lines, the longest first; operations without a line are together by their module."""
        grouped: dict[str, list[OpRecord]] = {}
        for record in self.records:
            if record.cycles.total:
                grouped.setdefault(record.source or record.scope.rpartition("/")[2] or record.sweep.value, []).append(
                    record
                )
        found = [self._line(source, records) for source, records in grouped.items()]
        return sorted(found, key=lambda line: -line.cycles)

    def _line(self, source: str, records: Sequence[OpRecord]) -> Line:
        multiplying = [r for r in records if id(r) in self.products]
        modules = dict.fromkeys(block_of(r.scope) for r in records if r.scope)
        return Line(
            source,
            tuple(records),
            tuple(modules),
            sum(r.cycles.total for r in records),
            sum(r.cycles.total for r in multiplying),
            sum(self.products[id(r)].ideal for r in multiplying),
        )


def critical_path(estimate: Estimate) -> CriticalPath:
    """Of one micro-batch in the steady state."""
    stages = estimate.stages
    if estimate.flow.pipelined:
        busy: dict[int, float] = {}
        for stage in stages:
            busy[stage.ipu] = busy.get(stage.ipu, 0.0) + stage.cycles
        slowest = max(busy, key=busy.__getitem__)
        stages = tuple(stage for stage in stages if stage.ipu == slowest)
    total, timeline = estimate.timeline.cycles, estimate.timeline
    updates = timeline.update * timeline.updates
    return CriticalPath(
        stages,
        tuple(dict.fromkeys(stage.ipu for stage in stages)),
        sum(stage.cycles for stage in stages),
        max(0.0, 1.0 - updates / total) if total else 0.0,
        _products(estimate),
    )


def _products(estimate: Estimate) -> dict[int, CostedProduct]:
    settings = estimate.device.settings
    costs = CostSettings.of(settings.backend, settings.memory_proportions)
    nodes: dict[tuple[int, str], fx.Node] = {
        (stage.slot, node.name): node for stage in estimate.device.plan.stages for node in stage.program.operations()
    }
    found: dict[int, CostedProduct] = {}
    for stage in estimate.stages:
        for record in stage.operations:
            node = nodes.get((stage.time.slot, record.name))
            if node is None or not record.cost.flops or not record.cycles.total:
                continue
            kind = traits_of(node).kind
            if kind not in _MULTIPLIES:
                continue
            value = next((o.meta.get("val") for o in node.all_input_nodes), None)
            if not isinstance(value, torch.Tensor):
                continue
            dtype = product_type(value.dtype)
            partials = costs.convolution_partials if kind is OpKind.CONVOLUTION else costs.product_partials
            if record.info.partials is not None:
                partials = partials_type(record.info.partials)
            partials = torch.float32 if dtype is torch.float32 else partials
            found[id(record)] = CostedProduct(
                dtype, partials, ideal_cycles(estimate.chip, record.cost.flops, dtype, partials)
            )
    return found


def ideal_cycles(chip: Architecture, flops: float, dtype: torch.dtype, partials: torch.dtype) -> float:
    """The cycles of products at the peak of the matrix units.

    >>> from poptorch.ipu_model.architecture import architecture
    >>> round(ideal_cycles(architecture("mk2"), 2 * 64 * 1472 * 100, torch.float16, torch.float16))
    100
    """
    return chip.cycles(flops / chip.peak_flops(dtype, partials))


__all__ = ["CriticalPath", "Line", "CostedProduct", "critical_path", "ideal_cycles"]

"""What the IPU Model says about a program: one object that prints as a page."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from poptorch.compiler.device_program import DeviceProgram
from poptorch.figures import Shown
from poptorch.ipu_model.architecture import Architecture
from poptorch.ipu_model.book import OpRecord
from poptorch.ipu_model.findings import Finding, Trials, Tried, findings_of, ways_to_fit
from poptorch.ipu_model.flow import Flow
from poptorch.ipu_model.memory import IpuMemory
from poptorch.ipu_model.page import comparison_text, page
from poptorch.ipu_model.timeline import SlotTime, Timeline
from poptorch.ipu_model.trials import Bench
from poptorch.ipu_model.updating import UpdateCosts

_WRITER = "poptorch.report.page.saving:write_estimate"
"""Reports stand above the IPU Model, which imports nothing of them: it knows the name of what writes one."""


@dataclass(frozen=True)
class StageEstimate:
    """One pass of one part of the model."""

    label: str
    time: SlotTime = field(repr=False)

    @property
    def ipu(self) -> int:
        return self.time.ipu

    @property
    def cycles(self) -> float:
        """Of one micro-batch."""
        return self.time.cycles

    @property
    def operations(self) -> tuple[OpRecord, ...]:
        """In program order, each with its layer, source line, steps, cycles, operations and bytes."""
        return self.time.records


@dataclass(frozen=True)
class Estimate(Shown):
    """Predicted time and memory of one call.

    Nothing in it is measured. ``assumptions`` lists what had to be assumed, ``uncovered_ops`` the operators whose cost
    is a guess.
    """

    chip: Architecture
    device: DeviceProgram = field(repr=False)
    flow: Flow = field(repr=False)
    timeline: Timeline = field(repr=False)
    ipus: tuple[IpuMemory, ...] = field(repr=False)
    """The IPUs of one replica; all replicas are alike."""

    micro_batch: int
    """Samples of one micro-batch."""

    assumptions: tuple[str, ...] = field(repr=False)
    uncovered_ops: Mapping[str, int] = field(repr=False)
    """Operators without a rule of their own, with the number of their calls."""

    operations: int = 0
    kinds: int = 0
    """Different operations among these; equal ones are worked out once."""

    update: UpdateCosts = field(default_factory=UpdateCosts, repr=False)
    """The operations of one weight update."""

    bench: Bench | None = field(default=None, repr=False, compare=False)
    """What tries changes of the model; nothing if only its program is known."""

    @property
    def replicas(self) -> int:
        """Of all processes."""
        return self.device.loop.all_replicas or self.device.loop.replicas

    @property
    def samples(self) -> int:
        """That one call takes, all replicas together."""
        loop = self.device.loop
        return self.micro_batch * loop.device_iterations * loop.gradient_accumulation * self.replicas

    @property
    def cycles(self) -> int:
        """Of one call, on one IPU clock."""
        return round(self.timeline.cycles)

    @property
    def seconds(self) -> float:
        """Of one call."""
        return self.chip.seconds(self.timeline.cycles)

    @property
    def throughput(self) -> float:
        """Samples per second, all replicas together."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def latency(self) -> float:
        """Seconds from the input of a micro-batch to its results; in training, to the end of its backward pass."""
        return self.chip.seconds(self.timeline.latency)

    @property
    def bound_by(self) -> str:
        """``compute``, ``exchange``, ``link``, ``host`` or ``DDR``: what most of the time is spent on."""
        return self.timeline.bound_by

    @property
    def bubble(self) -> float:
        """The share of the time in which IPUs wait for each other."""
        return self.timeline.bubble

    @property
    def fits(self) -> bool:
        """Whether all tiles of all IPUs have room."""
        return all(ipu.fits for ipu in self.ipus)

    @property
    def stages(self) -> tuple[StageEstimate, ...]:
        """The passes of the parts of the model, in an order in which they can run."""
        programs = {stage.slot: stage for stage in self.device.plan.stages}
        whole = self.device.plan.whole
        return tuple(
            StageEstimate("whole model" if whole else programs[time.slot].label, time) for time in self.timeline.slots
        )

    @property
    def flops(self) -> float:
        """Useful floating-point operations of one call, all replicas together; recomputation is not counted."""
        loop = self.device.loop
        each = sum(slot.flops for slot in self.timeline.slots)
        return each * loop.device_iterations * loop.gradient_accumulation * self.replicas

    def ipu(self, number: int) -> IpuMemory:
        """The memory of one IPU, by its number."""
        return next(ipu for ipu in self.ipus if ipu.ipu == number)

    @cached_property
    def ways_to_fit(self) -> tuple[tuple[int, Tried], ...]:
        """Changes that free memory on IPUs which do not fit, each tried."""
        return () if self.fits else tuple(ways_to_fit(self, Trials(self)))

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What stands out, the most urgent first. Every change that it names was tried, and brings what it says."""
        return findings_of(self)

    def suggestions(self) -> list[str]:
        """What makes IPUs fit that do not: a line for each change that helped when it was tried."""
        return [f"IPU {ipu}: {tried.text}: {tried.effect(ipu)}" for ipu, tried in self.ways_to_fit]

    def save(self, file: str | os.PathLike[str], name: str = "estimate") -> Path:
        """Write a file: ``.html`` for a page, ``.json`` for all figures, ``.txt``; a name without an end is a folder.

        >>> import tempfile, torch, poptorch
        >>> found = poptorch.ipu_model.estimate(torch.nn.Linear(8, 4), None, torch.ones(2, 8))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found.save(f"{folder}/linear.json").name
        'linear.json'
        """
        write = pkgutil.resolve_name(_WRITER)
        return Path(write(Path(file), self, name))

    def compare(self, other: Estimate) -> str:
        """Both estimates side by side, for people."""
        return comparison_text(self, other)

    def to_dict(self) -> dict[str, Any]:
        """All figures, for tools: numbers, texts, lists and dictionaries."""
        return {
            "architecture": self.chip.name,
            "ipus_per_replica": len(self.ipus),
            "replicas": self.replicas,
            "micro_batch": self.micro_batch,
            "samples": self.samples,
            "cycles": self.cycles,
            "seconds": self.seconds,
            "throughput": self.throughput,
            "latency": self.latency,
            "bubble": self.bubble,
            "bound_by": self.bound_by,
            "cycles_by_resource": {key: float(cycles) for key, cycles in self.timeline.spent.by.items()},
            "update_cycles": self.timeline.update,
            "flops": self.flops,
            "fits": self.fits,
            "ipus": [
                {
                    "ipu": ipu.ipu,
                    "peak_tile_bytes": ipu.peak_tile_bytes,
                    "peak_tile": ipu.peak_tile,
                    "tile_limit": ipu.limit,
                    "fits": ipu.fits,
                    "memory": ipu.memory,
                    "blame": [list(item) for item in ipu.blame()],
                }
                for ipu in self.ipus
            ],
            "stages": [
                {"label": stage.label, "ipu": stage.ipu, "cycles": stage.cycles, "flops": stage.time.flops}
                for stage in self.stages
            ],
            "suggestions": self.suggestions(),
            "findings": [finding.to_dict() for finding in self.findings],
            "assumptions": list(self.assumptions),
            "uncovered_ops": dict(self.uncovered_ops),
        }

    def __str__(self) -> str:
        return page(self)


__all__ = ["Estimate", "StageEstimate"]

"""Where tensors live: on chip or in streaming memory, whole on every replica or in shards."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from poptorch.compiler.plan import Plan
from poptorch.program.program import Program, Role
from poptorch.program.update import StateTensor


class Category(enum.Enum):
    """The four kinds of tensors with a location of their own; the value is the option's name."""

    ACTIVATION = "location_activation"
    WEIGHT = "location_weight"
    OPTIMIZER = "location_optimizer"
    ACCUMULATOR = "location_accumulator"


@dataclass(frozen=True)
class Location:
    """The settings of one category."""

    on_chip: bool = True
    sharded: bool = False
    min_off_chip: int = 2
    min_sharded: int = 8192

    @staticmethod
    def of(settings: Mapping[str, Any], *, phased: bool) -> Location:
        """Read ``TensorLocationSettings``; what is not said is on chip, except in phased strategies."""
        return Location(
            on_chip=bool(settings.get("onChip", not phased)),
            sharded=bool(settings.get("useReplicatedTensorSharding", False)),
            min_off_chip=int(settings.get("minElementsForOffChip", 2)),
            min_sharded=int(settings.get("minElementsForReplicatedTensorSharding", 8192)),
        )

    def stays_on_chip(self, elements: int) -> bool:
        """Whether a tensor of this size is on chip between its uses."""
        return self.on_chip or elements < self.min_off_chip

    def is_sharded(self, elements: int, replicas: int) -> bool:
        """Whether a tensor of this size is split over the replicas."""
        return self.sharded and replicas > 1 and elements >= self.min_sharded


@dataclass(frozen=True)
class Home:
    """One tensor and where it lives."""

    name: str
    category: Category
    elements: int
    element_size: int
    on_chip: bool
    shards: int
    """Over how many replicas it is split; one: every replica has all of it."""

    parts: tuple[int, ...]
    """The parts of the model that use it."""

    @property
    def bytes_per_replica(self) -> int:
        """What one replica holds, padding included."""
        return math.ceil(self.elements / self.shards) * self.element_size


@dataclass
class MemoryMap:
    """All tensors of a program that outlive a single operation."""

    homes: list[Home] = field(default_factory=list)
    parts: int = 1

    def bytes_per_replica(self, category: Category | None = None) -> int:
        """What one replica holds, on chip and in streaming memory together."""
        return sum(h.bytes_per_replica for h in self.homes if category in (None, h.category))

    def is_sharded(self, category: Category) -> bool:
        """Whether some tensor of a category is split over the replicas."""
        return any(h.shards > 1 for h in self.homes if h.category is category)

    def streaming(self) -> list[Home]:
        """The tensors whose place between uses is streaming memory."""
        return [h for h in self.homes if not h.on_chip]

    def on_chip_during(self, part: int) -> list[Home]:
        """What is on chip while one part of the model runs: all that stays there, and what this part loads."""
        return [h for h in self.homes if h.on_chip or part in h.parts]

    def loaded_by(self, part: int) -> int:
        """Bytes that come from streaming memory when the part is about to run."""
        return sum(h.bytes_per_replica for h in self.streaming() if part in h.parts)

    def peak_on_chip(self) -> int:
        """The most bytes on chip at once on one replica, over the parts."""
        return max(
            (sum(h.bytes_per_replica for h in self.on_chip_during(p)) for p in range(self.parts)), default=0
        )

    def __str__(self) -> str:
        lines = [f"{'tensor':<40} {'kind':<12} {'bytes/replica':>14}  where"]
        for home in self.homes:
            where = "on chip" if home.on_chip else "streaming memory"
            split = f", 1/{home.shards} per replica" if home.shards > 1 else ""
            kind = home.category.name.lower()
            lines.append(f"{home.name:<40} {kind:<12} {home.bytes_per_replica:>14}  {where}{split}")
        return "\n".join(lines)


def map_memory(
    program: Program,
    plan: Plan,
    locations: Mapping[Category, Location],
    replicas: int,
    state: Iterable[StateTensor],
) -> MemoryMap:
    """Give every weight, accumulator, tensor of optimizer state and stashed activation its home."""
    users = _users(plan)
    result = MemoryMap(parts=len(plan.parts))

    def add(name: str, category: Category, elements: int, size: int, parts: tuple[int, ...]) -> None:
        location = locations[category]
        shards = replicas if location.is_sharded(elements, replicas) else 1
        on_chip = location.stays_on_chip(elements)
        result.homes.append(Home(name, category, elements, size, on_chip, shards, parts))

    sizes = {}
    for port in program.ports_of(Role.PARAMETER):
        sizes[port.name] = math.prod(port.shape), port.dtype.itemsize
        add(port.name, Category.WEIGHT, *sizes[port.name], users.get(port.name, (0,)))
    for name in program.gradients:
        add(f"Accum___{name}", Category.ACCUMULATOR, *sizes[name], users.get(name, (0,)))
    for kept in state:
        elements = math.prod(kept.shape)
        add(kept.name, Category.OPTIMIZER, elements, kept.dtype.itemsize, users.get(kept.parameter, (0,)))
    for edge in plan.kept:
        last = 2 * result.parts - 1
        parts = tuple(sorted({last - c if c >= result.parts else c for c in (edge.producer, *edge.consumers)}))
        add(edge.name, Category.ACTIVATION, edge.num_bytes, 1, parts)
    return result


def _users(plan: Plan) -> dict[str, tuple[int, ...]]:
    """The parts that use each parameter."""
    found: dict[str, set[int]] = {}
    for stage in plan.stages:
        for port in stage.program.ports_of(Role.PARAMETER):
            found.setdefault(port.name, set()).add(stage.part)
    return {name: tuple(sorted(parts)) for name, parts in found.items()}

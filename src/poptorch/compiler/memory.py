"""Where tensors live: on chip or in streaming memory, whole on every replica or in shards."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from poptorch.compiler.plan import Plan
from poptorch.enums import OverlapMode
from poptorch.program.loop import Loop
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Port, Program, Role, type_text, value_of
from poptorch.program.replica_groups import ReplicaGrouping
from poptorch.program.update import UpdateProgram


class Category(enum.Enum):
    """What a tensor is for."""

    WEIGHT = "weight"
    ACCUMULATOR = "accumulator"
    OPTIMIZER = "optimizer"
    ACTIVATION = "activation"
    BUFFER = "buffer"
    CONSTANT = "constant"
    INPUT = "input"
    OUTPUT = "output"


LOCATION_OPTIONS: Mapping[Category, str] = {
    Category.ACTIVATION: "location_activation",
    Category.WEIGHT: "location_weight",
    Category.OPTIMIZER: "location_optimizer",
    Category.ACCUMULATOR: "location_accumulator",
}
"""The option that says where the tensors of a category live. All others are on chip, whole on every replica."""


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
    """One tensor and where it lives.

    >>> home = Home("fc.weight", Category.WEIGHT, (3, 5), torch.float16, shards=2)
    >>> home.elements, home.bytes, home.bytes_per_replica
    (15, 30, 16)
    """

    name: str
    category: Category
    shape: tuple[int, ...]
    """What one replica uses, however many hold a shard of it."""

    dtype: torch.dtype
    on_chip: bool = True
    shards: int = 1
    """Over how many replicas it is split; one: every replica has all of it."""

    parts: tuple[int, ...] = (0,)
    """The parts of the model that use it."""

    overlap: OverlapMode | None = None
    """Of inputs and outputs: when the copy from or to the host may happen, if the user said so."""

    @property
    def elements(self) -> int:
        """How many elements the whole tensor has."""
        return math.prod(self.shape)

    @property
    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """The size of the whole tensor."""
        return self.elements * self.element_size

    @property
    def bytes_per_replica(self) -> int:
        """What one replica holds, padding included."""
        return math.ceil(self.elements / self.shards) * self.element_size

    @property
    def where(self) -> str:
        """For people: its place, its split, and what the user said about its copy."""
        place = "on chip" if self.on_chip else "streaming memory"
        split = f", 1/{self.shards} per replica" if self.shards > 1 else ""
        return place + split + ("" if self.overlap is None else f", overlap: {self.overlap.name}")


@dataclass(frozen=True)
class MemoryMap:
    """The tensors of a micro-batch's program that outlive a single operation.

    These are weights, gradient accumulators, optimizer state, activations that wait for a backward pass in another
    stage, buffers, constants, inputs and outputs.
    """

    homes: tuple[Home, ...] = ()
    parts: int = 1
    """Of the model."""

    def of(self, category: Category) -> list[Home]:
        """The tensors of one category."""
        return [h for h in self.homes if h.category is category]

    def bytes_per_replica(self, category: Category | None = None) -> int:
        """What one replica holds, on chip and in streaming memory together."""
        return sum(h.bytes_per_replica for h in self.homes if category in (None, h.category))

    def is_sharded(self, category: Category) -> bool:
        """Whether some tensor of a category is split over the replicas."""
        return any(h.shards > 1 for h in self.of(category))

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
        return max((sum(h.bytes_per_replica for h in self.on_chip_during(p)) for p in range(self.parts)), default=0)

    def __str__(self) -> str:
        lines = [f"{'tensor':<40} {'kind':<12} {'type':<22} {'bytes/replica':>14}  where"]
        for home in self.homes:
            kind, type_ = home.category.value, type_text(home.dtype, home.shape)
            lines.append(f"{home.name:<40} {kind:<12} {type_:<22} {home.bytes_per_replica:>14}  {home.where}")
        return "\n".join(lines)


def map_memory(
    program: Program,
    plan: Plan,
    loop: Loop,
    locations: Mapping[Category, Location],
    update: UpdateProgram | None,
    groups: Mapping[str, ReplicaGrouping],
) -> MemoryMap:
    """Give every tensor that outlives a single operation its home."""
    mapper = _Mapper(program, plan, loop, locations, update, groups)
    return MemoryMap(tuple(mapper.homes()), len(plan.parts))


_STATE = {Role.BUFFER: Category.BUFFER, Role.CONSTANT: Category.CONSTANT}
_STREAMS = {Role.INPUT: Category.INPUT, Role.LOSS_SCALE: Category.INPUT}


class _Mapper:
    """Finds the tensors of a program, kind by kind."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        loop: Loop,
        locations: Mapping[Category, Location],
        update: UpdateProgram | None,
        groups: Mapping[str, ReplicaGrouping],
    ) -> None:
        self._program = program
        self._plan = plan
        self._loop = loop
        self._locations = locations
        self._update = update
        self._groups = groups
        self._users = _users(plan)
        self._weights = {port.name: port for port in program.ports_of(Role.PARAMETER)}

    def homes(self) -> Iterator[Home]:
        """All of them."""
        for port in self._weights.values():
            yield self._of_weight(port.name, port, Category.WEIGHT, port.shape, port.dtype)
        if self._update is not None:
            yield from self._accumulators(self._update)
            yield from self._optimizer_state(self._update)
        yield from self._activations()
        for roles in (_STATE, _STREAMS):
            yield from (self._of_port(port, roles[port.role]) for port in self._program.ports if port.role in roles)
        yield from self._outputs(OutputKind.RESULT, [stage.results for stage in self._plan.stages])
        yield from self._outputs(OutputKind.ANCHOR, [stage.anchors for stage in self._plan.stages])

    def _accumulators(self, update: UpdateProgram) -> Iterator[Home]:
        """Without accumulation, the update takes the gradients as they are, be it from several replicas."""
        if self._loop.gradient_accumulation == 1:
            return
        program = self._program
        for name, gradient in zip(program.gradients, program.values_of(OutputKind.GRADIENT), strict=True):
            if name in update.combined:
                continue
            weight, dtype = self._weights[name], update.accumulators.get(name, value_of(gradient).dtype)
            yield self._of_weight(f"Accum___{name}", weight, Category.ACCUMULATOR, weight.shape, dtype)

    def _optimizer_state(self, update: UpdateProgram) -> Iterator[Home]:
        for kept in update.state:
            weight, shape = self._weights[kept.parameter], kept.shape
            if weight.name in self._groups and len(shape) > len(weight.shape):
                shape = shape[1:]  # a replica holds the row of its group
            yield self._of_weight(kept.name, weight, Category.OPTIMIZER, shape, kept.dtype)

    def _activations(self) -> Iterator[Home]:
        parts = len(self._plan.parts)
        for edge in self._plan.kept:
            slots = (edge.producer, *edge.consumers)
            used = tuple(sorted({2 * parts - 1 - slot if slot >= parts else slot for slot in slots}))
            home = Home(edge.name, Category.ACTIVATION, edge.shape, edge.dtype, parts=used)
            yield self._placed(home, self._loop.replicas)

    def _outputs(self, kind: OutputKind, by_stage: list[list[int]]) -> Iterator[Home]:
        parts = {i: stage.part for stage, found in zip(self._plan.stages, by_stage, strict=True) for i in found}
        pairs = zip(self._program.outputs_of(kind), self._program.values_of(kind), strict=True)
        for index, (output, node) in enumerate(pairs):
            value, part = value_of(node), parts.get(index, 0)
            shape = tuple(value.shape)
            yield Home(output.name, Category.OUTPUT, shape, value.dtype, parts=(part,), overlap=output.overlap)

    def _of_port(self, port: Port, category: Category) -> Home:
        parts = self._users.get((port.role, port.name), (0,))
        return Home(port.name, category, port.shape, port.dtype, parts=parts, overlap=port.overlap)

    def _of_weight(
        self, name: str, weight: Port, category: Category, shape: tuple[int, ...], dtype: torch.dtype
    ) -> Home:
        """The home of a weight, or of what belongs to it."""
        parts = self._users.get((Role.PARAMETER, weight.name), (0,))
        # A weight that differs between groups of replicas is whole on each of them.
        replicas = 1 if weight.name in self._groups else self._loop.replicas_of_job
        return self._placed(Home(name, category, shape, dtype, parts=parts), replicas)

    def _placed(self, home: Home, replicas: int) -> Home:
        """The same tensor where the options say."""
        location = self._locations[home.category]
        return replace(
            home,
            on_chip=location.stays_on_chip(home.elements),
            shards=replicas if location.is_sharded(home.elements, replicas) else 1,
        )


def _users(plan: Plan) -> dict[tuple[Role, str], tuple[int, ...]]:
    """The parts that use each port."""
    found: dict[tuple[Role, str], set[int]] = {}
    for stage in plan.stages:
        for port in stage.program.ports:
            found.setdefault((port.role, port.name), set()).add(stage.part)
    return {key: tuple(sorted(parts)) for key, parts in found.items()}

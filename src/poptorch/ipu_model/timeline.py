"""When IPUs do what: pipeline cycles with fill and drain, shards, phases, collectives, links, host, streaming memory.

A call is a number of *rounds* (micro-batches up to a weight update; in inference, all micro-batches of the call). The
time of a round is worked out from a few kinds of cycles, never by walking through all of its micro-batches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import fx

from poptorch.compiler.memory import Category, Home
from poptorch.compiler.passes.stages import StageProgram
from poptorch.enums import OutputMode, OverlapMode
from poptorch.ipu_model.architecture import Architecture
from poptorch.ipu_model.book import Cycles, OpRecord
from poptorch.ipu_model.flow import Flow
from poptorch.ipu_model.tiles import element_bytes
from poptorch.ipu_model.updating import UpdateCosts
from poptorch.program.program import Port, Role
from poptorch.schedule import Kind

RESOURCES = ("compute", "exchange", "link", "host", "DDR")
"""What a program can be bound by."""


@dataclass
class Spent:
    """Cycles by what they are spent on."""

    by: dict[str, float] = field(default_factory=dict)

    @classmethod
    def on_chip(cls, cycles: Cycles) -> Spent:
        """Cycles of an IPU by itself."""
        return cls({"compute": cycles.compute, "exchange": cycles.exchange, "sync": cycles.sync})

    @property
    def total(self) -> float:
        return sum(self.by.values())

    def on(self, key: str) -> float:
        """The cycles that are spent on one thing."""
        return self.by.get(key, 0.0)

    def add(self, other: Spent, times: float = 1.0) -> None:
        """Put other cycles after these."""
        for key, cycles in other.by.items():
            self.spend(key, cycles * times)

    def spend(self, key: str, cycles: float) -> None:
        """Put some cycles after these."""
        self.by[key] = self.on(key) + cycles


@dataclass(frozen=True)
class Move:
    """A copy between an IPU and something else, or within it between two passes: a step with a name."""

    name: str
    resource: str
    """``host``, ``link``, ``DDR`` or ``compute``."""

    cycles: float
    bytes: float = 0.0


@dataclass(frozen=True)
class SlotTime:
    """The forward or the backward pass of a part, for one micro-batch."""

    slot: int
    part: int
    backward: bool
    ipu: int
    records: tuple[OpRecord, ...] = field(repr=False)
    spent: Spent = field(repr=False)
    moves: tuple[Move, ...] = field(default=(), repr=False)
    """Copies of the pass; their cycles are part of what is spent."""

    @property
    def cycles(self) -> float:
        return self.spent.total

    @property
    def flops(self) -> float:
        """Useful operations, recomputation not counted."""
        return sum(r.cost.flops for r in self.records if not r.info.recomputed)


@dataclass(frozen=True)
class Timeline:
    """The time of one call."""

    slots: tuple[SlotTime, ...]
    spent: Spent
    """Of the whole call."""

    cycle: float
    """Of one micro-batch in the steady state: a pipeline cycle, or all passes one after the other."""

    bubble: float
    """The share of a call in which an IPU waits for others, on average over the IPUs."""

    latency: float
    """Cycles from the input of a micro-batch to its results, or to the end of its backward pass."""

    update: float
    """Cycles of one weight update, collectives and streaming included."""

    updates: int
    update_moves: Mapping[int, tuple[Move, ...]] = field(default_factory=dict, repr=False)
    """Collectives and copies of a weight update, by IPU."""

    call_moves: tuple[Move, ...] = field(default=(), repr=False)
    """Copies at both ends of a call."""

    ticks: tuple[tuple[int, float], ...] = ()
    """The pipeline cycles of one round, or its micro-batches one by one: how many, and the cycles of each of them."""

    @property
    def cycles(self) -> float:
        return self.spent.total

    @property
    def bound_by(self) -> str:
        """Where most of the time goes."""
        return max(RESOURCES, key=self.spent.on)


def timeline_of(
    flow: Flow,
    chip: Architecture,
    costs: Mapping[fx.Node, OpRecord],
    extra: Mapping[int, Sequence[OpRecord]],
    update: UpdateCosts,
    io_tiles: int = 0,
) -> Timeline:
    """The time of one call; ``extra`` are operations of a slot that no program has."""
    return _Times(flow, chip, costs, extra, update, io_tiles).found()


@dataclass(frozen=True)
class _RoundTimes:
    """The time of the micro-batches up to a weight update; the fields are those of a timeline."""

    spent: Spent
    cycle: float
    latency: float
    ticks: tuple[tuple[int, float], ...]


class _Times:
    def __init__(
        self,
        flow: Flow,
        chip: Architecture,
        costs: Mapping[fx.Node, OpRecord],
        extra: Mapping[int, Sequence[OpRecord]],
        update: UpdateCosts,
        io_tiles: int,
    ) -> None:
        self._flow = flow
        self._device = flow.device
        self._chip = chip
        self._costs = costs
        self._extra = extra
        self._update_costs = update
        self._io_tiles = io_tiles
        loop = self._device.loop
        self._replicas = loop.all_replicas or loop.replicas
        training = self._device.settings.training
        self._rounds = loop.device_iterations if training else 1
        self._micro = loop.gradient_accumulation if training else loop.device_iterations

    def found(self) -> Timeline:
        slots = tuple(self._slot(stage.slot) for stage in self._device.plan.stages)
        if self._flow.pipelined:
            each = self._pipelined(slots)
        elif self._device.plan.ordering.is_phased and not self._device.plan.whole:
            each = self._phased(slots)
        else:
            each = self._one_by_one(slots)
        update = self._update()
        call = Spent()
        call.add(each.spent, self._rounds)
        if self._device.update is not None:
            call.add(update, self._rounds)
        ends = self._ends()
        for move in ends:
            call.spend(move.resource, move.cycles)
        busy = sum(s.cycles for s in slots) * self._micro * self._rounds
        ipus = len(self._flow.ipus)
        whole = each.spent.total
        bubble = max(0.0, 1.0 - busy / (ipus * whole * self._rounds)) if whole else 0.0
        updates = self._rounds if self._device.update is not None else 0
        moves = {ipu: tuple(self._update_moves(ipu)) for ipu in self._flow.ipus} if updates else {}
        return Timeline(
            slots, call, each.cycle, bubble, each.latency, update.total, updates, moves, ends, ticks=each.ticks
        )

    # -- one pass of one part --------------------------------------------------------------------------------------

    def _slot(self, slot: int) -> SlotTime:
        stage = next(s for s in self._device.plan.stages if s.slot == slot)
        records = tuple(self._costs[n] for n in stage.program.operations() if n in self._costs)
        records += tuple(self._extra.get(slot, ()))
        cycles = Cycles()
        for record in records:
            cycles += record.cycles
        spent = Spent.on_chip(cycles)
        moves: list[Move] = []
        for found in (self._stash_copies(slot), self._host_copies(slot), self._streamed(slot), self._gathered(slot)):
            for move in found:
                if move.cycles:
                    moves.append(move)
                    spent.spend(move.resource, move.cycles)
        late = max(0.0, self._host_cycles(sum(self._host_bytes(slot))) - spent.total)
        if late:
            moves.append(Move("wait for the host", "host", late))
            spent.spend("host", late)
        return SlotTime(slot, stage.part, stage.backward, self._flow.ipu_of(slot), records, spent, tuple(moves))

    def _stash_copies(self, slot: int) -> Iterator[Move]:
        """A stash is written in one pass and read in another."""
        chip = self._chip
        for stash in self._flow.stashes:
            uses = {stash.value.slot, *stash.value.consumers}
            if stash.on_chip and slot in uses and self._flow.ipu_of(slot) == stash.ipu:
                cycles = stash.value.bytes / chip.tiles / chip.copy_bytes + chip.sync_cycles
                what = "stash" if slot < self._flow.parts else "restore"
                yield Move(f"{what} {stash.value.name}", "compute", cycles, stash.value.bytes)

    def _host_copies(self, slot: int) -> Iterator[Move]:
        """Inputs and outputs of a micro-batch; on tiles of their own they overlap with computation."""
        shown, _ = self._host_bytes(slot)
        if shown:
            # The host fetches ahead: what a pass waits for is the copy from the memory beside its IPU.
            yield Move("sync with the host", "host", 2.0 * self._chip.global_sync_cycles)
            yield Move("inputs and results", "host", self._chip.cycles(shown / self._chip.host_bandwidth), shown)

    def _host_bytes(self, slot: int) -> tuple[float, float]:
        """Bytes that the computation waits for, and bytes that move meanwhile."""
        stage = next(s for s in self._device.plan.stages if s.slot == slot)
        inputs = [] if stage.backward and self._flow.pipelined else self._model_inputs(stage)
        homes = {h.name: h for h in self._device.memory.of(Category.OUTPUT)}
        results = self._device.program.results
        outputs = [homes[results[i]] for i in stage.results if results[i] in homes] if self._every_output else []
        shown = hidden = 0.0
        tensors: list[Port | Home] = [*inputs, *outputs]
        for tensor in tensors:
            size = math.prod(tensor.shape) * element_bytes(tensor.dtype)
            if self._io_tiles and tensor.overlap not in (None, OverlapMode.NoOverlap):
                hidden += size
            else:
                shown += size
        return shown, hidden

    def _model_inputs(self, stage: StageProgram) -> list[Port]:
        return [p for p in stage.program.ports if p.role is Role.INPUT][: len(stage.inputs)]

    @property
    def _every_output(self) -> bool:
        """Whether each micro-batch sends its results to the host."""
        return self._device.loop.output_mode in (OutputMode.All, OutputMode.EveryN)

    def _ends(self) -> tuple[Move, ...]:
        """What a call begins and ends with."""
        sync = Move("start and end of a call", "host", 2.0 * self._chip.global_sync_cycles)
        if self._every_output:
            return (sync,)
        size = sum(h.elements * element_bytes(h.dtype) for h in self._device.memory.of(Category.OUTPUT))
        return sync, Move("results of a call", "host", self._host_cycles(size), size)

    def _host_cycles(self, size: float) -> float:
        """The IPUs of a host link share it; so do all IPUs of small replicas."""
        chip = self._chip
        per_replica = max(1, self._device.ipus_per_replica)
        sharing = min(self._replicas, max(1, chip.hosted_ipus // per_replica))
        return chip.cycles(size / min(chip.host_bandwidth, chip.shared_host_bandwidth / sharing))

    def _streamed(self, slot: int) -> Iterator[Move]:
        """Weights, accumulators and stashes in streaming memory that a pass needs; phases load theirs in time."""
        if self._device.plan.ordering.is_phased:
            return
        part, backward = self._flow.part_of(slot), slot >= self._flow.parts
        weights = sums = stashes = 0.0
        for home in self._device.memory.streaming():
            if part in home.parts and home.category is Category.WEIGHT:
                weights += home.bytes_per_replica
            elif part in home.parts and home.category is Category.ACCUMULATOR and (backward or self._device.plan.whole):
                sums += 2.0 * home.bytes_per_replica
        for stash in self._flow.stashes:
            if not stash.on_chip and stash.ipu == self._flow.ipu_of(slot):
                stashes += stash.value.bytes if slot in {stash.value.slot, *stash.value.consumers} else 0.0
        for name, size in (
            ("load weights", weights), ("load and store accumulators", sums), ("stashes in streaming memory", stashes)
        ):  # fmt: skip
            yield Move(name, "DDR", self._streaming_cycles(size), size)

    def _streaming_cycles(self, size: float) -> float:
        chip = self._chip
        sharing = min(chip.hosted_ipus, len(self._flow.ipus) * self._replicas)
        return chip.cycles(size * sharing / chip.streaming_bandwidth)

    def _gathered(self, slot: int) -> Iterator[Move]:
        """Weights that replicas share are gathered for each use, gradients scattered to sharded accumulators."""
        part, backward = self._flow.part_of(slot), slot >= self._flow.parts or self._device.plan.whole
        weights = sums = 0.0
        for home in self._device.memory.homes:
            if home.shards == 1 or part not in home.parts:
                continue
            weights += home.bytes if home.category is Category.WEIGHT else 0.0
            sums += home.bytes if home.category is Category.ACCUMULATOR and backward else 0.0
        whole = self._ring_cycles(weights + sums)  # one collective, of both
        for name, size in (("all-gather of weights", weights), ("reduce-scatter of gradients", sums)):
            if size:
                yield Move(name, "link", whole * size / (weights + sums), size)

    def _ring_cycles(self, size: float) -> float:
        """One way round a ring of replicas: a reduce-scatter or an all-gather."""
        if self._replicas == 1 or not size:
            return 0.0
        seconds = size * (self._replicas - 1) / self._replicas / self._chip.ring_bandwidth
        return self._chip.cycles(seconds) + (self._replicas - 1) * self._chip.global_sync_cycles

    # -- one round -------------------------------------------------------------------------------------------------

    def _one_by_one(self, slots: Sequence[SlotTime]) -> _RoundTimes:
        each = Spent()
        for slot in slots:
            each.add(slot.spent)
        for transfer in self._flow.transfers:
            each.spend("link", self._link_cycles(transfer.value.bytes) + self._chip.global_sync_cycles)
        whole = Spent()
        whole.add(each, self._micro)
        return _RoundTimes(whole, each.total, each.total, ((self._micro, each.total),))

    def _link_cycles(self, size: float) -> float:
        return self._chip.cycles(size / self._chip.link_bandwidth)

    def _pipelined(self, slots: Sequence[SlotTime]) -> _RoundTimes:
        """In cycle ``t``, a stage with number ``n`` works on micro-batch ``t - n``, if there is one."""
        depth = max(self._flow.number(s.slot) for s in slots)
        whole = Spent()
        cache: dict[tuple[int, int], Spent] = {}

        def cycle(time: int) -> Spent:
            active = max(0, time - self._micro + 1), min(depth, time)
            if active not in cache:
                cache[active] = self._cycle(slots, *active)
            return cache[active]

        total = self._micro + depth
        steady = max(0, self._micro - depth)
        times = [(1, time) for time in range(min(depth, total))]
        times += [(steady, depth)] if steady else []
        times += [(1, time) for time in range(depth + steady, total)]
        for count, time in times:
            whole.add(cycle(time), count)
        full = self._cycle(slots, 0, depth)
        ticks = tuple((count, cycle(time).total) for count, time in times)
        return _RoundTimes(whole, full.total, full.total * (depth + 1), ticks)

    def _cycle(self, slots: Sequence[SlotTime], first: int, last: int) -> Spent:
        """A pipeline cycle in which stages with these numbers have work: the slowest IPU decides."""
        by_ipu: dict[int, Spent] = {}
        for slot in slots:
            if first <= self._flow.number(slot.slot) <= last:
                by_ipu.setdefault(slot.ipu, Spent()).add(slot.spent)
        spent = Spent()
        if by_ipu:
            spent.add(max(by_ipu.values(), key=lambda s: s.total))
        links: Counter[tuple[int, int]] = Counter()
        for transfer in self._flow.transfers:
            if first <= self._flow.number(transfer.value.slot) <= last:
                for hop in _hops(transfer.source, transfer.target):
                    links[hop] += transfer.value.bytes
        if links:
            spent.spend("link", self._link_cycles(max(links.values())))
        spent.spend("sync", self._chip.global_sync_cycles)
        return spent

    def _phased(self, slots: Sequence[SlotTime]) -> _RoundTimes:
        """Two micro-batches show how much each one more takes."""
        one, two = (self._ticks(slots, micro) for micro in (1, 2))
        more = Spent({key: two.on(key) - one.on(key) for key in two.by})
        whole = Spent(dict(one.by))
        whole.add(more, self._micro - 1)
        return _RoundTimes(whole, more.total, one.total, ((1, one.total), (self._micro - 1, more.total)))

    def _ticks(self, slots: Sequence[SlotTime], micro: int) -> Spent:
        training = self._device.settings.training
        spent = Spent()
        for tick in self._device.plan.schedule(micro, training=training):
            jobs = [self._job(slots, job.kind, job.part) for job in tick.jobs if job is not None]
            if jobs:
                spent.add(max(jobs, key=lambda s: s.total))
        return spent

    def _job(self, slots: Sequence[SlotTime], kind: Kind, phase: int) -> Spent:
        """A job of a phase: all of its parts compute, or move to and from streaming memory."""
        parts = {i for i, part in enumerate(self._device.plan.parts) if part.phase == phase}
        if kind in (Kind.LOAD, Kind.STORE):
            size = max((self._device.memory.loaded_by(p) for p in parts), default=0)
            both = 2.0 if kind is Kind.LOAD and self._device.settings.training else 1.0
            return Spent({"DDR": both * self._streaming_cycles(size)})
        spent = Spent()
        for slot in slots:
            if slot.part in parts and slot.backward == (kind is Kind.BACKWARD):
                spent.add(slot.spent)
        return spent

    # -- the update ------------------------------------------------------------------------------------------------

    def _update(self) -> Spent:
        """The slowest IPU decides; all collectives run at the same time on links of their own."""
        if self._device.update is None:
            return Spent()
        return max((self._update_on(ipu) for ipu in self._flow.ipus), key=lambda s: s.total)

    def _update_on(self, ipu: int) -> Spent:
        cycles = Cycles()
        for record in self._update_costs.on(ipu):
            cycles += record.cycles
        spent = Spent.on_chip(cycles)
        for move in self._update_moves(ipu):
            spent.spend(move.resource, move.cycles)
        return spent

    def _update_moves(self, ipu: int) -> Iterator[Move]:
        """Gradients are summed over replicas, new weights gathered; state comes from streaming memory and goes back."""
        homes = [h for h in self._device.memory.homes if self._on(h, ipu)]
        trained = set(self._device.update.names if self._device.update is not None else ())
        weights = [h for h in homes if h.category is Category.WEIGHT and h.name in trained]
        gradients = sum(self._gradient_bytes(h) for h in weights)
        shared = any(h.shards > 1 for h in homes if h.category is Category.OPTIMIZER)
        if not any(h.shards > 1 for h in homes if h.category is Category.ACCUMULATOR):
            name = "reduce-scatter of gradients" if shared else "all-reduce of gradients: reduce-scatter"
            yield Move(name, "link", self._ring_cycles(gradients), gradients)
        gathered = sum(h.elements * element_bytes(h.dtype) for h in weights if h.shards == 1)
        name = "all-gather of weights" if shared else "all-reduce of gradients: all-gather"
        yield Move(name, "link", self._ring_cycles(gathered), gathered)
        if not self._device.plan.ordering.is_phased:
            state = sum(h.bytes_per_replica for h in homes if h.category is Category.OPTIMIZER and not h.on_chip)
            for name in ("load the optimizer's state", "store the optimizer's state"):
                yield Move(name, "DDR", self._streaming_cycles(state), state)

    def _gradient_bytes(self, weight: Home) -> float:
        accumulators = self._accumulator_types
        return weight.elements * element_bytes(accumulators.get(weight.name, weight.dtype))

    @cached_property
    def _accumulator_types(self) -> Mapping[str, torch.dtype]:
        return dict(self._device.update.accumulators) if self._device.update is not None else {}

    def _on(self, home: Home, ipu: int) -> bool:
        return any(self._device.plan.parts[p].ipu == ipu for p in home.parts)


def _hops(source: int, target: int) -> list[tuple[int, int]]:
    """The links from one IPU to another: through all between.

    >>> _hops(0, 2), _hops(3, 2)
    ([(0, 1), (1, 2)], [(3, 2)])
    """
    step = 1 if target > source else -1
    return [(ipu, ipu + step) for ipu in range(source, target, step)]


__all__ = ["RESOURCES", "Move", "SlotTime", "Spent", "Timeline", "timeline_of"]

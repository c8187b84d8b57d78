"""The programs of a model as a table: a tree of loops and sequences with exchanges and computations as leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from poptorch.ipu_model import Estimate
from poptorch.ipu_model.book import OpRecord
from poptorch.ipu_model.code import CONTROL_PER_STEP, code_size, exchange_code
from poptorch.ipu_model.result import StageEstimate
from poptorch.ipu_model.steps import CostStep
from poptorch.ipu_model.timeline import Move
from poptorch.report.files import Column, Rows, Table

NONE = -1
"""No operation, no IPU, no parent."""

UPDATE = "weight update"
"""The program that changes the weights on an IPU."""


STREAMING = "streaming memory"
"""What the names of copies from and to it begin with."""

_BEFORE = ("reduce-scatter", "all-reduce of gradients: reduce", "load")
"""What an update waits for."""

_KINDS: Mapping[str, tuple[str, ...]] = {
    "host": ("StreamCopyBegin", "StreamCopyMid", "StreamCopyEnd"),
    "DDR": ("StreamCopyMid",),
    "link": ("GlobalExchange",),
    "compute": ("OnTileExecute",),
}
"""The programs of a copy."""


class Tree:
    """Builds the tables ``programs``, ``vertices`` and ``operations`` of one estimate."""

    def __init__(self, estimate: Estimate) -> None:
        self._estimate = estimate
        self._chip = estimate.chip
        self._place = {ipu.ipu: place for place, ipu in enumerate(estimate.ipus)}
        self._programs = Rows(
            type=str, name=str, parent=int, ipu=int, operation=int, repeat=int, cycles=float, tile_cycles=float,
            total_cycles=float, tiles=int, exchange_bytes=float, code_bytes=float, control_bytes=float,
        )  # fmt: skip
        self._vertices = Rows(program=int, type=str, per_tile=int, total=int, state_bytes=int, code_bytes=int)
        self._operations = Rows(
            name=str, operator=str, layer=str, source=str, sweep=str, stage=str, ipu=int, recomputed=bool,
            covered=bool, compute=float, exchange=float, sync=float, cycles=float, flops=float, bytes=float,
            first_program=int, last_program=int, liveness_step=int,
        )  # fmt: skip
        self._moments = [0] * len(estimate.ipus)
        """How many liveness steps of each IPU have an operation already."""

        self._first_moment = []
        total = 0
        for ipu in estimate.ipus:
            self._first_moment.append(total)
            total += len(ipu.liveness.moments)

    def tables(self) -> dict[str, Table]:
        """All of it."""
        loop = self._estimate.device.loop
        call = self._node("Sequence", "call")
        iterations = self._node("Repeat", "device iterations", call, repeat=loop.device_iterations)
        micro = self._node("Repeat", "micro-batches", iterations, repeat=loop.gradient_accumulation)
        for stage in self._estimate.stages:
            self._stage(stage, micro)
        for ipu, place in self._place.items():
            records = self._estimate.update.on(ipu)
            moves = self._estimate.timeline.update_moves.get(ipu, ())
            if records or any(move.cycles for move in moves):
                update = self._node("Sequence", UPDATE, iterations, ipu=place)
                before = [move for move in moves if move.name.startswith(_BEFORE)]
                self._moves(before, update, place)
                self._operations_of(records, update, place, UPDATE, 0)
                self._moves([move for move in moves if move not in before], update, place)
        self._moves(self._estimate.timeline.call_moves, call, NONE)
        programs = self._programs.table()
        programs["inside"] = self._inside(programs, call, iterations, micro)
        return {
            "programs": programs,
            "vertices": self._vertices.table(),
            "operations": self._operations.table(),
        }

    def _stage(self, stage: StageEstimate, parent: int) -> None:
        place = self._place[stage.ipu]
        top = self._node("Sequence", stage.label, parent, ipu=place)
        self._moves(stage.time.moves, top, place)
        programs = {s.slot: s.program for s in self._estimate.device.plan.stages}
        known = sum(1 for _ in programs[stage.time.slot].operations())
        self._operations_of(stage.operations, top, place, stage.label, known)
        for transfer in self._estimate.flow.transfers:
            if transfer.value.slot == stage.time.slot:
                self._node(
                    "GlobalExchange", f"{transfer.value.name} to IPU {transfer.target}", top, ipu=place,
                    cycles=self._chip.cycles(transfer.value.bytes / self._chip.link_bandwidth),
                    exchange_bytes=transfer.value.bytes,
                )  # fmt: skip

    def _moves(self, moves: Iterable[Move], parent: int, place: int) -> None:
        """Copies from and to host, streaming memory, other IPUs and stashes, each with its name."""
        for move in moves:
            if not move.cycles:
                continue
            name = f"{STREAMING}: {move.name}" if move.resource == "DDR" else move.name
            kinds: tuple[str, ...] = _KINDS[move.resource]
            for kind in kinds:
                whole = kind != "StreamCopyBegin" and kind != "StreamCopyEnd"
                self._node(
                    kind, name, parent, ipu=place, cycles=move.cycles if whole else 0.0,
                    tile_cycles=move.cycles if kind == "OnTileExecute" else 0.0,
                    exchange_bytes=move.bytes if whole and kind != "OnTileExecute" else 0.0,
                )  # fmt: skip

    def _inside(self, programs: Table, call: int, iterations: int, micro: int) -> Column:
        """The cycles of one run of each program with everything in it; several IPUs work at the same time."""
        timeline = self._estimate.timeline
        inside = programs["cycles"].copy()
        repeat, parents = programs["repeat"], programs["parent"]
        for row in range(len(inside) - 1, -1, -1):
            inside[row] *= repeat[row]
            if parents[row] >= 0:
                inside[parents[row]] += inside[row]
        round_ = sum(count * cycles for count, cycles in timeline.ticks)
        if not self._estimate.device.settings.training:  # all micro-batches of a call are one round
            round_ /= max(1, self._estimate.device.loop.device_iterations)
        inside[micro] = round_
        inside[iterations] = timeline.cycles - sum(move.cycles for move in timeline.call_moves)
        inside[call] = timeline.cycles
        return inside

    def _operations_of(self, records: Iterable[OpRecord], parent: int, place: int, stage: str, live: int) -> None:
        """The first ``live`` of the records are steps of the liveness analysis."""
        for number, record in enumerate(records):
            moment = NONE
            if number < live:
                moment = self._first_moment[place] + self._moments[place]
                self._moments[place] += 1
            operation = self._operation(record, place, stage, moment)
            first = len(self._programs)
            top = self._node("Sequence", record.name, parent, ipu=place, operation=operation, cycles=0.0)
            for step in record.cost.steps:
                self._step(step, top, place, operation)
            self._operations.set(operation, "first_program", first)
            self._operations.set(operation, "last_program", len(self._programs) - 1)

    def _operation(self, record: OpRecord, place: int, stage: str, moment: int) -> int:
        cycles, info = record.cycles, record.info
        return self._operations.add(
            name=record.name, operator=record.operator, layer=record.scope, source=record.source,
            sweep=info.sweep.value, stage=stage, ipu=place, recomputed=info.recomputed, covered=record.cost.covered,
            compute=cycles.compute, exchange=cycles.exchange, sync=cycles.sync, cycles=cycles.total,
            flops=record.cost.flops, bytes=record.bytes, first_program=NONE, last_program=NONE, liveness_step=moment,
        )  # fmt: skip

    def _step(self, step: CostStep, parent: int, place: int, operation: int) -> None:
        if step.repeat > 1:
            parent = self._node("Repeat", step.name, parent, ipu=place, operation=operation, repeat=step.repeat)
        if step.exchange is not None:
            self._node(
                "DoExchange", step.name, parent, ipu=place, operation=operation, tiles=step.tiles,
                cycles=step.exchange.cycles(self._chip) + self._chip.sync_cycles,
                exchange_bytes=max(step.exchange.total_bytes, step.exchange.tile_bytes),
                code_bytes=exchange_code(step.exchange), control_bytes=CONTROL_PER_STEP,
            )  # fmt: skip
        if step.cycles or step.vertices:
            program = self._node(
                "OnTileExecute", step.name, parent, ipu=place, operation=operation, tiles=step.tiles,
                cycles=step.cycles + self._chip.sync_cycles if step.cycles else 0.0, tile_cycles=step.cycles,
                total_cycles=step.total_cycles,
                code_bytes=sum(code_size(v.codelet) for v in step.vertices), control_bytes=CONTROL_PER_STEP,
            )  # fmt: skip
            for vertices in step.vertices:
                self._vertices.add(
                    program=program, type=vertices.codelet, per_tile=vertices.per_tile, total=vertices.total,
                    state_bytes=vertices.state_bytes, code_bytes=code_size(vertices.codelet),
                )  # fmt: skip

    def _node(
        self, kind: str, name: str, parent: int = NONE, ipu: int = NONE, operation: int = NONE, repeat: int = 1,
        cycles: float = 0.0, tile_cycles: float = 0.0, total_cycles: float = 0.0, tiles: int = 0,
        exchange_bytes: float = 0.0, code_bytes: float = 0.0, control_bytes: float = 0.0,
    ) -> int:  # fmt: skip
        return self._programs.add(
            type=kind, name=name, parent=parent, ipu=ipu, operation=operation, repeat=repeat, cycles=cycles,
            tile_cycles=tile_cycles, total_cycles=total_cycles, tiles=tiles, exchange_bytes=exchange_bytes,
            code_bytes=code_bytes, control_bytes=control_bytes,
        )  # fmt: skip


__all__ = ["NONE", "STREAMING", "UPDATE", "Tree"]

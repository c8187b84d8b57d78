"""What each IPU does from cycle to cycle: one micro-batch through all stages, then one weight update.

``steps_of`` gives the phases of every program, ``flames_of`` the same in layers: stage, modules, operation, program.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from poptorch.report.files import Column, Rows, Table
from poptorch.report.tree import STREAMING, UPDATE

KINDS = {
    "OnTileExecute": "compute",
    "DoExchange": "exchange",
    "GlobalExchange": "global exchange",
    "StreamCopyBegin": "host exchange",
    "StreamCopyMid": "host exchange",
    "StreamCopyEnd": "host exchange",
}
"""Programs that take time, and what that time is spent on."""

SYNC = "sync"


def steps_of(programs: Table, sync_cycles: float) -> Table:
    """The phases, in order; programs in an inner loop are one phase with the cycles of all its turns."""
    found = Rows(program=int, ipu=int, kind=str, start=float, cycles=float)
    now = 0.0
    update_start: float | None = None
    types, names, repeats = programs["type"].tolist(), programs["name"].tolist(), inner_repeats(programs).tolist()
    cycles, ipus, parents = programs["cycles"].tolist(), programs["ipu"].tolist(), programs["parent"].tolist()
    computing = programs["tile_cycles"].tolist()
    for row, kind in enumerate(types):
        if kind == "Sequence" and names[row] == UPDATE and programs["operation"][row] < 0 and parents[row] >= 0:
            update_start = now if update_start is None else update_start
            now = update_start  # all IPUs update at the same time
        if kind not in KINDS or not cycles[row] or ipus[row] < 0:
            continue
        spent = STREAMING if names[row].startswith(STREAMING) else KINDS[kind]
        waiting = _waiting(spent, cycles[row], computing[row], sync_cycles) * repeats[row]
        total = cycles[row] * repeats[row]
        if waiting:
            found.add(program=row, ipu=ipus[row], kind=SYNC, start=now, cycles=waiting)
        found.add(program=row, ipu=ipus[row], kind=spent, start=now + waiting, cycles=total - waiting)
        now += total
    return found.table()


def _waiting(spent: str, cycles: float, computing: float, sync_cycles: float) -> float:
    """The cycles of a program in which tiles wait for each other."""
    if spent == "compute":
        return cycles - computing
    return min(cycles, sync_cycles) if spent == "exchange" else 0.0


def inner_repeats(programs: Table) -> Column:
    """How often an operation runs each of its programs: the loops inside of it."""
    times = np.ones(len(programs["repeat"]), dtype=np.int64)
    inner = programs["operation"] >= 0
    for row, (parent, repeat) in enumerate(zip(programs["parent"].tolist(), programs["repeat"].tolist(), strict=True)):
        if inner[row]:
            times[row] = repeat * (times[parent] if parent >= 0 else 1)
    return times


class _Flames:
    """Bars of the layers above each other; a bar grows as long as the next operation is under it, too."""

    def __init__(self) -> None:
        self.rows = Rows(ipu=int, depth=int, name=str, kind=str, operation=int, start=float, end=float)
        self._open: dict[int, list[tuple[str, int]]] = {}

    def put(self, ipu: int, path: list[tuple[str, str]], operation: int, start: float, end: float) -> int:
        """An operation under its stage and modules; returns the depth of what is inside of it."""
        opened = self._open.setdefault(ipu, [])
        same = 0
        for (name, row), (wanted, _) in zip(opened, path, strict=False):
            if name != wanted:
                break
            self.rows.set(row, "end", end)
            same += 1
        del opened[same:]
        for depth, (name, kind) in enumerate(path[same:], same):
            last = depth == len(path) - 1
            row = self.rows.add(
                ipu=ipu, depth=depth, name=name, kind=kind, operation=operation if last else -1, start=start, end=end
            )
            if not last:
                opened.append((name, row))
        return len(path)


def flames_of(programs: Table, operations: Table, steps: Table) -> Table:
    """Bars with a depth: stage, modules from outside to inside, operation, the phases of its programs."""
    flames = _Flames()
    owner = programs["operation"][steps["program"]].tolist()
    names, layers, stages = operations["name"].tolist(), operations["layer"].tolist(), operations["stage"].tolist()
    starts, cycles = steps["start"].tolist(), steps["cycles"].tolist()
    ipus, kinds, step_programs = steps["ipu"].tolist(), steps["kind"].tolist(), steps["program"].tolist()
    row = 0
    while row < len(owner):
        operation, last = owner[row], row
        while last + 1 < len(owner) and owner[last + 1] == operation and ipus[last + 1] == ipus[row] and operation >= 0:
            last += 1
        if operation >= 0:
            modules = [(name, "module") for name in modules_of(layers[operation])]
            path = [(stages[operation], "stage"), *modules, (names[operation], "operation")]
            depth = flames.put(ipus[row], path, operation, starts[row], starts[last] + cycles[last])
            for step in range(row, last + 1):
                flames.rows.add(
                    ipu=ipus[step], depth=depth, name=str(programs["name"][step_programs[step]]), kind=kinds[step],
                    operation=operation, start=starts[step], end=starts[step] + cycles[step],
                )  # fmt: skip
        else:
            name = str(programs["name"][step_programs[row]])
            flames.put(ipus[row], [(name, kinds[row])], -1, starts[row], starts[row] + cycles[row])
        row = last + 1
    return flames.rows.table()


def modules_of(layer: str) -> list[str]:
    """The modules around an operation, each without the name of the one around it.

    >>> modules_of("layers.0/layers.0.attn"), modules_of("")
    (['layers.0', 'attn'], [])
    """
    found, outer = [], ""
    for scope in filter(None, layer.split("/")):
        found.append(scope.removeprefix(outer + ".") if outer else scope)
        outer = scope
    return found


def tile_use(programs: Table, operations: int, tiles: int) -> tuple[Column, Column]:
    """For each operation: the share of all tiles' cycles that is computing, and the most tiles that a program uses."""
    owner = programs["operation"]
    inside = owner >= 0
    times = inner_repeats(programs)

    def total(column: str) -> np.ndarray[Any, Any]:
        return np.bincount(owner[inside], (programs[column] * times)[inside], operations)

    used = np.zeros(operations, dtype=np.int64)
    np.maximum.at(used, owner[inside], programs["tiles"][inside])
    slowest = total("tile_cycles") * tiles
    return np.divide(total("total_cycles"), slowest, out=np.zeros(operations), where=slowest > 0), used


__all__ = ["KINDS", "SYNC", "flames_of", "inner_repeats", "modules_of", "steps_of", "tile_use"]

"""Rules for table lookups, gathers and scatters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import torch

from poptorch.ipu_model.architecture import Architecture
from poptorch.ipu_model.cycles import slices
from poptorch.ipu_model.rules.call import CostedCall, CostedOperand, Rule, Table
from poptorch.ipu_model.rules.expressions import sequence
from poptorch.ipu_model.rules.passes import STATE, TILE_COUNTS, collect, durations, move, reduce
from poptorch.ipu_model.steps import CostStep, Exchange, OpCost, Vertices

_COLUMN_GRAIN = 8
"""Bytes of a row that stay together."""

_MANY = 2.0
"""By how much a plan must be faster that needs more temporary memory than its share."""


@lru_cache(maxsize=4096)
def lookup(
    chip: Architecture, name: str, table_rows: int, row: int, indices: int, dtype: torch.dtype, update: bool = False,
    proportion: float = 0.6,
) -> tuple[CostStep, ...]:  # fmt: skip
    """Copy, or add, ``indices`` rows of ``row`` elements of a table: the fastest way to divide it between tiles.

    Tiles divide the rows of the table, its columns and the indices. Where rows are divided, each part finds what it
    has, and a second step collects the results.
    """
    if not indices or not row or not table_rows:
        return ()
    bound = proportion * chip.memory_per_tile

    def price(steps: tuple[CostStep, ...]) -> float:
        over = max(step.temporary_bytes for step in steps) > bound
        return durations(steps, chip) * (_MANY if over else 1.0)

    splits = _splits(chip, table_rows, row, dtype)
    return min((_plan(chip, name, table_rows, row, indices, dtype, update, *split) for split in splits), key=price)


def _splits(chip: Architecture, table_rows: int, row: int, dtype: torch.dtype) -> Iterator[tuple[int, int, int]]:
    columns = 1
    most = max(1, row * dtype.itemsize // _COLUMN_GRAIN)
    while columns <= min(most, chip.tiles):
        for rows in TILE_COUNTS:
            if rows * columns <= chip.tiles and rows <= table_rows:
                yield rows, columns, 1
                if rows * columns * 2 <= chip.tiles:
                    yield rows, columns, chip.tiles // (rows * columns)
        columns *= 2


def _plan(
    chip: Architecture, name: str, table_rows: int, row: int, indices: int, dtype: torch.dtype, update: bool,
    rows_split: int, columns_split: int, index_split: int,
) -> tuple[CostStep, ...]:  # fmt: skip
    width = -(-row // columns_split)
    own = -(-indices // index_split)
    each = -(-own // chip.workers)
    in_range = min(each, -(-each // rows_split))
    element = 4 if update and dtype.itemsize == 2 else dtype.itemsize  # updates of float16 are summed in float32
    tiles = rows_split * columns_split * index_split
    work = slices.multi_update_add if update else slices.multi_slice
    cycles = work(width, in_range, each - in_range, dtype)
    table = -(-table_rows // rows_split) * width * element
    kept = own * width * element
    received = own * 4.0 + (kept if update else table if index_split > 1 else 0.0)
    first = _step(name, cycles, tiles, received, received + kept, 4 + own // 32, "update" if update else "slice")
    if update:
        if index_split == 1:
            return (first,)
        return (first, collect(chip, name, table_rows * row, index_split, torch.float32, "add"))
    if rows_split == 1:
        return (first,)
    share = -(-own // rows_split)
    arriving = float(rows_split * share * width * element)
    again = slices.multi_slice(width, -(-share // chip.workers), 0, dtype)
    return (first, _step(f"{name}: collect", again, tiles, arriving, arriving, rows_split, "slice"))


def _step(
    name: str, cycles: float, tiles: int, received: float, temporary: float, pieces: int, codelet: str
) -> CostStep:
    exchange = Exchange(received, received * tiles, pieces)
    vertices = (Vertices(codelet, 1, tiles, STATE[codelet]),)
    return CostStep(name, cycles, cycles * tiles, exchange, vertices, tiles, 1, temporary)


def grouped_lookup(
    chip: Architecture, name: str, groups: int, table_rows: int, row: int, indices: int, dtype: torch.dtype,
    update: bool = False, proportion: float = 0.6,
) -> tuple[CostStep, ...]:  # fmt: skip
    """The same in ``groups`` tables at once: taken as one table, of which every index knows its part."""
    return lookup(chip, name, groups * table_rows, row, groups * indices, dtype, update, proportion)


def _table(call: CostedCall, table: CostedOperand, dim: int) -> tuple[int, int]:
    """Rows of a table, and elements of one, when ``dim`` is looked up."""
    rows = table.shape[dim] if table.shape else 1
    return rows, table.elements // max(1, rows)


def _embedding(call: CostedCall) -> OpCost:
    table, indices = call["weight"], call["indices"]
    rows, row = _table(call, table, 0)
    steps = lookup(call.chip, call.name, rows, row, indices.elements, table.element_type, False, call.proportion)
    return OpCost(steps)


def _embedding_backward(call: CostedCall) -> OpCost:
    gradient, indices = call["grad_output"], call["indices"]
    return OpCost((*_zeros(call, call.result), *_add_rows(call, call.result, 0, indices.elements, gradient)))


def _zeros(call: CostedCall, result: CostedOperand) -> list[CostStep]:
    return [move(call.chip, f"{call.name}: zero", result.elements, result.element_type, exchanged=False)]


def _add_rows(
    call: CostedCall, result: CostedOperand, dim: int, indices: int, values: CostedOperand
) -> tuple[CostStep, ...]:
    rows, row = _table(call, result, dim)
    return lookup(call.chip, call.name, rows, row, indices, values.element_type, True, call.proportion)


def _bag(call: CostedCall) -> OpCost:
    table, indices = call["weight"], call["indices"]
    rows, row = _table(call, table, 0)
    chip, dtype = call.chip, table.element_type
    found = lookup(chip, call.name, rows, row, indices.elements, dtype, False, call.proportion)
    bags = max(1, call.result.elements // max(1, row))
    added = reduce(chip, f"{call.name}: sum", bags * row, -(-indices.elements // bags), dtype, "add", False)
    return OpCost((*found, *added), float(indices.elements * row))


def _bag_backward(call: CostedCall) -> OpCost:
    gradient, indices = call["grad"], call["indices"]
    row = call.result.elements // max(1, call.result.shape[0])
    spreading = lookup(call.chip, f"{call.name}: spread", max(1, gradient.shape[0]), row, indices.elements,
                       gradient.element_type)  # fmt: skip
    added = _add_rows(call, call.result, 0, indices.elements, gradient)
    return OpCost((*spreading, *_zeros(call, call.result), *added))


def _index_select(call: CostedCall) -> OpCost:
    table, dim = call.operands[0], call.get("dim", 0)
    rows, row = _table(call, table, dim)
    count = call.result.elements // max(1, row)
    steps = lookup(call.chip, call.name, rows, row, count, table.element_type, False, call.proportion)
    return OpCost((*_arranged(call, table, dim), *steps))


def _arranged(call: CostedCall, table: CostedOperand, dim: int) -> list[CostStep]:
    """Rows that do not lie together are brought together first."""
    if not table.shape or dim % len(table.shape) == 0:
        return []
    return [move(call.chip, f"{call.name}: arrange", table.elements, table.element_type, aligned=False)]


def _gather(call: CostedCall) -> OpCost:
    """One element for each index, from the row of the index."""
    table: CostedOperand = call.operands[0]
    size = table.shape[call.get("dim", 0)] if table.shape else 1
    groups = max(1, table.elements // max(1, size))
    count = -(-call.result.elements // groups)
    dtype = table.element_type
    return OpCost(grouped_lookup(call.chip, call.name, groups, size, 1, count, dtype, False, call.proportion))


def _index(call: CostedCall) -> OpCost:
    """Rows at the places that several tensors of indices name; a mask is a choice for each element."""
    table: CostedOperand = call["self"]
    given = [i for i in call["indices"] if isinstance(i, CostedOperand)]
    if any(index.dtype in (torch.bool, torch.uint8) for index in given):
        return OpCost(tuple(sequence(call.chip, call.name, "select#", table.elements, table.element_type)))
    rows, row = _rows_of(table, call["indices"])
    count = call.result.elements // max(1, row)
    words = "multiply# integer" if len(given) > 1 else ""
    positions = sequence(call.chip, f"{call.name}: places", words, count, torch.int32)
    steps = lookup(call.chip, call.name, rows, row, count, table.element_type, False, call.proportion)
    return OpCost((*positions, *steps))


def _rows_of(table: CostedOperand, indices: tuple[object, ...]) -> tuple[int, int]:
    chosen = [size for size, index in zip(table.shape, indices, strict=False) if isinstance(index, CostedOperand)]
    rows = math.prod(chosen)
    return rows, table.elements // max(1, rows)


def _index_put(call: CostedCall) -> OpCost:
    table, values = call["self"], call["values"]
    given = [i for i in call["indices"] if isinstance(i, CostedOperand)]
    copied = [] if call.in_place else _zeros(call, table)
    if any(index.dtype in (torch.bool, torch.uint8) for index in given):
        return OpCost((*copied, *sequence(call.chip, call.name, "select#", table.elements, table.element_type)))
    rows, row = _rows_of(table, call["indices"])
    count = max(index.elements for index in given) if given else 1
    update = bool(call.get("accumulate", False))
    steps = lookup(call.chip, call.name, rows, row, count, values.element_type, update, call.proportion)
    return OpCost((*copied, *steps), float(count * row if update else 0))


def _index_add(call: CostedCall) -> OpCost:
    table = call["self"]
    dim = call.get("dim", 0)
    index: CostedOperand = call["index"]
    copied = [] if call.in_place else _zeros(call, table)
    return OpCost((*copied, *_arranged(call, table, dim), *_add_rows(call, table, dim, index.elements, table)))


def _scatter(update: bool) -> Rule:
    """One element for each index, to the row of the index."""

    def rule(call: CostedCall) -> OpCost:
        table: CostedOperand = call["self"]
        index: CostedOperand = call["index"]
        size = table.shape[call.get("dim", 0)] if table.shape else 1
        groups = max(1, table.elements // max(1, size))
        count = -(-index.elements // groups)
        copied = [] if call.in_place else _zeros(call, table)
        dtype = table.element_type
        found = grouped_lookup(call.chip, call.name, groups, size, 1, count, dtype, update, call.proportion)
        return OpCost((*copied, *found), float(index.elements if update else 0))

    return rule


def _put(call: CostedCall) -> OpCost:
    table, index = call["self"], call["index"]
    steps = lookup(call.chip, call.name, table.elements, 1, index.elements, table.element_type, "put" in call.name)
    return OpCost((*([] if call.in_place else _zeros(call, table)), *steps))


def _chosen(call: CostedCall) -> OpCost:
    """Keep what a mask names: count what comes before each element, then copy to its place."""
    data = call.operands[0]
    steps = sequence(call.chip, call.name, "compare# integer", data.elements, torch.int32)
    found = lookup(call.chip, call.name, data.elements, 1, call.result.elements, data.element_type)
    return OpCost((*steps, *found))


def _farthest_points(call: CostedCall) -> OpCost:
    """For each point that is kept: distances to the last one, and the largest of them."""
    data, kept = call.operands[0], call.result.elements
    points = max(1, data.shape[0] if data.shape else 1)
    dtype = data.element_type
    turn = sequence(call.chip, call.name, "subtract square", data.elements, dtype, moved=16.0, repeat=max(1, kept))
    more = sequence(call.chip, call.name, "minimum maximum", points, dtype, moved=8.0, repeat=max(1, kept))
    return OpCost((*turn, *more), 3.0 * data.elements * kept)


RULES: Table = {
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "embedding_renorm": _chosen,
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only", "embedding_bag"), _bag),
    **dict.fromkeys(
        ("_embedding_bag_backward", "_embedding_bag_dense_backward", "_embedding_bag_per_sample_weights_backward"),
        _bag_backward,
    ),
    "index_select": _index_select,
    "gather": _gather,
    "take": _put,
    "take_along_dim": _gather,
    **dict.fromkeys(("index", "_unsafe_index", "_unsafe_masked_index"), _index),
    **dict.fromkeys(("index_put", "_index_put_impl", "_unsafe_index_put"), _index_put),
    "_unsafe_masked_index_put_accumulate": _index_put,
    **dict.fromkeys(("index_add", "index_reduce", "index_copy", "index_fill"), _index_add),
    "scatter": _scatter(update=False),
    **dict.fromkeys(("scatter_add", "scatter_reduce"), _scatter(update=True)),
    "put": _put,
    **dict.fromkeys(("masked_select", "nonzero_static", "nonzero"), _chosen),
    **dict.fromkeys(("fps", "random_fps"), _farthest_points),
}

__all__ = ["RULES", "grouped_lookup", "lookup"]

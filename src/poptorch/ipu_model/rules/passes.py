"""Steps that rules are made of: passes over elements, reductions, copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from poptorch.ipu_model.architecture import Architecture, vector_width
from poptorch.ipu_model.cycles import copying, reductions
from poptorch.ipu_model.rules.call import CostedOperand
from poptorch.ipu_model.steps import CostStep, Exchange, Vertices, spread

TILE_COUNTS = tuple(sorted({*(round(1.1**k) for k in range(4, 77)), 1, 1216, 1440, 1472}))
"""Numbers of tiles that searches try. A fixed list: a chip with more tiles has all choices of one with fewer."""

STATE = {
    "unary": 12, "binary": 12, "scalar": 12, "broadcast": 16, "select": 16, "clamp": 16, "cast": 12, "nonlinearity": 12,
    "gradient": 16, "fused": 20, "fill": 8, "reduce": 36, "copy": 12, "random": 16, "slice": 32, "update": 36,
    "pool": 60, "scaled_add": 16, "search": 24, "transpose": 16,
}  # fmt: skip
"""Bytes of the state of one vertex. Fitted to a BERT-Large layer: 11..17 for one operation on elements, 110 for a
softmax of seven steps, 155 for a layer normalisation of nine, 63 for a table lookup."""

Cycles = Callable[[int], float]
"""Cycles of a tile with so many elements."""


def elements_on_tile(elements: int, dtype: torch.dtype, chip: Architecture) -> int:
    """On the busiest tile, in whole vectors."""
    width = vector_width(dtype)
    return -(-spread(elements, dtype.itemsize, chip.tiles) // width) * width


def each_element(
    chip: Architecture,
    name: str,
    elements: int,
    dtype: torch.dtype,
    cycles: Cycles,
    codelet: str,
    moved: float = 0.0,
    fragments: int = 1,
    repeat: int = 1,
    temporary: float = 0.0,
) -> CostStep:
    """One compute set over all elements of a tensor.

    ``moved`` are the bytes that the busiest tile receives first.
    """
    if not elements:
        return CostStep(name)
    share = elements_on_tile(elements, dtype, chip)
    tiles = -(-elements // share)
    cost = cycles(share)
    return CostStep(
        name,
        cycles=cost,
        total_cycles=cost * tiles,
        exchange=Exchange(moved, moved * tiles, fragments) if moved else None,
        vertices=(Vertices(codelet, 1, tiles, STATE.get(codelet, 16)),),
        tiles=tiles,
        repeat=repeat,
        temporary_bytes=temporary + moved,
    )


def distinct(shape: Sequence[int], operand: Sequence[int], share: int) -> int:
    """Elements of a broadcast operand that a tile needs for ``share`` successive elements of the result.

    >>> distinct((32, 64), (64,), 100), distinct((32, 64), (32, 1), 100), distinct((32, 64), (), 100)
    (64, 2, 1)
    """
    padded = (1,) * (len(shape) - len(operand)) + tuple(operand)
    needed, covered = 1, 1
    for size, own in zip(reversed(shape), reversed(padded), strict=True):
        if covered >= share:
            break
        if own != 1:
            needed *= min(size, -(-share // covered))
        covered *= size
    return min(needed, math.prod(operand))


def bytes_to_align(
    chip: Architecture, result: CostedOperand, operands: Sequence[CostedOperand], share: int
) -> tuple[float, int]:
    """What the busiest tile receives so that operands lie where the result is computed, and in how many pieces.

    The result lies like the first operand of its size. Others of that size move where their mapping differs; smaller
    ones are broadcast. One number costs nothing: it travels with the code.
    """
    full = [operand for operand in operands if operand.elements == result.elements]
    home = full[0].home if full else None
    moved, fragments = 0.0, 0
    for operand in operands:
        if operand.elements <= 1 or (operand in full and operand.home == home):
            continue
        needed = share if operand in full else distinct(result.shape, operand.shape, share)
        moved += needed * operand.element_type.itemsize
        fragments += 2 if operand in full else 1
    return moved, max(1, fragments)


# -- reductions --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def reduce(
    chip: Architecture,
    name: str,
    outputs: int,
    reduced: int,
    dtype: torch.dtype,
    kind: str = "add",
    rows: bool = True,
) -> tuple[CostStep, ...]:
    """Reduce ``outputs`` groups of ``reduced`` elements; ``rows``: the elements of a group lie side by side.

    Tiles hold blocks of outputs and of reduced elements, as products and linear mappings leave them. Each reduces what
    it has, then tiles exchange partial results and reduce these, once or twice, whatever is fastest.
    """
    if outputs == 0:
        return ()
    reduced = max(1, reduced)
    plans = (
        _blocks(chip, name, outputs, reduced, dtype, kind, rows, parts)
        for parts in TILE_COUNTS
        if parts <= min(reduced, chip.tiles)
    )
    return min(plans, key=lambda steps: sum(step.duration(chip) for step in steps))


def _blocks(
    chip: Architecture, name: str, outputs: int, reduced: int, dtype: torch.dtype, kind: str, rows: bool, parts: int
) -> tuple[CostStep, ...]:
    across = max(1, min(outputs, chip.tiles // parts))
    own, depth = -(-outputs // across), -(-reduced // parts)
    cost = reductions.tile(depth, own, dtype, kind, rows)
    holding = max(across * parts, -(-outputs * reduced // elements_on_tile(outputs * reduced, dtype, chip)))
    first = CostStep(
        name,
        cycles=cost,
        total_cycles=cost * across * parts,
        vertices=(Vertices("reduce", 1, holding, STATE["reduce"]),),  # on all tiles that hold some of the operand
        tiles=across * parts,
        temporary_bytes=4.0 * own if parts > 1 else 0.0,
    )
    if parts == 1:
        return (first,)
    partial = torch.float32 if dtype.is_floating_point and kind in _SUMS else dtype
    merge = "add" if kind == "square" else kind
    once = (collect(chip, name, outputs, parts, partial, merge),)
    root = math.ceil(math.sqrt(parts))
    twice = (
        collect(chip, name, outputs * -(-parts // root), root, partial, merge),
        collect(chip, name, outputs, -(-parts // root), partial, merge),
    )
    return (first, *min(once, twice, key=lambda steps: sum(step.duration(chip) for step in steps)))


_SUMS = {"add", "square", "log_add", "multiply"}


def collect(chip: Architecture, name: str, outputs: int, depth: int, dtype: torch.dtype, kind: str) -> CostStep:
    """Collect partial results from ``depth`` tiles each, and reduce them."""
    tiles = min(outputs, chip.tiles)
    own = -(-outputs // tiles)
    received = float(own * depth * dtype.itemsize)
    cost = reductions.tile(depth, own, dtype, kind, rows=False)
    return CostStep(
        f"{name} (partials)",
        cycles=cost,
        total_cycles=cost * tiles,
        exchange=Exchange(received, received * tiles, depth),
        vertices=(Vertices("reduce", 1, tiles, STATE["reduce"]),),
        tiles=tiles,
        temporary_bytes=received,
    )


# -- copies ------------------------------------------------------------------------------------------------------------


def move(
    chip: Architecture, name: str, elements: int, dtype: torch.dtype, aligned: bool = True, exchanged: bool = True
) -> CostStep:
    """Copy a tensor: to other tiles, or only inside them."""
    share = elements_on_tile(elements, dtype, chip)
    return each_element(
        chip,
        name,
        elements,
        dtype,
        lambda own: copying.copy(own * dtype.itemsize, aligned),
        "copy",
        moved=share * dtype.itemsize if exchanged else 0.0,
        fragments=4 if aligned else 16,
    )


def on_best_tiles(chip: Architecture, build: Callable[[Architecture], list[CostStep]]) -> list[CostStep]:
    """The fastest of what ``build`` makes for all numbers of tiles: spreading further may cost more than it saves."""
    choices = (build(replace(chip, tiles=tiles)) for tiles in TILE_COUNTS if tiles <= chip.tiles)
    return min(choices, key=lambda steps: durations(steps, chip))


def durations(steps: Sequence[CostStep], chip: Architecture) -> float:
    """Cycles of several steps."""
    return sum(step.duration(chip) for step in steps)


__all__ = [
    "STATE", "TILE_COUNTS", "Cycles", "bytes_to_align", "collect", "distinct", "durations", "each_element",
    "elements_on_tile", "move", "on_best_tiles", "reduce",
]  # fmt: skip

"""Plans as costs: what the rules of products and convolutions ask for."""

from __future__ import annotations

import functools
import math

import torch

from poptorch.errors import createPoptorchError
from poptorch.ipu_model.architecture import Architecture
from poptorch.ipu_model.planner.search import ProductPlan, Types, search
from poptorch.ipu_model.planner.shapes import ConvolutionShape, ProductPass, convolution_work, product_work
from poptorch.ipu_model.steps import CostStep, Exchange, OpCost, Vertices

_PIECES = 12
"""Pieces in which a tile receives an operand: tiles that hold neighbouring parts send them as one."""


_SLOW_COPY = {4: 3.125, 2: 5.15}
"""Cycles per byte to reorder rows that do not end on 64 bits, by the bytes of the largest pieces that fit into them."""


def _check(proportion: float) -> None:
    if not 0.0 <= proportion <= 1.0:
        raise createPoptorchError(f"A proportion of the memory of a tile is a number from 0 to 1, not {proportion!r}.")


@functools.cache
def plan_product(
    chip: Architecture,
    groups: int,
    rows: int,
    inner: int,
    columns: int,
    dtype: torch.dtype,
    partials: torch.dtype,
    proportion: float = 0.6,
    arrange_left: bool = True,
    arrange_right: bool = True,
) -> OpCost:
    """The product of ``groups`` pairs of matrices, ``rows`` x ``inner`` by ``inner`` x ``columns``.

    ``proportion`` of the memory of a tile may hold what the product needs beside its operands and result. Operands that
    are not laid out for the product are first arranged.

    >>> from poptorch.ipu_model.architecture import architecture
    >>> cost = plan_product(architecture("mk2"), 1, 900, 600, 300, torch.float32, torch.float32)
    >>> [step.name for step in cost.steps]
    ['arrange', 'arrange', 'convolve', 'reduce']
    """
    _check(proportion)
    if min(groups, rows, inner, columns) < 1:
        return OpCost()  # an empty product
    types = Types(dtype, partials)
    bound = proportion * chip.memory_per_tile
    forms = [
        product_work(groups, m, inner, n, chip.tiles) for m, n in dict.fromkeys(((rows, columns), (columns, rows)))
    ]
    plan = search(chip, forms, types, bound)
    held = plan.input_bytes / plan.output_splits if plan.form else plan.weight_bytes / plan.position_splits
    sizes = [groups * rows * inner] * arrange_left + [groups * inner * columns] * arrange_right
    arranged = [_arrange(chip, size, inner, types) for size in sizes]
    steps = (*arranged, *_steps(chip, plan, types))
    return OpCost(steps, 2.0 * groups * rows * inner * columns, weight_tile_bytes=held * plan.serial)


@functools.cache
def plan_convolution(
    chip: Architecture,
    shape: ConvolutionShape,
    dtype: torch.dtype,
    partials: torch.dtype,
    proportion: float = 0.6,
    arrange_input: bool = False,
) -> OpCost:
    """One pass of a convolution.

    Activations between convolutions keep the layout that these like; other inputs are first arranged. The gradients
    that a weight gradient sums over always are.
    """
    _check(proportion)
    types = Types(dtype, partials)
    plan = search(chip, [convolution_work(shape, chip.tiles)], types, proportion * chip.memory_per_tile)
    direct = shape.direct
    steps: list[CostStep] = []
    inputs = direct.batch * direct.in_channels * math.prod(direct.input)
    results = direct.batch * direct.out_channels * math.prod(direct.output)
    if direct.kind is ProductPass.WEIGHT_GRADIENT:
        steps.append(_arrange(chip, results, direct.out_channels, types))
    elif arrange_input:
        forward = direct.kind is ProductPass.FORWARD
        size, channels = (inputs, direct.in_channels) if forward else (results, direct.out_channels)
        steps.append(_arrange(chip, size, channels // direct.groups, types))
    if direct.kind is ProductPass.INPUT_GRADIENT:  # the weights are laid out for the forward pass
        weights = direct.in_channels // direct.groups * direct.out_channels * math.prod(direct.kernel)
        steps.append(_arrange(chip, weights, direct.out_channels // direct.groups, types))
    steps.extend(_steps(chip, plan, types))
    held = plan.weight_bytes / plan.position_splits * plan.serial
    return OpCost(tuple(steps), 2.0 * shape.multiplications, weight_tile_bytes=held)


def _arrange(chip: Architecture, elements: int, channels: int, types: Types) -> CostStep:
    """Copy an operand into the layout that the vertices read: exchange it, then reorder it on the tile."""
    element = types.operands.itemsize
    share = math.ceil(elements / chip.tiles) * element
    atom = math.gcd(channels * element, 8)
    cycles = math.ceil(share * (5 / 4 / min(8, element) if atom == 8 else _SLOW_COPY[max(2, atom)]))
    tiles = min(chip.tiles, elements)
    pieces = max(1, min(4, math.ceil(share / 128)))
    return CostStep(
        "arrange",
        cycles=cycles,
        total_cycles=cycles * tiles,
        exchange=Exchange(share, share * tiles, pieces),
        vertices=(Vertices("transpose", 1, tiles, 20),),
        tiles=tiles,
        temporary_bytes=2 * share,
    )


def _steps(chip: Architecture, plan: ProductPlan, types: Types) -> list[CostStep]:
    """A plan as steps, in the order in which they run."""
    repeat = plan.serial

    def on_tile(name: str, codelet: str, cycles: float, temporary: float = 0.0) -> list[CostStep]:
        if not cycles:
            return []
        vertices = (Vertices(codelet, 1, plan.tiles, 20),)
        return [
            CostStep(name, cycles, cycles * plan.tiles, None, vertices, plan.tiles, repeat, temporary),
        ]

    serial_slices = on_tile("slice", "dynamic_slice", plan.slice_cycles)
    turned = on_tile("transpose", "transpose", plan.transpose_cycles, 2 * plan.input_bytes)
    pieces = min(plan.output_splits, _PIECES) + min(plan.position_splits, _PIECES)
    vertices = [Vertices(plan.codelet, 1, plan.tiles, 36)]
    if plan.zeroes:
        vertices.append(Vertices("zero", 1, plan.tiles, 8))
    convolve = CostStep(
        "convolve",
        cycles=plan.cycles,
        total_cycles=plan.cycles * plan.tiles,
        exchange=Exchange(plan.exchange_bytes, plan.exchange_bytes * plan.tiles, pieces),
        vertices=tuple(vertices),
        tiles=plan.tiles,
        repeat=repeat,
        temporary_bytes=plan.temporary_bytes,
    )
    sums = [
        CostStep(
            "reduce",
            cycles=stage.cycles,
            total_cycles=stage.cycles * plan.tiles,
            exchange=Exchange(stage.exchange_bytes, stage.exchange_bytes * plan.tiles, stage.depth),
            vertices=(Vertices("reduce_partials", 1, plan.tiles, 22),),
            tiles=plan.tiles,
            repeat=repeat,
            temporary_bytes=2 * plan.partial_elements * types.partials.itemsize,
        )
        for stage in plan.stages
    ]
    added = on_tile("add", "binary", plan.add_cycles)
    cast = on_tile("cast", "cast", plan.cast_cycles)
    return [*serial_slices, *turned, convolve, *sums, *added, *cast]


__all__ = ["plan_convolution", "plan_product"]

"""Rules for pooling, and for resampling of images."""

from __future__ import annotations

import math
from typing import Any

from poptorch.ipu_model.cycles import pooling as cycles
from poptorch.ipu_model.rules.call import CostedCall, CostedOperand, Rule, Table
from poptorch.ipu_model.rules.expressions import sequence
from poptorch.ipu_model.rules.lookups import lookup
from poptorch.ipu_model.rules.passes import each_element, elements_on_tile, move, reduce
from poptorch.ipu_model.steps import CostStep, OpCost

_CHANNELS = 16
"""Channels that a tile holds of a position."""


def _sizes(value: Any, space: int) -> tuple[int, ...]:
    sizes = (value,) if isinstance(value, int) else tuple(value)
    return sizes * space if len(sizes) == 1 else sizes


def pooling_step(call: CostedCall, small: CostedOperand, window: int, stride: int, kind: str) -> CostStep:
    """Pool to, or spread from, the smaller of two tensors.

    Tiles share its positions; each receives the inputs of its own, ``stride`` positions for each and a margin.
    """
    chip, dtype = call.chip, small.element_type
    channels = min(_CHANNELS, max(1, small.shape[1] if len(small.shape) > 2 else 1))
    share = elements_on_tile(small.elements, dtype, chip)
    positions = max(1, -(-share // channels))
    margin = min(window, stride + 2 * math.ceil(math.sqrt(window) / math.sqrt(positions)))
    return each_element(
        chip,
        call.name,
        small.elements,
        dtype,
        lambda own: cycles.pooling(max(1, -(-own // channels)), window, channels, dtype, kind),
        "pool",
        moved=float(share * margin * dtype.itemsize),
        fragments=4,
    )


def _pool(kind: str) -> Rule:
    def rule(call: CostedCall) -> OpCost:
        small = min((call.operands[0], call.result), key=lambda operand: operand.elements)
        large = max((call.operands[0], call.result), key=lambda operand: operand.elements)
        if not small.elements:
            return OpCost()
        space = max(1, sum(a != b for a, b in zip(small.shape, large.shape, strict=False)))
        if "kernel_size" in call.by_name:
            kernel = _sizes(call["kernel_size"], space)
            window = math.prod(kernel)
        else:
            window = max(1, -(-large.elements // small.elements))
        stride = max(1, large.elements // small.elements)
        chosen = "gradient" if "backward" in call.name or "unpool" in call.name else kind
        if chosen == "sum" and math.prod(small.shape[-space:]) == 1 and window * small.elements >= large.elements:
            summed = reduce(call.chip, call.name, small.elements, window, small.element_type, "add")
            scaled = sequence(call.chip, call.name, "multiply#", small.elements, small.element_type)
            return OpCost((*summed, *scaled), float(large.elements))
        steps = [pooling_step(call, small, window, stride, chosen)]
        if kind == "sum":
            steps += sequence(call.chip, call.name, "multiply#", small.elements, small.element_type)
        return OpCost(tuple(steps), float(small.elements * window))

    return rule


# -- resampling --------------------------------------------------------------------------------------------------------

_NEIGHBOURS = {"nearest": 1, "linear": 2, "bilinear": 4, "bicubic": 16, "trilinear": 8, "grid": 4}


def _resample(call: CostedCall) -> OpCost:
    """Each element is a weighted sum of a few neighbours, which arrive from other tiles; weights are constants."""
    result = max((call.result, call.operands[0]), key=lambda operand: operand.elements)
    words = [word for word in _NEIGHBOURS if word in call.name]
    neighbours = _NEIGHBOURS[max(words, key=len)] if words else 1
    chip, dtype = call.chip, result.element_type
    copies = move(chip, f"{call.name}: neighbours", result.elements * neighbours, dtype, aligned=False)
    if neighbours == 1 and "backward" not in call.name:
        return OpCost((copies,))
    passes = ["multiply", *["scaled_add"] * (neighbours - 1)] if neighbours > 1 else ["add"]
    steps = sequence(chip, call.name, passes, result.elements, dtype)
    return OpCost((copies, *steps), 2.0 * neighbours * result.elements)


def _grid(call: CostedCall) -> OpCost:
    """Places, then weights of the four (or eight) neighbours, then a lookup of each."""
    data = call["input"]
    grid = call["grid"]
    chip, dtype = call.chip, data.element_type
    places = grid.elements // max(1, grid.shape[-1])
    neighbours = 2 ** grid.shape[-1]
    backward = "backward" in call.name
    steps = sequence(chip, f"{call.name}: places", "multiply# floor subtract multiply", places * neighbours, dtype)
    channels = data.shape[1]
    rows = data.elements // max(1, channels)
    found = lookup(chip, call.name, rows, channels, places * neighbours, dtype, backward, call.proportion)
    words = ["multiply", *["scaled_add"] * (neighbours - 1)] * (2 if backward else 1)
    return OpCost((*steps, *found, *sequence(chip, call.name, words, places * channels, dtype)))


def _affine_grid(call: CostedCall) -> OpCost:
    """A small matrix for every position."""
    result, words = call.result, "multiply scaled_add add"
    return OpCost(tuple(sequence(call.chip, call.name, words, result.elements, result.element_type)))


_POOLS = {
    "max": (
        "max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d", "max_pool2d",
        "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "fractional_max_pool2d",
        "fractional_max_pool3d", "max_unpool2d", "max_unpool3d", "mkldnn_max_pool2d",
    ),
    "sum": (
        "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d",
        "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    ),
}  # fmt: skip
_RESAMPLED = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip
_GRIDS = ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback")

RULES: Table = {
    **{form: _pool(kind) for kind, names in _POOLS.items() for name in names for form in (name, f"{name}_backward")},
    **{form: _resample for name in _RESAMPLED for form in (name, f"{name}_backward")},
    **{form: _grid for name in _GRIDS for form in (name, f"{name}_backward")},
    "affine_grid_generator": _affine_grid,
}

__all__ = ["RULES", "pooling_step"]

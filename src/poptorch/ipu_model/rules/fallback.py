"""What an operation costs that has no rule of its own."""

from __future__ import annotations

from poptorch.ipu_model.rules.call import CostedCall
from poptorch.ipu_model.steps import CostStep, Exchange, OpCost, Vertices, spread

CYCLES_PER_ELEMENT = 20
"""Of a worker, for each element of the largest tensor: a plain loop that loads, computes a little, and stores."""

OVERHEAD = 40
"""Of a worker, once."""


def fallback(call: CostedCall) -> OpCost:
    """Assume that all operands are spread anew, and a plain loop over the largest tensor.

    The result says that it is a guess (``covered`` is false), so that a report can list the operation.
    """
    chip = call.chip
    tensors = (*call.operands, *call.results)
    if not tensors:
        return OpCost(covered=False)
    largest = max(tensors, key=lambda operand: operand.elements)
    share = spread(largest.elements, largest.element_type.itemsize, chip.tiles)
    if not share:
        return OpCost(covered=False)
    tiles = -(-largest.elements // share)
    moved = sum(operand.share(chip) * operand.element_type.itemsize for operand in call.operands)
    each = -(-share // chip.workers)
    step = CostStep(
        call.name,
        cycles=chip.workers * (OVERHEAD + CYCLES_PER_ELEMENT * each),
        total_cycles=chip.workers * (OVERHEAD + CYCLES_PER_ELEMENT * each) * tiles,
        exchange=Exchange(moved, sum(operand.bytes for operand in call.operands), max(1, len(call.operands))),
        vertices=(Vertices("generic", 1, tiles, 24),),
        tiles=tiles,
        temporary_bytes=moved,
    )
    return OpCost((step,), flops=largest.elements, covered=False)


__all__ = ["CYCLES_PER_ELEMENT", "OVERHEAD", "fallback"]

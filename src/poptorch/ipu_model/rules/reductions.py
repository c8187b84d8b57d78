"""Rules for sums, maxima, norms, statistics, scans, sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from poptorch.ipu_model.architecture import Architecture
from poptorch.ipu_model.cycles import elementwise as elementwise_cycles
from poptorch.ipu_model.cycles import nonlinear
from poptorch.ipu_model.rules.call import CostedCall, CostedOperand, Rule, Table
from poptorch.ipu_model.rules.expressions import sequence
from poptorch.ipu_model.rules.passes import (
    STATE,
    TILE_COUNTS,
    durations,
    each_element,
    elements_on_tile,
    move,
    on_best_tiles,
    reduce,
)
from poptorch.ipu_model.steps import CostStep, Exchange, OpCost, Vertices


def split_of(operand: CostedOperand, dims: Any) -> tuple[int, int, bool]:
    """Outputs, elements of each, and whether these lie side by side, when some dimensions are reduced.

    >>> split_of(CostedOperand((4, 5, 6), torch.float32), (2,)), split_of(CostedOperand((4, 5, 6), torch.float32), None)
    ((20, 6, True), (1, 120, True))
    """
    rank = len(operand.shape)
    chosen = range(rank) if dims in (None, ()) else (dims,) if isinstance(dims, int) else dims
    places = {dim % rank for dim in chosen} if rank else set()
    reduced = math.prod(operand.shape[place] for place in places)
    outputs = operand.elements // reduced if reduced else 0
    last = max((place for place, size in enumerate(operand.shape) if size != 1), default=0)
    return outputs, reduced, not places or last in places


def _dims(call: CostedCall) -> Any:
    for name in ("dim", "dims", "axis"):
        if name in call.by_name:
            return call[name]
    return None


def reduction(kind: str, before: str = "", after: str = "") -> Rule:
    """A rule for a reduction, with passes over its operand before it and over its result after it."""

    def rule(call: CostedCall) -> OpCost:
        operand, chip = call.operands[0], call.chip
        outputs, reduced, rows = split_of(operand, _dims(call))
        dtype = operand.element_type
        if dtype == torch.bool and kind not in ("logical", "max"):
            dtype = torch.int32
        steps: list[CostStep] = sequence(chip, call.name, before, operand.elements, dtype)
        steps += reduce(chip, call.name, outputs, reduced, dtype, kind, rows)
        result = call.result.element_type
        steps += sequence(chip, call.name, after, outputs, result if result.is_floating_point else dtype)
        return OpCost(tuple(steps), flops=float(operand.elements))

    return rule


def _norm(call: CostedCall) -> OpCost:
    order = call.get("ord", call.get("p", 2))
    order = 2 if order is None else order
    if order == 2:
        return reduction("square", after="sqrt")(call)
    if order in (math.inf, -math.inf):
        return reduction("max", before="abs")(call)
    if order in (0, 1):
        return reduction("add", before="abs" if order else "not_equal#")(call)
    return reduction("add", before="abs power#", after="power#")(call)


def _max(call: CostedCall) -> OpCost:
    """Of all elements; of a dimension, together with its place; or of two tensors."""
    if len(call.operands) > 1:
        return OpCost(tuple(sequence(call.chip, call.name, "maximum", call.result.elements, call.result.element_type)))
    return reduction("max")(call) if "dim" not in call.by_name else _arg_max(call)


def _arg_max(call: CostedCall) -> OpCost:
    """Each tile searches what it has; then the winners are compared."""
    operand = call.operands[0]
    outputs, reduced, _ = split_of(operand, call.get("dim"))

    def build(chip: Architecture) -> list[CostStep]:
        dtype = operand.element_type
        steps = [each_element(chip, call.name, operand.elements, dtype, nonlinear.arg_max, "search", temporary=8.0)]
        parts = -(-reduced // max(1, elements_on_tile(operand.elements, dtype, chip)))
        if parts > 1:
            steps += reduce(chip, f"{call.name} (winners)", outputs, parts * 2, torch.float32, "max", rows=True)
        return steps

    return OpCost(tuple(on_best_tiles(call.chip, build)), flops=float(operand.elements))


def variance_steps(
    chip: Architecture, name: str, outputs: int, reduced: int, dtype: torch.dtype, rows: bool
) -> list[CostStep]:
    """Mean, then mean square difference."""
    steps: list[CostStep] = list(reduce(chip, f"{name}: mean", outputs, reduced, dtype, "add", rows))
    steps += sequence(chip, name, "multiply#", outputs, torch.float32)
    steps += sequence(chip, name, "subtract", outputs * reduced, dtype)
    steps += reduce(chip, f"{name}: variance", outputs, reduced, dtype, "square", rows)
    return steps + sequence(chip, name, "multiply#", outputs, torch.float32)


def _variance(after: str) -> Rule:
    def rule(call: CostedCall) -> OpCost:
        operand, chip = call.operands[0], call.chip
        outputs, reduced, rows = split_of(operand, _dims(call))
        steps = variance_steps(chip, call.name, outputs, reduced, operand.element_type, rows)
        steps += sequence(chip, call.name, after, outputs, torch.float32)
        return OpCost(tuple(steps), flops=3.0 * operand.elements)

    return rule


def _log_sum_exp(call: CostedCall) -> OpCost:
    operand, chip = call.operands[0], call.chip
    outputs, reduced, rows = split_of(operand, _dims(call))
    dtype = operand.element_type
    steps: list[CostStep] = list(reduce(chip, f"{call.name}: max", outputs, reduced, dtype, "max", rows))
    steps += sequence(chip, call.name, "subtract exp", operand.elements, dtype)
    steps += reduce(chip, f"{call.name}: sum", outputs, reduced, dtype, "add", rows)
    return OpCost((*steps, *sequence(chip, call.name, "log add", outputs, torch.float32)), 4.0 * operand.elements)


def _histogram(call: CostedCall) -> OpCost:
    operand = call.operands[0]
    bins, dtype = max(1, call.result.elements), operand.element_type

    def build(chip: Architecture) -> list[CostStep]:
        counted = each_element(
            chip, call.name, operand.elements, dtype, lambda n: elementwise_cycles.histogram(n, bins, dtype), "search"
        )
        if counted.tiles == 1:
            return [counted]
        return [counted, *reduce(chip, f"{call.name}: sum", bins, counted.tiles, torch.float32, "add", rows=False)]

    return OpCost(tuple(on_best_tiles(call.chip, build)), float(operand.elements))


def _distances(call: CostedCall) -> OpCost:
    """Differences of every pair of rows, to a power, summed."""
    chip, width = call.chip, max(1, call.operands[0].shape[-1] if call.operands[0].shape else 1)
    pairs, dtype = max((call.result, *call.operands), key=lambda o: o.elements).elements, call.operands[0].element_type
    steps = sequence(chip, call.name, "subtract abs square", pairs * width, dtype)
    steps += reduce(chip, call.name, pairs, width, dtype, "add", rows=True)
    return OpCost((*steps, *sequence(chip, call.name, "sqrt", pairs, dtype)), 3.0 * pairs * width)


# -- scans -------------------------------------------------------------------------------------------------------------

_SCAN_CYCLES = {"cumsum": 3, "cumprod": 3, "cummax": 5, "cummin": 5, "logcumsumexp": 26}
"""Of a worker for each element: load, combine, store."""


def scan(
    chip: Architecture, name: str, rows: int, length: int, dtype: torch.dtype, each: float = 3.0
) -> list[CostStep]:
    """Each tile scans what it has of a row; the totals of the tiles are scanned; then each adds what came before.

    Tries how many tiles should share a row.
    """
    if not rows or not length:
        return []
    plans = (
        _shared_scan(chip, name, rows, length, dtype, each, parts)
        for parts in TILE_COUNTS
        if parts <= min(chip.tiles, length)
    )
    return min(plans, key=lambda steps: durations(steps, chip))


def _shared_scan(
    chip: Architecture, name: str, rows: int, length: int, dtype: torch.dtype, each: float, parts: int
) -> list[CostStep]:
    tiles = min(rows, chip.tiles // parts) * parts
    own = -(-rows // (chip.tiles // parts)) * -(-length // parts)
    steps = [_scan_step(chip, name, own, each, tiles, 0.0)]
    if parts > 1:
        few = -(-rows // chip.tiles)
        busy, totals = min(rows, chip.tiles), few * parts
        steps.append(_scan_step(chip, f"{name}: totals", totals, each * chip.workers, busy, 4.0 * totals))
        added = elementwise_cycles.scalar("add", own, dtype)
        exchange = Exchange(8.0, 8.0 * tiles, 1)
        vertices = (Vertices("scalar", 1, tiles, STATE["scalar"]),)
        steps.append(CostStep(f"{name}: add", added, added * tiles, exchange, vertices, tiles))
    return steps


def _scan_step(chip: Architecture, name: str, elements: int, each: float, tiles: int, received: float) -> CostStep:
    cycles = chip.workers * (30 + each * -(-elements // chip.workers))
    exchange = Exchange(received, received * tiles, max(1, int(received) // 4)) if received else None
    return CostStep(name, cycles, cycles * tiles, exchange, (Vertices("search", 1, tiles, 24),), tiles, 1, received)


def _scan(call: CostedCall) -> OpCost:
    operand = call.operands[0]
    rows, length, together = split_of(operand, call.get("dim", -1))
    dtype = call.result.element_type
    each = _SCAN_CYCLES.get(call.name, 3)
    steps = scan(call.chip, call.name, rows, length, dtype, each)
    if not together:
        steps.insert(0, move(call.chip, f"{call.name}: arrange", operand.elements, dtype, aligned=False))
    return OpCost(tuple(steps), float(operand.elements))


# -- sorting -----------------------------------------------------------------------------------------------------------


def bitonic(
    chip: Architecture, name: str, elements: int, length: int, kept: int, dtype: torch.dtype, values: int = 2
) -> list[CostStep]:
    """Compare and swap, in rounds; ``kept`` of each ``length`` elements survive; ``values`` travel with each key."""
    if length < 2 or not elements:
        return sequence(chip, name, "add#", elements, dtype)
    full = math.ceil(math.log2(max(2, min(kept, length))))
    more = max(0, math.ceil(math.log2(length)) - full)
    rounds = full * (full + 1) // 2 + more * (full + 1)
    share = elements_on_tile(elements, dtype, chip)
    near = math.ceil(math.log2(max(2, share)))
    far = max(0, min(rounds, math.ceil(math.log2(length)) - near))
    size = dtype.itemsize * values

    def step(label: str, repeat: int, exchanged: bool) -> CostStep:
        cost = nonlinear.compare_and_swap(-(-share * values // 2))
        tiles = -(-elements // share)
        exchange = Exchange(float(share * size), float(elements * size), 1) if exchanged else None
        return CostStep(
            f"{name}: {label}", cost, cost * tiles, exchange, (Vertices("search", 1, tiles, 24),), tiles, repeat,
            float(share * size),
        )  # fmt: skip

    crossing = far * (far + 1) // 2
    local = max(1, rounds - crossing)
    steps = [step("rounds inside tiles", local, False)]
    return [*steps, step("rounds between tiles", crossing, True)] if crossing else steps


def _sort(call: CostedCall) -> OpCost:
    operand = call.operands[0]
    if not operand.shape:
        return OpCost(tuple(sequence(call.chip, call.name, "add#", 1, operand.element_type)))
    dim = call.get("dim", -1)
    whole = dim is None or (call.name in _WHOLE and "dim" not in call.by_name)
    length = operand.elements if whole else operand.shape[dim]
    kept = call.get("k", length) if call.name == "topk" else length
    dtype = operand.element_type
    steps = on_best_tiles(call.chip, lambda chip: bitonic(chip, call.name, operand.elements, length, kept, dtype))
    return OpCost(tuple(steps), 0.0)


_WHOLE = {"_unique2", "median", "nanmedian", "unique_consecutive"}
"""What sorts all elements of a tensor, where no dimension is given."""

_KINDS: Sequence[tuple[str, Rule]] = (
    ("sum", reduction("add")),
    ("nansum", reduction("add", before="isnan select#")),
    ("mean", reduction("add", after="multiply#")),
    ("prod", reduction("multiply")),
    ("amax amin", reduction("max")),
    ("max min", _max),
    ("argmax argmin", _arg_max),
    ("all any", reduction("logical", before="not_equal#")),
    ("count_nonzero", reduction("add", before="not_equal#")),
    ("aminmax", reduction("max", before="negate")),
    ("equal allclose", reduction("logical", before="compare")),
    ("trace", reduction("add")),
    ("dist", reduction("square", before="subtract", after="sqrt")),
    ("norm linalg_vector_norm", _norm),
    ("var std", _variance("sqrt")),
    ("var_mean std_mean", _variance("sqrt")),
    ("logsumexp", _log_sum_exp),
    ("histc static_bincount bincount", _histogram),
    ("cdist pdist _cdist_forward _cdist_backward _pdist_forward _pdist_backward _euclidean_dist nearest", _distances),
    ("cumsum cumprod cummax cummin logcumsumexp", _scan),
    ("_cummax_helper _cummin_helper cummaxmin_backward", _scan),
    ("sort topk argsort msort kthvalue median nanmedian mode _unique2 unique_consecutive", _sort),
)

RULES: Table = {name: rule for names, rule in _KINDS for name in names.split()}

__all__ = ["RULES", "bitonic", "reduction", "scan", "split_of", "variance_steps"]

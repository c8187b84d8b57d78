"""Rules for exchanges between replicas: rings of IPUs, each of which sends to the next."""

from __future__ import annotations

from poptorch.ipu_model.rules.call import CostedCall, Table
from poptorch.ipu_model.rules.passes import move
from poptorch.ipu_model.steps import CostStep, OpCost


def _ring(call: CostedCall, num_bytes: float, ways: int) -> list[CostStep]:
    """So many ways round a ring: one is a reduce-scatter or an all-gather of so many bytes in all."""
    chip, members = call.chip, int(call["grouping"][2])
    if members == 1 or call.get("operation") == "local" or not num_bytes:
        return []
    seconds = num_bytes * (members - 1) / members / chip.ring_bandwidth
    cycles = ways * (chip.cycles(seconds) + (members - 1) * chip.global_sync_cycles)
    return [CostStep(f"{call.name}: ring of {members} replicas", cycles=cycles, total_cycles=cycles)]


def _copy(call: CostedCall) -> CostStep:
    """The result, from where the ring left it to where it is used."""
    return move(call.chip, f"{call.name}: copy", call.result.elements, call.result.element_type)


def _all_reduce(call: CostedCall) -> OpCost:
    return OpCost((*_ring(call, call["x"].bytes, 2), _copy(call)), flops=float(call["x"].elements))


def _all_gather(call: CostedCall) -> OpCost:
    return OpCost((*_ring(call, call.result.bytes, 1), _copy(call)))


def _reduce_scatter(call: CostedCall) -> OpCost:
    return OpCost((*_ring(call, call["x"].bytes, 1), _copy(call)), flops=float(call["x"].elements))


def _own_part(call: CostedCall) -> OpCost:
    return OpCost((_copy(call),))


RULES: Table = {
    "replicated_all_reduce": _all_reduce,
    "replicated_all_gather": _all_gather,
    "replicated_reduce_scatter": _reduce_scatter,
    "replicated_own_part": _own_part,
}
"""By the bare names of operations."""

"""What a host computes again in the backward pass, where that is not what an IPU does.

A host has memory, and few micro-batches under way at once: what pays on an IPU costs it more than it saves.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.passes.context import Context
from poptorch.compiler.passes.recompute import Recomputation, all_but
from poptorch.compiler.passes.slots import SlotPartition
from poptorch.compiler.pipeline import DIVIDING_PASSES, Pass
from poptorch.ops.traits import traits_of
from poptorch.program.graphs import is_view
from poptorch.program.opinfo import info_of
from poptorch.program.program import Program, is_write


def own_way(device: DeviceProgram) -> Pass | None:
    """The pass of the host in place of the compiler's; ``None`` where the host does as IPUs do."""
    settings, mode = device.settings, device.recomputation
    if not settings.training or mode is Recomputation.OFF:
        return None
    if settings.numerics.stochastic_rounding:
        return NOTHING_AGAIN
    if settings.recomputation is None and mode is Recomputation.PIPELINE and not device.plan.whole:
        return CHEAP_AGAIN
    return None


def dividing_passes(own: Pass | None) -> Sequence[Pass]:
    """What prepares the host's program for being cut into stages: as on IPUs, but for recomputation."""
    return [own if own is not None and step.name == own.name else step for step in DIVIDING_PASSES]


def nothing_again(program: Program, context: Context) -> str:
    """Keep all values."""
    return all_but(program, context.divided, lambda node: True, "off")


def cheap_again(program: Program, context: Context) -> str:
    """Compute element-wise functions, and views, of kept values again."""
    partition = context.divided
    cheap = _cheap(program, partition)
    return all_but(program, partition, lambda node: node not in cheap, "cheap")


NOTHING_AGAIN = Pass("recompute", nothing_again, "a second rounding at random would go another way")
CHEAP_AGAIN = Pass("recompute", cheap_again, "few micro-batches are under way at once, and memory is there")


def _cheap(program: Program, partition: SlotPartition) -> set[fx.Node]:
    """Element-wise functions, and views, of values that the backward pass of the same part looks at anyway."""
    forwards, slots = partition.forwards, partition.slots
    read: dict[int, set[fx.Node]] = {}
    for node in program.operations():
        if not is_write(node) and slots[node] >= forwards:
            read.setdefault(partition.part_of(slots[node]), set()).update(node.all_input_nodes)
    result: set[fx.Node] = set()
    for node in program.operations():
        if slots[node] < forwards and _is_elementwise(node):
            there = read.get(slots[node], set())
            if all(o.op == "placeholder" or o in there or o in result for o in node.all_input_nodes):
                result.add(node)
    return result


def _is_elementwise(node: fx.Node) -> bool:
    if info_of(node).random is not None or is_write(node):
        return False
    return is_view(node) or traits_of(node).is_pointwise

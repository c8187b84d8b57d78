"""Recomputation: the backward pass repeats forward operations instead of keeping their results.

A mode says which forward values are *kept*. Every other one that the backward pass needs is computed again, from kept
values, right before it is needed. Random operations are numbered, so the second execution draws the same numbers.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import fx

from poptorch.compiler.passes.slots import SlotPartition
from poptorch.compiler.passes.summary import UNCHANGED, summary
from poptorch.ops.effects import is_ordered
from poptorch.ops.hints import CHECKPOINT
from poptorch.ops.traits import OpKind, traits_of
from poptorch.program.graphs import is_view, remove_dead_code, storage_root
from poptorch.program.opinfo import Sweep, info_of, set_info
from poptorch.program.program import Program, is_write

if TYPE_CHECKING:
    from poptorch.compiler.passes.context import Context

Keep = Callable[[fx.Node, int], bool]
"""Whether a forward value, needed in the given backward slot, is kept from the forward pass."""

Kept = Callable[[fx.Node], bool]
"""Whether a forward value is kept for its own part."""


class Recomputation(enum.IntEnum):
    """The values of the backend option ``autoRecomputation``."""

    OFF = 0
    STANDARD = 1
    """Keep what crosses about √n borders of the forward pass."""

    NORMS = 2
    """Compute normalisations, and the activation functions that follow them, again."""

    PIPELINE = 3
    """Keep the inputs of each pipeline stage, and checkpoints. The last stage runs backward right after it ran forward:
    there, what comes after the last checkpoint is kept, too. It would be computed twice in a row for nothing."""

    EVERYTHING = 4
    """Keep the inputs of each part."""


def recompute(program: Program, context: Context) -> str:
    """Replace forward values in the backward slots by values computed again."""
    if not program.training:
        return UNCHANGED
    partition, mode = context.divided, context.settings.recomputation
    if len(partition.parts) == 1 and mode is Recomputation.PIPELINE:
        mode = Recomputation.OFF  # the only stage is the last one
    kept = _kept_values(program, partition, mode)
    return all_but(program, partition, kept, mode.name.lower())


def all_but(program: Program, partition: SlotPartition, kept: Kept, name: str) -> str:
    """Compute again, in the backward slots, whatever is not kept. Says what it did."""
    if not program.training:
        return UNCHANGED
    keep = _policy(program, partition, kept)
    copies = _Copies(program, partition, keep)
    for node in [n for n in program.operations() if not is_write(n) and partition.slots[n] >= partition.forwards]:
        copies.provide(node)
    dropped = remove_dead_code(program)
    living = set(program.graph.nodes)
    partition.slots = {n: s for n, s in partition.slots.items() if n in living}
    did = f"{name}: {copies.count} operations run again, {dropped} became unused"
    return summary(copies.count + dropped, did)


class _Copies:
    """Second executions, each once per backward slot."""

    def __init__(self, program: Program, partition: SlotPartition, keep: Keep) -> None:
        self._graph = program.graph
        self._partition = partition
        self._keep = keep
        self._order = {n: i for i, n in enumerate(program.graph.nodes)}
        self._made: dict[tuple[fx.Node, int], fx.Node] = {}
        self.count = 0

    def provide(self, user: fx.Node) -> None:
        """Compute again, before ``user``, what it needs of the forward pass and was not kept."""
        slot = self._partition.slots[user]
        wanted = [o for o in user.all_input_nodes if self._is_recomputed(o, slot)]
        if not wanted:
            return
        for node in sorted(self._closure(wanted, slot), key=self._order.__getitem__):
            with self._graph.inserting_before(user):
                copy = self._graph.node_copy(node, lambda n: self._made.get((n, slot), n))
            set_info(copy, info_of(node).but(sweep=Sweep.BACKWARD, recomputed=True))
            self._partition.slots[copy] = slot
            self._made[node, slot] = copy
            self.count += 1
        for node in wanted:
            user.replace_input_with(node, self._made[node, slot])

    def _is_recomputed(self, node: fx.Node, slot: int) -> bool:
        slots = self._partition.slots
        return node in slots and slots[node] < self._partition.forwards and not self._keep(node, slot)

    def _closure(self, wanted: list[fx.Node], slot: int) -> set[fx.Node]:
        needed: set[fx.Node] = set()
        queue = [n for n in wanted if (n, slot) not in self._made]
        while queue:
            node = queue.pop()
            if node in needed:
                continue
            needed.add(node)
            queue += [o for o in node.all_input_nodes if (o, slot) not in self._made and self._is_recomputed(o, slot)]
        return needed


# -- what is kept --------------------------------------------------------------------------------------------------


def _policy(program: Program, partition: SlotPartition, kept: Kept) -> Keep:
    written: set[object] = {n.args[0] for n in program.operations() if is_write(n)}

    def keep(node: fx.Node, slot: int) -> bool:
        if _is_free(node, written):
            return False
        if not isinstance(node.meta.get("val"), torch.Tensor):
            return False  # an operation with several results is never kept itself, only these are
        if partition.part_of(slot) != partition.slots[node]:
            return True  # an input of another part
        return kept(node)

    return keep


def _is_free(node: fx.Node, written: set[object]) -> bool:
    """A view of a weight or an input costs nothing to take a second time."""
    root = storage_root(node)
    return is_view(node) and root.op == "placeholder" and root not in written


def _kept_values(program: Program, partition: SlotPartition, mode: Recomputation) -> Kept:
    if mode is Recomputation.OFF:
        return lambda node: True
    if mode is Recomputation.NORMS:
        again = _norms(program)
        return lambda node: node not in again
    extra: set[fx.Node] = set()
    if mode is Recomputation.STANDARD:
        extra = _borders(program, partition)
    elif mode is Recomputation.PIPELINE:
        extra = _behind_the_last_checkpoints(program, partition)
    return lambda node: node in extra or _must_stay(node)


def _behind_the_last_checkpoints(program: Program, partition: SlotPartition) -> set[fx.Node]:
    """What the last forward stage computes and no checkpoint of that stage depends on."""
    last = partition.forwards - 1
    stage = [n for n in program.operations() if not is_write(n) and partition.slots[n] == last]
    before: set[fx.Node] = set()
    for node in reversed(stage):
        if any(user.target is CHECKPOINT or user in before for user in node.users if partition.slots.get(user) == last):
            before.add(node)
    return {node for node in stage if node not in before}


def _must_stay(node: fx.Node) -> bool:
    """Checkpoints, and whatever acts on the world: it must not happen twice."""
    if node.target is CHECKPOINT:
        return True
    if node.target is operator.getitem:
        return _must_stay(node.all_input_nodes[0])
    return is_ordered(node) or node.is_impure(impure_random=False)


def _norms(program: Program) -> set[fx.Node]:
    result: set[fx.Node] = set()
    for node in program.operations():
        if info_of(node).sweep is not Sweep.FORWARD:
            continue
        traits = traits_of(node)
        from_norm = any(o in result for o in node.all_input_nodes)
        follows = traits.kind is OpKind.STRUCTURE or traits.repeats_after_norm or is_view(node)
        if traits.is_norm or (from_norm and follows):
            result.add(node)
    return result


def _borders(program: Program, partition: SlotPartition) -> set[fx.Node]:
    """The values that cross the borders between √n segments of each part's forward pass."""
    borders: set[fx.Node] = set()
    for part in range(partition.forwards):
        nodes = [n for n in program.operations() if partition.slots.get(n) == part and not is_write(n)]
        size = math.ceil(len(nodes) / max(1, math.isqrt(len(nodes)))) if nodes else 1
        segment: dict[fx.Node, int] = {}
        for index, node in enumerate(nodes):
            together = node.target is operator.getitem
            segment[node] = segment[node.all_input_nodes[0]] if together else index // size
        for node in nodes:
            if any(segment.get(u, segment[node]) != segment[node] for u in node.users):
                borders.add(node)
    return borders


__all__ = ["Keep", "Kept", "Recomputation", "all_but", "recompute"]

"""State that is written in one stage of a model and read in another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import fx

from poptorch.ambient import Placement
from poptorch.compiler.passes.slots import SlotPartition
from poptorch.compiler.passes.summary import UNCHANGED, summary
from poptorch.program.graphs import insert_call, is_view
from poptorch.program.opinfo import OpInfo, set_info
from poptorch.program.program import Program, Role, is_write

if TYPE_CHECKING:
    from poptorch.compiler.passes.context import Context

aten = torch.ops.aten


@dataclass(frozen=True)
class Carried:
    """A buffer that one slot reads and a later one writes: the next micro-batch's read waits for the write."""

    name: str
    reader: int
    writer: int


def isolate_writes(program: Program, context: Context) -> str:
    """Where several slots use a value that is written, all of them use a copy that the first one makes.

    Without it, a slot would see what the same micro-batch, or the next one, already wrote. A model in one part writes
    at its end, after all reads.
    """
    partition = context.divided
    if len(partition.parts) == 1:
        return UNCHANGED
    copies = 0
    writes = {n.args[0]: n for n in program.operations() if is_write(n)}
    for node, port in program.placeholders():
        write = writes.get(node)
        if write is None:
            continue
        readers = [u for u in node.users if u is not write and u.op != "output"]
        slots = {partition.slots[u] for u in readers} | {partition.slots[write]}
        if len(slots) == 1 and not _escapes(node, partition):
            continue
        first = min(slots)
        begin = next(program.operations())
        copy = insert_call(program, begin, aten.clone.default, (node,), begin)
        part = partition.parts[partition.part_of(first)]
        set_info(copy, OpInfo(Placement(part.stage, part.phase, part.ipu)))
        partition.slots[copy] = first
        copies += 1
        for reader in readers:
            reader.replace_input_with(node, copy)
        if partition.slots[write] != first and port.role is not Role.INPUT:
            context.carried.append(Carried(port.name, first, partition.slots[write]))
    return summary(copies, f"copied {copies} values that are written, {len(context.carried)} wait for a later stage")


def _escapes(node: fx.Node, partition: SlotPartition) -> bool:
    """Whether a view of the port's own memory leaves the slot that reads it."""
    for user in node.users:
        if is_view(user) and user.args[0] is node:
            slot = partition.slots[user]
            if any(partition.slots.get(u, slot) != slot for u in user.users) or _escapes(user, partition):
                return True
    return False

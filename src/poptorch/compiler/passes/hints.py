"""Hints become annotations of the operations, inputs and results that they speak of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import fx

from poptorch.compiler.passes.planning import available_memory, before_detaching, custom_cycles
from poptorch.compiler.passes.summary import summary
from poptorch.enums import OverlapMode
from poptorch.ops.hints import AVAILABLE_MEMORY, OVERLAP_INPUT, OVERLAP_OUTPUT
from poptorch.program.opinfo import info_of, set_info
from poptorch.program.program import Program

if TYPE_CHECKING:
    from poptorch.compiler.passes.context import Context


def read_hints(program: Program, context: Context) -> str:
    """Note memory budgets, cycle estimates and overlap, and drop the marks, which would cost a copy each.

    Recomputation checkpoints stay: the pass that computes values again reads them.
    """
    proportions, cycles = available_memory(program.graph), custom_cycles(program.graph)
    for node, proportion in proportions.items():
        set_info(node, info_of(node).but(available_memory=proportion))
    for node, estimate in cycles.items():
        set_info(node, info_of(node).but(cycles=estimate))
    _note_overlap(program)
    marks = [n for n in program.operations() if n.target in (AVAILABLE_MEMORY, OVERLAP_INPUT, OVERLAP_OUTPUT)]
    for node in marks:
        node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
        program.graph.erase_node(node)
    did = f"{len(proportions)} memory budgets, {len(cycles)} cycle estimates, {len(marks)} marks removed"
    return summary(len(proportions) + len(cycles) + len(marks), did)


def _note_overlap(program: Program) -> None:
    """Say on the ports of inputs, and on results, when they may be copied."""
    modes = {n.args[0]: OverlapMode(n.args[1]) for n in program.operations() if n.target is OVERLAP_INPUT}
    program.ports = [replace(p, overlap=modes.get(n, p.overlap)) for n, p in program.placeholders()]
    pairs = []
    for output, value in program.returned():
        mark = before_detaching(value)
        if isinstance(mark, fx.Node) and mark.target is OVERLAP_OUTPUT:
            output = replace(output, overlap=OverlapMode(mark.args[1]))
        pairs.append((output, value))
    program.set_outputs(pairs)

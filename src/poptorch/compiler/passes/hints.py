"""Memory hints become annotations of the operations they speak of; overlap marks have been checked and go."""

from __future__ import annotations

from torch import fx

from poptorch.ops.hints import AVAILABLE_MEMORY, OVERLAP_INPUT, OVERLAP_OUTPUT
from poptorch.ops.planning import available_memory, custom_cycles
from poptorch.program.opinfo import info_of, set_info
from poptorch.program.program import Program

MEMORY = "__available_memory"
"""Attribute under which the IPU Model finds the share of tile memory that an operation may use."""


CYCLES = "__cycles"
"""Attribute under which the IPU Model finds what the author of a custom operator says about its cost."""


def read_hints(program: Program) -> str:
    """Note available memory and cycle estimates on the operations, and drop the marks, which would cost a copy each.

    Recomputation checkpoints stay: the pass that cuts the program into stages reads them.
    """
    proportions, cycles = available_memory(program.graph), custom_cycles(program.graph)
    for node, proportion in proportions.items():
        _attach(node, MEMORY, "proportion", proportion)
    for node, estimate in cycles.items():
        _attach(node, CYCLES, "estimate", estimate)
    marks = [n for n in program.operations() if n.target in (AVAILABLE_MEMORY, OVERLAP_INPUT, OVERLAP_OUTPUT)]
    for node in marks:
        node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
        program.graph.erase_node(node)
    return f"{len(proportions)} memory budgets, {len(cycles)} cycle estimates, {len(marks)} marks removed"


def _attach(node: fx.Node, group: str, key: str, value: float) -> None:
    info = info_of(node)
    set_info(node, info.but(attributes={**info.attributes, group: {key: str(value)}}))

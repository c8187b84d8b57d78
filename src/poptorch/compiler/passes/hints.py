"""Memory hints become annotations of the operations they speak of; overlap marks have been checked and go."""

from __future__ import annotations

from poptorch.compiler.opinfo import info_of, set_info
from poptorch.compiler.program import Program
from poptorch.ops.hints import AVAILABLE_MEMORY, OVERLAP_INPUT, OVERLAP_OUTPUT
from poptorch.ops.planning import available_memory

MEMORY = "__available_memory"
"""Attribute under which the IPU Model finds the share of tile memory that an operation may use."""


def read_hints(program: Program) -> str:
    """Note the available memory on each operation and drop the marks, which would cost a copy each.

    Recomputation checkpoints stay: the pass that cuts the program into stages reads them.
    """
    proportions = available_memory(program.graph)
    for node, proportion in proportions.items():
        info = info_of(node)
        set_info(node, info.but(attributes={**info.attributes, MEMORY: {"proportion": str(proportion)}}))
    marks = [n for n in program.operations() if n.target in (AVAILABLE_MEMORY, OVERLAP_INPUT, OVERLAP_OUTPUT)]
    for node in marks:
        node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
        program.graph.erase_node(node)
    return f"{len(proportions)} memory budgets, {len(marks)} marks removed"

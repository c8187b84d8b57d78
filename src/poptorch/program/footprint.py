"""How much memory a program takes while it runs."""

from __future__ import annotations

import torch
from torch import fx

from poptorch.program.graphs import memory_root
from poptorch.program.program import Program


def working_bytes(program: Program) -> int:
    """The most bytes alive at once while a stage runs, without its inputs and outputs."""
    kept = {memory_root(value) for value in program.output_values()}
    last_use: dict[fx.Node, fx.Node] = {}
    for node in program.operations():
        last_use.update(dict.fromkeys(map(memory_root, node.all_input_nodes), node))
    dying: dict[fx.Node, list[fx.Node]] = {}
    for value, user in last_use.items():
        dying.setdefault(user, []).append(value)

    def size(node: fx.Node) -> int:
        value = node.meta.get("val")
        own = node.op == "call_function" and memory_root(node) is node and node not in kept
        return value.numel() * value.element_size() if own and isinstance(value, torch.Tensor) else 0

    live = peak = 0
    for node in program.operations():
        live += size(node) if node in last_use else 0
        peak = max(peak, live)
        live -= sum(map(size, dying.get(node, ())))
    return peak

"""Biases of linear layers as additions of their own, for compilers that fuse them with what follows.

``addmm`` first writes the bias into every row of its result and then has the product added to that: two more passes
over memory than the product alone. As an addition behind the product, the bias is part of the kernel of the activation
function or the normalisation, and costs nothing. A forward pass of a BERT layer spent a tenth of its time on biases.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from poptorch.compiler.passes.graphs import insert_call
from poptorch.compiler.program import Program, value_of

aten = torch.ops.aten
_TYPES = (torch.float32, torch.float64)
"""In shorter types the product would be rounded once more."""


def with_biases_apart(program: Program) -> Program:
    """The program with a product and an addition wherever a bias is added to the rows of a product."""
    if not program.numerics.plain or not any(map(_adds_bias, program.operations())):
        return program
    graph = fx.Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    result = replace(program, graph_module=fx.GraphModule(program.graph_module, graph), log=[*program.log])
    for node in [n for n in result.operations() if _adds_bias(n)]:
        bias, left, right = node.args
        product = insert_call(result, node, aten.mm.default, (left, right), node)
        # One dimension more: Inductor would make the same addmm of a product and an addition of two dimensions.
        rows = insert_call(result, node, aten.unsqueeze.default, (product, 0), node)
        total = insert_call(result, node, aten.add.Tensor, (rows, bias), node)
        node.replace_all_uses_with(insert_call(result, node, aten.squeeze.dim, (total, 0), node))
        graph.erase_node(node)
    return result


def _adds_bias(node: fx.Node) -> bool:
    if node.target is not aten.addmm.default or node.kwargs:
        return False
    bias = node.args[0]
    assert isinstance(bias, fx.Node)
    return value_of(bias).dim() == 1 and value_of(node).dtype in _TYPES

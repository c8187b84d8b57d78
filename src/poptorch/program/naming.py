"""Names of values: ``layer/Mul:0`` for the first product of ``layer``, ``layer/Mul:0/1`` for the next."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from torch import fx

from poptorch.ops.traits import traits_of
from poptorch.program.opinfo import info_of


def value_labels(operations: Iterable[fx.Node]) -> dict[fx.Node, str]:
    """A name for the value of every operation, in program order: scope, operation, output, and a number if taken.

    >>> import torch
    >>> graph = fx.Graph()
    >>> x = graph.placeholder("x")
    >>> nodes = [graph.call_function(torch.ops.aten.add.Tensor, (x, x)) for _ in range(2)]
    >>> list(value_labels(nodes).values())
    ['Add:0', 'Add:0/1']
    """
    labels: dict[fx.Node, str] = {}
    calls: dict[str, int] = {}
    for node in operations:
        source = node.args[0] if node.target is operator.getitem else None
        if isinstance(source, fx.Node) and source in labels:
            labels[node] = _of_output(labels[source], node.args[1])
            continue
        scope = info_of(node).scope
        name = f"{scope}/" * bool(scope) + _operation(node) + ":0"
        count = calls.get(name, 0)
        calls[name] = count + 1
        labels[node] = f"{name}/{count}" if count else name
    return labels


def _operation(node: fx.Node) -> str:
    return traits_of(node).known_as or "".join(word.capitalize() for word in node.name.split("_"))


def _of_output(label: str, index: object) -> str:
    """The name of another output of the same operation."""
    head, _, tail = label.rpartition(":0")
    return f"{head}:{index}{tail}"

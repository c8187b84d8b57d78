"""What graphs of kernels gain before they become code: choices between equal forms, by what is faster on a CPU."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.fx_passes import reinplace

from poptorch.host.native import products
from poptorch.host.native.products import multiply_by_onednn
from poptorch.libraries.choice import Libraries
from poptorch.program.graphs import memory_root

aten = torch.ops.aten
_TYPES = (torch.float32, torch.float64)
"""In shorter types the product would be rounded once more."""

_PRODUCTS = (aten.mm.default, aten.addmm.default)
_LEAST_ELEMENTS = 1 << 14
"""What a sum must read to be worth a call of the library."""


class FasterForms(CustomGraphPass):
    """All of the choices."""

    def __init__(self, libraries: Libraries) -> None:
        self._libraries = libraries

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite the graph."""
        take_biases_apart(graph)
        sum_columns_by_products(graph)
        multiply_by_onednn(graph, self._libraries)
        write_lists_at_the_end()

    def uuid(self) -> object:
        """What Inductor's cache tells versions of this apart by."""
        return get_hash_for_files((__file__, products.__file__)), self._libraries.identity


# -- biases --------------------------------------------------------------------------------------------------------


def take_biases_apart(graph: fx.Graph) -> None:
    """Take the bias out of matrix products.

    A product with a bias first writes the bias to all rows and then adds to what it reads there. Left apart, the
    bias joins the kernel that follows. Measured on two cores, 512 rows and 256 to 1024 columns: the products of a
    forward pass take 0.85 to 0.92 times as long.
    """
    for node in graph.find_nodes(op="call_function", target=aten.addmm.default):
        bias, left, right = node.args
        if node.kwargs or bias.meta["val"].ndim != 1 or bias.meta["val"].dtype not in _TYPES:
            continue
        shape = _shape_of_users(node)
        with graph.inserting_before(node):
            product = _call(graph, aten.mm.default, left, right)
            total = _call(graph, aten.add.Tensor, _reshaped(graph, product, shape), bias)
            node.replace_all_uses_with(_reshaped(graph, total, list(node.meta["val"].shape)))
        graph.erase_node(node)


def _shape_of_users(node: fx.Node) -> list[int]:
    """The shape in which the product is used: loops over equal shapes become one."""
    shape = list(node.meta["val"].shape)
    views = [list(u.meta["val"].shape) for u in node.users if u.target in (aten.view.default, aten.reshape.default)]
    return next((view for view in views if view and view[-1] == shape[-1]), shape)


# -- updates of lists of weights -----------------------------------------------------------------------------------


def write_lists_at_the_end() -> None:
    """Let an update of a list (``_foreach_add`` and a copy to each weight) stay what it is.

    Inductor, in a pass that comes after this one, makes one operation of it that writes in place. For a CPU it then
    writes the first weight of the list before it has computed the others. What the new value of the second is computed
    from is part of the same loop, and if the first weight is among it, it is read when it has changed already: the
    gradient of ``s`` in ``x * s`` reads ``x``. Copies that stand by themselves wait for all who read. The table is
    Inductor's own; for CPUs nothing else comes of it.
    """
    reinplace.inplaceable_foreach_ops.clear()


# -- sums of columns -----------------------------------------------------------------------------------------------


def sum_columns_by_products(graph: fx.Graph) -> None:
    """Add up the rows of what a matrix product reads, too, by another product: with a row of ones.

    This is the gradient of a bias. Inductor's loop goes down the columns, a cache line of each row at a time; the
    library goes along the rows. Measured on one core, 64 to 1024 rows and 256 to 4096 columns: a third of the time.
    """
    ones: dict[tuple[int, torch.dtype], fx.Node] = {}
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in list(graph.find_nodes(op="call_function", target=aten.sum.dim_IntList)):
        if not _sums_rows_of_an_operand(node):
            continue
        operand = node.args[0]
        *rows_shape, columns = operand.meta["val"].shape
        rows, dtype = math.prod(rows_shape), operand.meta["val"].dtype
        if (rows, dtype) not in ones:
            with graph.inserting_before(first):
                ones[rows, dtype] = _call(graph, aten.full.default, [1, rows], 1.0, like=operand)
        with graph.inserting_before(node):
            matrix = _reshaped(graph, operand, [rows, columns])
            product = _call(graph, aten.mm.default, ones[rows, dtype], matrix)
            node.replace_all_uses_with(_reshaped(graph, product, list(node.meta["val"].shape)))
        graph.erase_node(node)


def _sums_rows_of_an_operand(node: fx.Node) -> bool:
    """Whether all but the last dimension are summed, of a large value that must be in memory anyway."""
    operand, dims = node.args[0], node.args[1]
    assert isinstance(operand, fx.Node)
    value = operand.meta["val"]
    if node.kwargs or value.ndim < 2 or value.dtype not in _TYPES or value.numel() < _LEAST_ELEMENTS:
        return False
    if sorted(d % value.ndim for d in dims) != list(range(value.ndim - 1)) or not value.is_contiguous():  # type: ignore[union-attr]
        return False
    root = memory_root(operand)
    return root.target in _PRODUCTS or any(user.target in _PRODUCTS for user in _looking_at(root))


def _looking_at(root: fx.Node) -> Iterator[fx.Node]:
    """All nodes that read a value or a view of it."""
    for user in root.users:
        yield user
        if memory_root(user) is not user:
            yield from _looking_at(user)


# -- nodes ---------------------------------------------------------------------------------------------------------


def _call(graph: fx.Graph, target: torch._ops.OpOverload, *args: Any, like: fx.Node | None = None) -> fx.Node:
    """A new node with the description of its value; one without operands is of the same type as ``like``."""
    kwargs = {} if like is None else {"dtype": like.meta["val"].dtype, "device": torch.device("cpu")}
    node = graph.call_function(target, args, kwargs)
    source = (node.all_input_nodes[0] if like is None else like).meta["val"]
    with getattr(source, "fake_mode", contextlib.nullcontext()), torch.no_grad():
        node.meta["val"] = target(*fx.map_arg(args, lambda n: n.meta["val"]), **kwargs)
    return node


def _reshaped(graph: fx.Graph, node: fx.Node, shape: list[int]) -> fx.Node:
    return node if list(node.meta["val"].shape) == shape else _call(graph, aten.reshape.default, node, shape)

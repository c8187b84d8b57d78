"""The products of a program, and the libraries that multiply them on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from poptorch.libraries.choice import Libraries, MatrixProduct, libraries_for
from poptorch.program.program import Program

aten = torch.ops.aten
_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)


def products_of(program: Program) -> Iterator[MatrixProduct]:
    """The products of float32 matrices in a program."""
    for target in _PRODUCTS:
        for node in program.graph.find_nodes(op="call_function", target=target):
            left, right = (operand.meta["val"] for operand in node.args[-2:])
            product = MatrixProduct.of(left, right)
            if product is not None:
                yield product


def libraries_of(program: Program, threads: int) -> Libraries:
    """What multiplies in a program whose operations may use so many threads."""
    return libraries_for(list(products_of(program)), threads)

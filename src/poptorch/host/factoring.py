"""Gradients that are products of two smaller matrices, left unmultiplied for the accumulator to add.

A linear layer's gradient for a few rows is a large matrix made from two small ones. Written to memory, read again and
added to the accumulator it costs more than the product itself; multiplied straight into the accumulator it costs no
more than that. So generated code returns the factors, wherever they take no more memory than what they make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from poptorch.program.graphs import copy_of, remove_dead_code, storage_root
from poptorch.program.outputs import Output, OutputKind
from poptorch.program.program import Program, is_write, value_of

aten = torch.ops.aten
_TYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class RightFactor:
    """What an output must be multiplied by to be a gradient."""

    position: int
    """Where it is among the outputs."""

    transposed: tuple[bool, bool]
    """Whether the left and the right factor are to be transposed first."""


Products = Mapping[int, RightFactor]
"""The outputs that are left factors, by position, in order."""

NO_PRODUCTS: Products = {}


def in_factors(program: Program) -> tuple[Program, Products]:
    """The program with each gradient that is better not multiplied in two factors; right ones follow all outputs."""
    found = _products(program)
    if not found:
        return program, NO_PRODUCTS
    count = len(program.outputs)
    rights = {at: RightFactor(count + i, f.transposed) for i, (at, f) in enumerate(found.items())}
    return _with_factors(program, list(found.values())), rights


def with_right_factors(buckets: Sequence[Sequence[int]], products: Products) -> list[list[int]]:
    """Positions of gradients that leave together, with those of the factors that must leave with them behind."""
    return [[*bucket, *(products[at].position for at in bucket if at in products)] for bucket in buckets]


@dataclass(frozen=True)
class _Factors:
    """The operands of one product, as the program names them before transposing."""

    position: int
    left: fx.Node
    right: fx.Node
    transposed: tuple[bool, bool]


def _products(program: Program) -> dict[int, _Factors]:
    """Where among the outputs there are gradients to leave unmultiplied."""
    if not program.numerics.plain:
        return {}  # rounding and checks look at every value
    written = {n.args[0] for n in program.operations() if is_write(n)}
    values = program.output_values()
    result = {}
    for position in program.positions_of(OutputKind.GRADIENT):
        node = values[position]
        if node.target is not aten.mm.default or len(node.users) != 1 or values.count(node) != 1:
            continue
        (left, left_is_transposed), (right, right_is_transposed) = map(_untransposed, node.args)
        operands = left, right
        small = sum(value_of(o).numel() for o in operands) <= value_of(node).numel()
        stays = all(storage_root(o) not in written for o in operands)
        if small and stays and value_of(node).dtype in _TYPES:
            result[position] = _Factors(position, left, right, (left_is_transposed, right_is_transposed))
    return result


def _untransposed(node: Any) -> tuple[fx.Node, bool]:
    if node.op == "call_function" and node.target is aten.t.default:
        return node.args[0], True
    return node, False


def _with_factors(program: Program, products: Sequence[_Factors]) -> Program:
    """The program with left factors in place of gradients and right factors after all other outputs."""
    factored, copied = copy_of(program)
    outputs = factored.returned()
    for product in products:
        gradient = program.outputs[product.position]
        outputs[product.position] = gradient, copied[product.left]
        outputs.append((Output(OutputKind.FACTOR, f"factor of {gradient.name}"), copied[product.right]))
    factored.set_outputs(outputs)
    remove_dead_code(factored)
    return factored

"""Gradients that are products of two smaller matrices, left unmultiplied for the accumulator to add.

A linear layer's gradient for a few rows is a large matrix made from two small ones. Written to memory, read again and
added to the accumulator it costs more than the product itself; multiplied straight into the accumulator it costs no
more than that. So generated code returns the factors, wherever they take no more memory than what they make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from poptorch.executable.host_code import Code, Runner
from poptorch.host.interpret.hand_outs import Buckets
from poptorch.program.graphs import copy_of, remove_dead_code, storage_root
from poptorch.program.outputs import Output, OutputKind
from poptorch.program.program import Program, is_write, value_of
from poptorch.runtime.values.factored import Gradient, Product

aten = torch.ops.aten
_TYPES = (torch.float32, torch.float64)
_Places = Sequence[tuple[int, tuple[bool, bool]]]
"""Where products are, and which of their factors are transposed."""


def generate_factored(
    program: Program, generate: Callable[[Program, Buckets], Code], buckets: Buckets = ()
) -> Code:
    """Like ``generate``, with each gradient that is better not multiplied as a :class:`Product` among the outputs.

    ``buckets`` are positions of gradients that the code hands out instead of returning them.
    """
    found = _products(program)
    if not found:
        return generate(program, buckets)
    count = len(program.outputs)
    factor_at = {at: count + i for i, at in enumerate(found)}
    factored = _with_factors(program, list(found.values()))
    wider = [[*bucket, *(factor_at[at] for at in bucket if at in found)] for bucket in buckets]
    generated = generate(factored, wider)
    if buckets:
        portions = [[(i, found[at].transposed) for i, at in enumerate(b) if at in found] for b in buckets]
        return Code(_handing_products(generated.run, portions), generated.source)
    return Code(_returning_products(generated.run, count, found), generated.source)


def _returning_products(run: Runner, count: int, found: Mapping[int, _Factors]) -> Runner:
    places = [(at, f.transposed) for at, f in found.items()]

    def run_factored(*arguments: Any) -> Any:
        outputs = run(*arguments)
        return _joined(outputs[:count], outputs[count:], places)

    return run_factored


def _handing_products(run: Runner, portions: Sequence[_Places]) -> Runner:
    """The same where gradients are handed out; ``portions`` are the places of products in each bucket."""

    def run_handing(*arguments: Any) -> Any:
        *others, hand = arguments

        def hand_products(bucket: int, values: Sequence[torch.Tensor]) -> None:
            places = portions[bucket]
            count = len(values) - len(places)
            hand(bucket, _joined(values[:count], values[count:], places))

        return run(*others, hand_products)

    return run_handing


def _joined(values: Sequence[torch.Tensor], factors: Sequence[torch.Tensor], places: _Places) -> list[Gradient]:
    whole: list[Gradient] = list(values)
    for (at, transposed), right in zip(places, factors, strict=True):
        whole[at] = Product(values[at], right, transposed)
    return whole


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

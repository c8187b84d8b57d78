"""Complex weights that are trained become pairs of real numbers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import fx

from poptorch.compiler.passes.summary import summary
from poptorch.program.opinfo import OpInfo, has_info, info_of, set_info
from poptorch.program.outputs import OutputKind
from poptorch.program.pairs import as_stored
from poptorch.program.program import Program, Role, is_write, value_of

if TYPE_CHECKING:
    from poptorch.compiler.passes.context import Context

aten = torch.ops.aten


def weights_as_pairs(program: Program, context: Context) -> str:
    """Weights with a complex gradient, and that gradient, have a last dimension of two: real and imaginary part."""
    trained, changed = set(program.gradients), 0
    for place, (node, port) in enumerate(program.placeholders()):
        if port.role is not Role.PARAMETER or not port.dtype.is_complex or port.name not in trained:
            continue
        value = value_of(node)
        with torch.no_grad():
            pairs = as_stored(value, torch.float32)
        for user in list(node.users):
            if is_write(user) and user.args[0] is node:
                user.args = (node, _pairs_of(user.args[1], user))  # type: ignore[arg-type]
                user.meta["val"] = pairs
            else:
                _see_complex(user, node, value)
        node.meta["val"] = pairs
        program.ports[place] = dataclasses.replace(port, shape=tuple(pairs.shape), dtype=pairs.dtype)
        changed += 1
    if changed:
        program.set_outputs(
            [
                (output, _pairs_of(gradient, program.output_node, like=gradient))
                if output.kind is OutputKind.GRADIENT and value_of(gradient).is_complex()
                else (output, gradient)
                for output, gradient in program.returned()
            ]
        )
    return summary(changed, f"{changed} complex weights are trained as pairs of real numbers")


def _see_complex(user: fx.Node, weight: fx.Node, value: torch.Tensor) -> None:
    """Let an operation use the complex numbers that a weight holds the parts of."""
    with user.graph.inserting_before(user):
        seen = user.graph.call_function(aten.view_as_complex.default, (weight,))
    seen.meta["val"] = value
    set_info(seen, _place_of(user))
    user.replace_input_with(weight, seen)


def _pairs_of(value: fx.Node, user: fx.Node, like: fx.Node | None = None) -> fx.Node:
    """The real and imaginary parts of a complex value."""
    place = _place_of(user if like is None else like)
    fake = value_of(value)
    with value.graph.inserting_before(user), torch.no_grad():
        if fake.is_conj():  # so far only marked
            fake = fake.resolve_conj()
            value = value.graph.call_function(aten.clone.default, (value,))
            value.meta["val"] = fake
            set_info(value, place)
        parts = value.graph.call_function(aten.view_as_real.default, (value,))
        parts.meta["val"] = torch.view_as_real(fake)
    set_info(parts, place)
    return parts


def _place_of(node: fx.Node) -> OpInfo:
    """Where a view for this operation is; results are returned from wherever they are."""
    return info_of(node).but(random=None) if has_info(node) else OpInfo()

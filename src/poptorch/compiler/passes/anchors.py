"""Names for the values of a program, and the inner values that the user asked to see."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import torch
from torch import fx

from poptorch.compiler.passes.summary import UNCHANGED, summary
from poptorch.errors import UnknownTensorError, misuse
from poptorch.program.naming import value_labels
from poptorch.program.outputs import Output, OutputKind
from poptorch.program.program import Program, Role

if TYPE_CHECKING:
    from poptorch.compiler.passes.context import Context

UPDATED = "UpdatedVar___"
TRACED = "model."
"""Before the names of parameters and buffers in a traced training graph: there, the original wraps the model again."""


def value_names(program: Program) -> dict[str, fx.Node]:
    """Every name a user may anchor, and the value that it means."""
    names: dict[str, fx.Node] = {}
    for node, port in program.placeholders():
        if port.role is Role.INPUT:
            names["input" if port.index == 0 else f"input.{port.index}"] = node
        elif port.role is Role.LOSS_SCALE:
            names["finalLossScale"] = node
        else:
            names[port.name] = node
    for node, label in value_labels(program.operations()).items():
        if isinstance(node.meta.get("val"), torch.Tensor):
            names[label] = node
    for output, value in program.returned():
        if output.kind is OutputKind.GRADIENT:
            for spelling in (f"Gradient___{output.name}", f"Gradient___{TRACED}{output.name}"):
                names[spelling] = value
    if program.loss is not None:
        names["loss"] = program.loss
    return names


def traced_names(program: Program) -> list[str]:
    """The names of a traced training graph, each with the one spelling that it has there."""
    state = {p.name for p in program.ports if p.role in (Role.PARAMETER, Role.BUFFER)}
    plain = {f"Gradient___{name}" for name in program.gradients}
    return [f"{TRACED}{name}" if name in state else name for name in value_names(program) if name not in plain]


def anchor_values(program: Program, context: Context) -> str:
    """Return the inner values that the user asked for by name."""
    if not context.settings.anchors:
        return UNCHANGED
    known = value_names(program)
    found = []
    for name in context.settings.anchors:
        value = known.get(name, known.get(name.removeprefix(TRACED)))
        if value is None:
            close = difflib.get_close_matches(name, known, n=3)
            hint = f" Did you mean one of {close}?" if close else ""
            raise misuse(
                UnknownTensorError,
                f"Cannot anchor {name!r}: the compiled model has no tensor of this name.{hint} "
                "Use a name that getTensorNames() of the compiled model lists.",
            )
        found.append((Output(OutputKind.ANCHOR, name), value))
    program.set_outputs([*program.returned(), *found])
    return summary(len(found), f"{len(found)} anchors")

"""Running statistics of batch normalisation, in models that do not train."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
from torch import fx

from poptorch.compiler.passes.summary import UNCHANGED, summary
from poptorch.program.program import Program, is_write

if TYPE_CHECKING:
    from poptorch.compiler.passes.context import Context

_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
_CAST = torch.ops.aten._to_copy.default
_STATISTICS = (3, 4)
"""Positions of the running mean and variance, among the operands of the operation and among its results."""


def return_old_statistics(program: Program, context: Context) -> str:
    """A normalisation left in training mode writes its statistics last: what an inference model reads is older."""
    if not context.settings.returns_old_statistics:
        return UNCHANGED
    before: dict[object, fx.Node] = {}
    """The placeholder of each statistic, by the node of its new value."""

    changed = 0
    for norm in [n for n in program.operations() if n.target is _NORM]:
        for position in _STATISTICS:
            given = norm.args[position]
            old = before.get(given, given)
            if not isinstance(old, fx.Node) or old.op != "placeholder":
                continue
            for new in [u for u in norm.users if u.target is operator.getitem and u.args[1] == position]:
                before[new] = old
                changed += _read_old(new, old)
    return summary(changed, f"{changed} reads of statistics come before their update")


def _read_old(new: fx.Node, old: fx.Node) -> int:
    """Let all that reads a new statistic read the old one, but for the next normalisation and for the write."""
    changed = 0
    for user in list(new.users):
        if user.target is _CAST and any(is_write(reader) for reader in user.users):
            changed += _read_old(user, old)  # as the buffer keeps it: the old one has this type already
        elif not is_write(user) and user.target is not _NORM:
            user.replace_input_with(new, old)
            changed += 1
    return changed
